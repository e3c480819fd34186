"""Keyed noise: a pure function of (seed, position, token), instead of the state of a random generator.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a counter-based hash; standard Gumbel noise made of its bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULT1, _MULT2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S12 = (np.uint64(n) for n in (30, 27, 31, 12))


def splitmix64(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 bits in, 64 well mixed bits out."""
    x = (x + _GOLDEN) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def nth_seed(seed: int, n: int) -> int:
    """The seed of choice `n` of a request: the seed itself for 0."""
    return seed if n == 0 else splitmix64(seed ^ splitmix64(n))


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise for the tokens `ids` at `position`, shape of `ids`; the same for the same key."""
    key = np.uint64(splitmix64(seed ^ splitmix64(position)))
    x = ids.astype(np.uint64)
    with np.errstate(over="ignore"):
        x *= np.uint64(_GOLDEN)
        x += key
        for shift, factor in ((_S30, _MULT1), (_S27, _MULT2)):
            x ^= x >> shift
            x *= factor
    x ^= x >> _S31
    x >>= _S12  # 52 bits: with 53, adding a half could round up to u = 1
    u = x.astype(np.float64)
    u += 0.5
    u *= 2.0**-52
    for _ in range(2):
        np.log(u, out=u)
        np.negative(u, out=u)
    return u
