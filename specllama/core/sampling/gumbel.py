"""Keyed Gumbel noise: a pure function of (seed, position, token), without random-generator state.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) serves as a counter-based hash; its bits become the noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specllama.core.seeds import GOLDEN, nth_seed, splitmix64

__all__ = ["gumbel", "nth_seed", "splitmix64"]

# 0-d arrays: numpy would convert a plain number at every operation.
_GOLDEN = np.array(GOLDEN, np.uint64)
_MULT1, _MULT2 = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_S30, _S27, _S31, _S12 = (np.array(n, np.uint64) for n in (30, 27, 31, 12))
_UNIT, _HALF = np.array(2.0**-52), np.array(2.0**-53)


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise -log(-log(u)) of the tokens `ids` at `position`, same shape as `ids`; the same
    for the same seed, position and id.
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
    for _ in range(2):
        np.log(u, u)
        np.negative(u, u)
    return u
