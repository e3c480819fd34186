"""The event loop of everything that serves or waits, whose time stands still while this process does, and an
engine client that delivers all messages in it.

All timers of asyncio and uvicorn are those of the loop, so that none of them counts a pause. One engine
message covers all sequences, so that one wake-up of the loop delivers to all requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import IO, Any, TypeVar

from specllama.client import protocol
from specllama.client.client import Asked, Deliver, EngineClient, Submission
from specllama.clock import running_time
from specllama.errors import SpecllamaError

if sys.platform == "win32":
    _Base = asyncio.ProactorEventLoop
else:
    _Base = asyncio.SelectorEventLoop
Result = TypeVar("Result")


class RunningLoop(_Base):
    """The system's usual loop by `running_time`."""

    def time(self) -> float:
        return running_time()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run, in a RunningLoop."""
    with asyncio.Runner(loop_factory=RunningLoop) as runner:
        return runner.run(main)


class LoopClient(EngineClient):
    """An EngineClient that calls `deliver` and `ended` in the event loop in which it was created."""

    def __init__(self, log: IO[str] | None, notice: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._calls: deque[Callable[[], None]] = deque()
        super().__init__(log, notice, lambda: self._calls.append(ended), self._wake, self._loop)

    def submit_choices(self, request: Asked, deliver: Sequence[Deliver]) -> list[Submission]:
        """See EngineClient; nothing is delivered before this method returns."""
        return super().submit_choices(request, [partial(self._deliver_later, one) for one in deliver])

    def _deliver_later(self, deliver: Deliver, message: protocol.Message | SpecllamaError) -> None:
        self._calls.append(partial(deliver, message))

    def _wake(self) -> None:
        """Run the queued calls in the loop, in which this is called unless it cannot watch pipes."""
        if self._calls and threading.get_ident() == self._thread:
            self._run_calls()
        elif self._calls:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
                self._loop.call_soon_threadsafe(self._run_calls)

    def _run_calls(self) -> None:
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception as error:  # noqa: BLE001 - a failure of one request must not affect the others
                self._loop.call_exception_handler({"message": "a delivery failed", "exception": error})
