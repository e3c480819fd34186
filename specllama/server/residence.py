"""Whether a model is in memory and may be used, who uses it, and who waits for it.

Knows no engine: server/models.py decides what is loaded and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from specllama.errors import SpecllamaError

State = Literal["unloaded", "loading", "loaded"]


class Residence:
    """The residence of one model.

    on_change: called when somebody comes, goes or gives up. state: of the model. n_users: requests and
    queries in its engine. used_at: when the last one ended. idle_seconds: after which it is unloaded, None
    for never.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.state: State = "unloaded"
        self.n_users = 0
        self.used_at = 0.0
        self.idle_seconds: float | None = None
        self._is_open = False
        self._waiting: dict[asyncio.Future[None], float] = {}  # since when, the first to come first

    @property
    def is_open(self) -> bool:
        """Whether its engine may be used at once."""
        return self._is_open

    @property
    def waiting_since(self) -> float | None:
        """When the first of those who wait has come, None without any; seconds of the event loop."""
        return next(iter(self._waiting.values()), None)

    @property
    def idle_at(self) -> float | None:
        """When it is to be unloaded if nobody comes, None for never."""
        if self.state != "loaded" or self.n_users or self._waiting or self.idle_seconds is None:
            return None
        return self.used_at + self.idle_seconds

    @property
    def expires_in(self) -> float | None:
        """Seconds after which it is unloaded if nobody uses it from now on, None for never."""
        if self.state != "loaded" or self.idle_seconds is None:
            return None
        at = self.idle_at
        now = asyncio.get_running_loop().time()
        return self.idle_seconds if at is None else max(0.0, at - now)

    async def enter(self) -> None:
        """Wait until the engine may be used; the model then stays in memory until `leave`. Raises what
        loading it raised.
        """
        if self._is_open:
            self.n_users += 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[turn] = loop.time()
        self.on_change()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()
            raise
        finally:
            if self._waiting.pop(turn, None) is not None:
                self.on_change()

    def leave(self) -> None:
        """End what `enter` began."""
        self.n_users -= 1
        self.used_at = asyncio.get_running_loop().time()
        if not self.n_users:
            self.on_change()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """`enter`, and `leave` at the end."""
        await self.enter()
        try:
            yield
        finally:
            self.leave()

    def keep(self, seconds: float | None) -> None:
        """Set `idle_seconds`."""
        self.idle_seconds = seconds
        self.on_change()

    def open(self) -> None:
        """Let all in who wait, and all who come."""
        self._is_open = True
        for turn in list(self._waiting):
            del self._waiting[turn]
            if not turn.done():
                self.n_users += 1
                turn.set_result(None)

    def close(self) -> None:
        """Let those who come wait. Those who are in may go on."""
        self._is_open = False

    def refuse(self, error: SpecllamaError) -> None:
        """Raise this error for all who wait."""
        for turn in list(self._waiting):
            del self._waiting[turn]
            if not turn.done():
                turn.set_exception(SpecllamaError.from_dict(error.to_dict()))
