"""The engine's client for an event loop: what the engine says arrives there.

A message is about all sequences; one wake-up of the loop is enough for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

from specllama.client import protocol
from specllama.client.client import Deliver, EngineClient, Submission
from specllama.errors import SpecllamaError


class LoopClient(EngineClient):
    """An EngineClient whose `deliver` and `ended` are called in the event loop that it was made in."""

    def __init__(self, log: IO[str] | None, notice: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._calls: deque[Callable[[], None]] = deque()
        super().__init__(log, notice, lambda: self._calls.append(ended), self._wake, self._loop)

    def submit(
        self, request: protocol.Generate | protocol.Question | protocol.Tune, deliver: Deliver
    ) -> Submission:
        """See EngineClient; nothing is delivered before this returns."""

        def later(message: protocol.Message | SpecllamaError) -> None:
            self._calls.append(lambda: deliver(message))

        return super().submit(request, later)

    def _wake(self) -> None:
        """In the loop; in the reading thread where the loop cannot read, and when the process has ended."""
        if self._calls and threading.get_ident() == self._thread:
            self._run()
        elif self._calls:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception as error:  # noqa: BLE001 - a failure of one request must not reach the others
                self._loop.call_exception_handler({"message": "a delivery failed", "exception": error})
