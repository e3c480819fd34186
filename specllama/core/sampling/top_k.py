"""The largest values of a row of logits, exactly, without a sort of the whole row."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Row

Ids = NDArray[np.int64]

_BLOCK = 64  # size of the blocks whose maxima find the top k
_FEW = 512  # values up to which a stable sort is quicker than one of unique keys


def top_ids(row: Row, k: int) -> Ids:
    """Ids of the k largest values of `row`, the largest first, lower ids first among equals. Exact; the ids
    of what is not a number where there is such.

    Deals the row out to blocks and looks at those with the k largest maxima only: the k-th largest value
    cannot be smaller than the k-th largest maximum. Block b holds the ids b, b + n_blocks, b + 2 n_blocks
    ..., so that all maxima are taken together in memory order.
    """
    n_blocks, maxima = len(row) // _BLOCK, row
    n_dealt = n_blocks * _BLOCK
    dealt, rest = row[:n_dealt].reshape(_BLOCK, n_blocks), row[n_dealt:]
    if n_blocks > max(_BLOCK, 2 * k):
        maxima = dealt.max(axis=0)
        if len(rest):
            np.maximum(maxima[: len(rest)], rest, out=maxima[: len(rest)])
    parted = np.partition(maxima, len(maxima) - k)[len(maxima) - k :]
    edge = parted[0]
    if math.isnan(parted.max()):  # what is not a number comes last; whoever asked for the best shall see it
        return np.isnan(row).nonzero()[0]
    if edge == -np.inf:
        possible = best_first(row, (row > edge).nonzero()[0])
        return np.concatenate((possible, (row == edge).nonzero()[0][:k]))[:k]
    if maxima is row:
        return best_first(row, (row >= edge).nonzero()[0])[:k]
    blocks = (maxima >= edge).nonzero()[0]
    turn, at = (dealt[:, blocks] >= edge).nonzero()
    ids = turn * n_blocks + blocks[at]
    if len(rest):
        ids = np.concatenate((ids, (rest >= edge).nonzero()[0] + n_dealt))
    return best_first(row, ids)[:k]


def best_first(row: Row, ids: Ids) -> Ids:
    """Ids in ascending order by their value in `row`, the largest first, lower ids first among equals."""
    if len(ids) < _FEW:
        return ids[(-row[ids]).argsort(kind="stable")]
    bits = (row[ids] + np.float32(0)).view(np.uint32)  # + 0: no negative zeros
    keys = np.where(bits >> np.uint32(31), bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= ids.astype(np.uint64)
    keys.sort()
    keys &= np.uint64(0xFFFFFFFF)
    return keys.astype(np.int64)
