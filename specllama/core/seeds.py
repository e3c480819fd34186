"""Deriving seeds from seeds, in plain integers: fronts use this without importing numpy."""

from __future__ import annotations

_MASK64, _MASK53 = (1 << 64) - 1, (1 << 53) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(x: int) -> int:
    """The mixing function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), from 64 bits to 64 bits."""
    x = (x + GOLDEN) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def nth_seed(seed: int, n: int) -> int:
    """The seed of the n-th text of a request, counted from 0; `seed` itself for the first. The others are
    below 2^53, so that programs whose numbers are all floats can send them back.
    """
    return seed if n == 0 else splitmix64(seed ^ splitmix64(n)) & _MASK53
