"""The k largest values of a row of logits, exactly, without sorting the whole row."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Row

Ids = NDArray[np.int64]

_BLOCK_SIZE = 64
_STABLE_SORT_LIMIT = 512  # fewer values are sorted faster by a stable sort than by unique integer keys


def top_ids(row: Row, k: int) -> Ids:
    """Ids of the k largest values of `row`, the largest first, lower ids first among equals; shape (k,). If
    the row contains NaN, the ids of the NaNs instead, so that the caller notices.

    Splits the row into blocks and searches only those with the k largest maxima: the k-th largest value
    cannot be smaller than the k-th largest maximum. Block b holds the ids b, b + n_blocks, b + 2 n_blocks
    ..., so that one pass in memory order computes all maxima.
    """
    n_blocks, maxima = len(row) // _BLOCK_SIZE, row
    n_in_blocks = n_blocks * _BLOCK_SIZE
    blocks, rest = row[:n_in_blocks].reshape(_BLOCK_SIZE, n_blocks), row[n_in_blocks:]
    if n_blocks > max(_BLOCK_SIZE, 2 * k):
        maxima = blocks.max(axis=0)
        if len(rest):
            np.maximum(maxima[: len(rest)], rest, out=maxima[: len(rest)])
    largest = np.partition(maxima, len(maxima) - k)[len(maxima) - k :]
    threshold = largest[0]
    if math.isnan(largest.max()):  # np.partition sorts NaN to the end
        return np.isnan(row).nonzero()[0]
    if threshold == -np.inf:
        possible = best_first(row, (row > threshold).nonzero()[0])
        return np.concatenate((possible, (row == threshold).nonzero()[0][:k]))[:k]
    if maxima is row:
        return best_first(row, (row >= threshold).nonzero()[0])[:k]
    chosen = (maxima >= threshold).nonzero()[0]
    offsets, columns = (blocks[:, chosen] >= threshold).nonzero()
    ids = offsets * n_blocks + chosen[columns]
    if len(rest):
        ids = np.concatenate((ids, (rest >= threshold).nonzero()[0] + n_in_blocks))
    return best_first(row, ids)[:k]


def best_first(row: Row, ids: Ids) -> Ids:
    """The ids, given in ascending order, sorted by their value in `row`: the largest first, lower ids first
    among equals.
    """
    if len(ids) < _STABLE_SORT_LIMIT:
        return ids[(-row[ids]).argsort(kind="stable")]
    bits = (row[ids] + np.float32(0)).view(np.uint32)  # + 0 turns negative zeros into positive ones
    keys = np.where(bits >> np.uint32(31), bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= ids.astype(np.uint64)
    keys.sort()
    keys &= np.uint64(0xFFFFFFFF)
    return keys.astype(np.int64)
