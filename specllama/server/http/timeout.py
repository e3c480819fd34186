"""Time limits on what happens once a token: a timer that is set anew when it fires, not at each token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleTimer:
    """Calls `over` in the loop once what was begun last has lasted `seconds`, once for each."""

    def __init__(self, seconds: float, over: Callable[[], object]) -> None:
        self._seconds, self._over = seconds, over
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """It begins now, whether or not the one before has ended."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self) -> None:
        """It has ended in time."""
        self._since = None

    def close(self) -> None:
        """Nothing more begins."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._since = None
            self._over()
