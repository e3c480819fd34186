"""Keyed noise: a pure function of (seed, position, token), instead of the state of a random generator.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a counter-based hash; standard Gumbel noise made of its bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specllama.core.seeds import GOLDEN, nth_seed, splitmix64

__all__ = ["gumbel", "nth_seed", "splitmix64"]

# Arrays without an axis: numbers would be made into such at every operation.
_GOLDEN = np.array(GOLDEN, np.uint64)
_MULT1, _MULT2 = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_S30, _S27, _S31, _S12 = (np.array(n, np.uint64) for n in (30, 27, 31, 12))
_UNIT, _HALF = np.array(2.0**-52), np.array(2.0**-53)


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise for the tokens `ids` at `position`, shape of `ids`; the same for the same key."""
    key = np.array(splitmix64(seed ^ splitmix64(position)), np.uint64)
    x = np.multiply(ids.view(np.uint64), _GOLDEN)
    np.add(x, key, x)
    y = np.right_shift(x, _S30)
    np.bitwise_xor(x, y, x)
    np.multiply(x, _MULT1, x)
    np.right_shift(x, _S27, y)
    np.bitwise_xor(x, y, x)
    np.multiply(x, _MULT2, x)
    np.right_shift(x, _S31, y)
    np.bitwise_xor(x, y, x)
    np.right_shift(x, _S12, x)  # 52 bits: with 53, adding a half could round up to u = 1
    u: NDArray[np.float64] = np.multiply(x, _UNIT)
    np.add(u, _HALF, u)
    for _ in range(2):
        np.log(u, u)
        np.negative(u, u)
    return u
