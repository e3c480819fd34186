"""Time limits for per-token operations: a timer that is rescheduled only when it fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleTimer:
    """Calls `expired` in the event loop once the latest `begin` is `seconds` old without `end`; once per
    `begin`. Needs a running event loop.
    """

    def __init__(self, seconds: float, expired: Callable[[], object]) -> None:
        self._seconds, self._expired = seconds, expired
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the timer, or restart it."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._check)

    def end(self) -> None:
        """Stop the timer: the operation has ended."""
        self._since = None

    def close(self) -> None:
        """Cancel the timer for good."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self._since = None
            self._expired()
