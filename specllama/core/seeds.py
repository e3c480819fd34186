"""Seeds made of seeds, in plain integers: fronts need them too, and numpy is not for fronts."""

from __future__ import annotations

_MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 bits in, 64 well mixed bits out."""
    x = (x + GOLDEN) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def nth_seed(seed: int, n: int) -> int:
    """The seed of choice `n` of a request: the seed itself for 0."""
    return seed if n == 0 else splitmix64(seed ^ splitmix64(n))
