"""How long a model whose load has failed is not tried again. Knows no engine; times are passed in."""

from __future__ import annotations

import math

from specllama.errors import EngineDiedError, SpecllamaError

DELAYS = (0.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds without another try after the first, second, ... failure in a row."""


class LoadBackoff:
    """The failures in a row of one model's loads."""

    def __init__(self) -> None:
        self._n_failures = 0
        self._until = 0.0
        self._why = ""

    def failed(self, error: SpecllamaError, now: float) -> None:
        """A load has failed at this time, in seconds of any clock."""
        self._n_failures += 1
        self._until = now + DELAYS[min(self._n_failures, len(DELAYS)) - 1]
        self._why = error.message

    def succeeded(self) -> None:
        """A load has succeeded: the next failure is the first one."""
        self._n_failures = 0

    def refusal(self, now: float) -> SpecllamaError | None:
        """Why it is not tried now, None if it may be. `details["retry_after"]`: seconds until it may be."""
        left = math.ceil(self._until - now)
        if not self._n_failures or left <= 0:
            return None
        return EngineDiedError(
            f"the last {self._n_failures} loads failed, and it is tried again in {left} s: {self._why}",
            details={"retry_after": left},
        )
