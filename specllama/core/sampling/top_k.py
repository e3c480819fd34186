"""The k largest values of a row of logits, exactly, without sorting the whole row."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Row

Ids = NDArray[np.int64]

_BLOCK_SIZE, _SMALL_BLOCK_SIZE = 64, 16
_LONG_ROW = 16384  # from this length on blocks have _BLOCK_SIZE values
_COARSE = 8  # maxima of so many blocks, where there are many: the threshold is a little lower
_STABLE_SORT_LIMIT = 512  # fewer values are sorted faster by a stable sort than by unique integer keys


class BlockMaxima:
    """The maxima of a row's blocks: with them, its largest values are found in a part of the row.

    top: the largest value, NaN where the row contains one. Block b holds the ids b, b + n_blocks,
    b + 2 n_blocks ..., so that one pass in memory order computes all maxima.
    """

    def __init__(self, row: Row) -> None:
        size = _SMALL_BLOCK_SIZE if len(row) < _LONG_ROW else _BLOCK_SIZE
        self.row, n = row, len(row) // size or len(row)
        n_in_blocks = len(row) // n * n
        self._blocks, self._rest = row[:n_in_blocks].reshape(-1, n), row[n_in_blocks:]
        self._maxima = self._blocks.max(axis=0)
        if n_rest := len(self._rest):
            np.maximum(self._maxima[:n_rest], self._rest, out=self._maxima[:n_rest])
        self._best = int(self._maxima.argmax())
        self.top = float(self._maxima[self._best])

    def ids_from(self, threshold: float) -> Ids:
        """Ids of the values that are at least `threshold`, in ascending order."""
        if len(self.row) >= _LONG_ROW:
            chosen = (self._maxima >= threshold).nonzero()[0]
            if 2 * len(chosen) < len(self._maxima):
                return self._ids_in(chosen, threshold)
        return (self.row >= threshold).nonzero()[0]

    def _ids_in(self, chosen: Ids, threshold: float) -> Ids:
        """As `ids_from`, of the blocks `chosen` and the rest of the row."""
        indices = (self._blocks.take(chosen, axis=1) >= threshold).ravel().nonzero()[0]
        offsets, columns = np.divmod(indices, len(chosen))
        ids: Ids = offsets * len(self._maxima) + chosen[columns]
        if len(self._rest):
            ids = np.concatenate((ids, (self._rest >= threshold).nonzero()[0] + self._blocks.size))
        return ids

    def only_from(self, threshold: float) -> int | None:
        """The id of the only value that is at least `threshold`; None where there are several."""
        if np.count_nonzero(self._maxima >= threshold) > 1:
            return None
        block = self.row[self._best :: len(self._maxima)]
        if np.count_nonzero(block >= threshold) > 1:
            return None
        return self._best + int(block.argmax()) * len(self._maxima)

    def top_ids(self, k: int) -> Ids:
        """As the function `top_ids`: the k-th largest value is not smaller than the k-th largest maximum."""
        row = self.row
        if math.isnan(self.top):
            return np.isnan(row).nonzero()[0]
        n = len(self._maxima)
        if 2 * _COARSE * k < n:
            values = self._maxima[: n // _COARSE * _COARSE].reshape(_COARSE, -1).max(axis=0)
        else:
            values = (self._maxima if 2 * k < n else row).copy()
        values.partition(len(values) - k)
        threshold = values[len(values) - k]
        if threshold == -math.inf:
            possible = best_first(row, (row > threshold).nonzero()[0])
            return np.concatenate((possible, (row == threshold).nonzero()[0][:k]))[:k]
        return best_first(row, self.ids_from(threshold))[:k]


def top_ids(row: Row, k: int) -> Ids:
    """Ids of the k largest values of `row`, the largest first, lower ids first among equals; shape (k,). If
    the row contains NaN, the ids of the NaNs instead, so that the caller notices.
    """
    return BlockMaxima(row).top_ids(k)


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
