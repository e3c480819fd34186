"""Leases of a model: its state, the requests that use it, and those that wait for it.

Knows no engine: server/loader.py decides what is loaded and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from specllama.errors import SpecllamaError

State = Literal["unloaded", "loading", "loaded"]


class ModelLease:
    """Counts the users of one model, which stays loaded while there are any.

    on_change: called when a waiter arrives or gives up, and when the last user releases the model. state: of
    the model. n_users: requests and queries that have acquired it. used_at: time of the last release.
    idle_seconds: time without users after which it is unloaded, None for never.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.state: State = "unloaded"
        self.n_users = 0
        self.used_at = 0.0
        self.idle_seconds: float | None = None
        self._is_open = False
        self._waiters: dict[asyncio.Future[None], float] = {}  # to the time of arrival, in this order

    @property
    def is_open(self) -> bool:
        """Whether `acquire` returns at once."""
        return self._is_open

    @property
    def has_engine(self) -> bool:
        """Whether the model is loaded or loading, and is not being unloaded."""
        return self._is_open or self.state == "loading"

    @property
    def waiting_since(self) -> float | None:
        """When the first waiter arrived, None without waiters; seconds of the event loop."""
        return next(iter(self._waiters.values()), None)

    @property
    def idle_at(self) -> float | None:
        """When the model is due to be unloaded, None if it is in use, has waiters or never is."""
        if self.state != "loaded" or self.n_users or self._waiters or self.idle_seconds is None:
            return None
        return self.used_at + self.idle_seconds

    @property
    def expires_in(self) -> float | None:
        """Seconds until the model is unloaded unless a request uses it before, None for never."""
        if self.state != "loaded" or self.idle_seconds is None:
            return None
        at = self.idle_at
        now = asyncio.get_running_loop().time()
        return self.idle_seconds if at is None else max(0.0, at - now)

    async def acquire(self) -> None:
        """Wait for the model, which then stays loaded until `release`. Raises the error of its load."""
        if self._is_open:
            self.n_users += 1
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = loop.time()
        self.on_change()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()
            raise
        finally:
            if self._waiters.pop(waiter, None) is not None:
                self.on_change()

    def release(self) -> None:
        """End what `acquire` began."""
        self.n_users -= 1
        self.used_at = asyncio.get_running_loop().time()
        if not self.n_users:
            self.on_change()

    @asynccontextmanager
    async def acquired(self) -> AsyncIterator[None]:
        """`acquire` the model, and `release` it at the end of the block."""
        await self.acquire()
        try:
            yield
        finally:
            self.release()

    def set_idle_seconds(self, seconds: float | None) -> None:
        """Set `idle_seconds` of a model that may be idle already."""
        self.idle_seconds = seconds
        self.on_change()

    def open(self) -> None:
        """Wakes all waiters; later acquires return at once."""
        self._is_open = True
        for waiter in list(self._waiters):
            del self._waiters[waiter]
            if not waiter.done():
                self.n_users += 1
                waiter.set_result(None)

    def close(self) -> None:
        """Makes later acquires wait. Requests that have acquired the model keep it."""
        self._is_open = False

    def fail_waiters(self, error: SpecllamaError) -> None:
        """Raises this error in all waiters."""
        for waiter in list(self._waiters):
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_exception(SpecllamaError.from_dict(error.to_dict()))
