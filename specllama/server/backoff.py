"""Delays between attempts to load a model whose loads fail. Knows no engine; times are passed in."""

from __future__ import annotations

import math

from specllama.errors import EngineDiedError, SpecllamaError

DELAYS = (0.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds from the first, second, ... consecutive failure to the next attempt."""


class LoadBackoff:
    """Counts the consecutive failed loads of one model."""

    def __init__(self) -> None:
        self._n_failures = 0
        self._until = 0.0
        self._why = ""

    def failed(self, error: SpecllamaError, now: float) -> None:
        """Record a failed load at this time, in seconds of any clock."""
        self._n_failures += 1
        self._until = now + DELAYS[min(self._n_failures, len(DELAYS)) - 1]
        self._why = error.message

    def succeeded(self) -> None:
        """Record a successful load, which resets the count."""
        self._n_failures = 0

    def refusal(self, now: float) -> SpecllamaError | None:
        """The error for a request before the next attempt is due, None afterwards. `details["retry_after"]`:
        seconds until then.
        """
        left = math.ceil(self._until - now)
        if not self._n_failures or left <= 0:
            return None
        return EngineDiedError(
            f"the last {self._n_failures} loads failed, and it is tried again in {left} s: {self._why}",
            details={"retry_after": left},
        )
