"""Rows of logits: their keyed noise, and their largest values without a sort of the whole row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Row
from specllama.core.sampling.params import GOLDEN, splitmix64

# Keyed Gumbel noise: a pure function of (seed, position, token), without random-generator state.
#
# SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) serves as a counter-based hash; its bits become the noise.


# 0-d arrays: numpy would convert a plain number at every operation.
_GOLDEN = np.array(GOLDEN, np.uint64)
_MULT1, _MULT2 = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_S30, _S27, _S31, _S12 = (np.array(n, np.uint64) for n in (30, 27, 31, 12))
_UNIT, _HALF = np.array(2.0**-52), np.array(2.0**-53)
_FEW, _PART = 1024, 8192  # tokens that all get their noise; that are looked at together, in the cache
_MOST_LOG = 700.0  # exp overflows soon after


def uniform(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number between 0 and 1, without these two, for each of the tokens `ids` at `position`, same shape as
    `ids`; the same for the same seed, position and id.
    """
    key = np.array(splitmix64(seed ^ splitmix64(position)), np.uint64)
    bits = np.multiply(ids.view(np.uint64), _GOLDEN)
    np.add(bits, key, bits)
    shifted = np.right_shift(bits, _S30)
    np.bitwise_xor(bits, shifted, bits)
    np.multiply(bits, _MULT1, bits)
    np.right_shift(bits, _S27, shifted)
    np.bitwise_xor(bits, shifted, bits)
    np.multiply(bits, _MULT2, bits)
    np.right_shift(bits, _S31, shifted)
    np.bitwise_xor(bits, shifted, bits)
    np.right_shift(bits, _S12, bits)  # 52 bits: with 53, adding a half could round up to u = 1
    u: NDArray[np.float64] = np.multiply(bits, _UNIT)
    np.add(u, _HALF, u)
    return u


def _noise(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log(-log(u)), in place."""
    for _ in range(2):
        np.log(u, u)
        np.negative(u, u)
    return u


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise -log(-log(u)) of the tokens `ids` at `position`, same shape as `ids`; the same
    for the same seed, position and id.
    """
    return _noise(uniform(seed, position, ids))


def keyed_best(seed: int, position: int, ids: NDArray[np.int64], scores: NDArray[np.floating[Any]]) -> int:
    """The index of the largest sum of score and noise, the first of equal ones. Of many tokens only those get
    their noise that can have it.
    """
    if len(ids) <= _FEW:
        return int((scores + gumbel(seed, position, ids)).argmax())
    best = int(scores.argmax())
    reached = float(scores[best]) + float(gumbel(seed, position, ids[best : best + 1])[0])
    for start in range(0, len(ids), _PART):
        part = scores[start : start + _PART]
        u = uniform(seed, position, ids[start : start + _PART])
        missing = min(float(part.max()) - reached, _MOST_LOG)
        at = (u >= math.exp(-math.exp(missing)) * (1 - 1e-9)).nonzero()[0]
        if len(at):
            sums = part[at].astype(np.float64) + _noise(u[at])
            highest = int(sums.argmax())
            if (float(sums[highest]), -start - at[highest]) > (reached, -best):
                best, reached = start + int(at[highest]), float(sums[highest])
    return best


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
