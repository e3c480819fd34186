"""What the prefix store counts and times. Knows no states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixCounts:
    """Counters since the load. n_tokens, seconds: tokens that were not evaluated again, and the predicted
    seconds of doing so. n_restored: states that were copied back into the context.
    """

    n_lookups: int = 0
    n_hits: int = 0
    n_tokens: int = 0
    seconds: float = 0.0
    n_restored: int = 0
    n_saved: int = 0


@dataclass(slots=True)
class CopyRate:
    """How fast states are copied. rate: bytes per second, a guess until it was measured."""

    rate: float = 1e9

    def timed(self, n_bytes: int, seconds: float) -> None:
        """Learn from a copy, if it took long enough to time."""
        if n_bytes > 1 << 20 and seconds > 0:
            self.rate += 0.3 * (n_bytes / seconds - self.rate)
