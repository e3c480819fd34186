"""Keyed noise: a pure function of (seed, position, token), instead of the state of a random generator.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a counter-based hash; standard Gumbel noise made of its bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specllama.core.seeds import GOLDEN, nth_seed, splitmix64

__all__ = ["gumbel", "nth_seed", "splitmix64"]

_GOLDEN = np.uint64(GOLDEN)
_MULT1, _MULT2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S12 = (np.uint64(n) for n in (30, 27, 31, 12))


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise for the tokens `ids` at `position`, shape of `ids`; the same for the same key."""
    key = np.uint64(splitmix64(seed ^ splitmix64(position)))
    x = ids.view(np.uint64) * _GOLDEN
    x += key
    for shift, factor in ((_S30, _MULT1), (_S27, _MULT2)):
        x ^= x >> shift
        x *= factor
    x ^= x >> _S31
    x >>= _S12  # 52 bits: with 53, adding a half could round up to u = 1
    u = x * np.float64(2.0**-52)
    u += 2.0**-53
    for _ in range(2):
        np.log(u, out=u)
        np.negative(u, out=u)
    return u
