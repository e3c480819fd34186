"""Time in which this process ran: a clock that stands still while the process does.

A process is stopped by Ctrl-Z, SIGSTOP, a debugger, a frozen container or a laptop's lid, and goes on as if
nothing had happened. The system's monotonic clock has gone on meanwhile (through the sleep of the machine on
some systems only), so that watchdogs, deadlines and rates by it count the pause. All of them use this clock.

Knows nothing but the system's clock. Times of day are not measured with it: they are `time.time()`, only ever
shown or compared with other times of day.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")
TICK_SECONDS = 0.25  # between two ticks
_POLL_SECONDS = 0.004  # between two looks at a process that is to end
MOST_SECONDS = 1.0  # that count between two ticks; a longer gap is a pause


class RunningClock:
    """Seconds since any moment, without pauses: between two calls of `tick` at most MOST_SECONDS pass.

    Called from any thread it returns the time, which never goes back. source: a clock that never goes back.
    """

    def __init__(self, source: Callable[[], float] = time.perf_counter) -> None:
        self._source = source
        now = source()
        self._state = now, now  # of the last tick: time by the source, time by this clock

    def __call__(self) -> float:
        ticked, time_then = self._state
        return time_then + min(self._source() - ticked, MOST_SECONDS)

    def tick(self) -> None:
        """Record that the process is running. Called by one thread, every TICK_SECONDS."""
        ticked, time_then = self._state
        now = self._source()
        # The sum of a reading at this moment, so that rounding never turns the clock back.
        self._state = now, time_then + min(now - ticked, MOST_SECONDS)


class ProcessClock(RunningClock):
    """The clock of this process. Its thread starts with the first reading, in a forked child again."""

    def __init__(self) -> None:
        super().__init__()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> float:
        if self._thread is None:
            self._start()
        return super().__call__()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self.tick()  # nobody has read the clock: the time before this is no pause
                thread = threading.Thread(target=self._tick_on, name="specllama_clock", daemon=True)
                thread.start()
                self._thread = thread

    def _tick_on(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            self.tick()

    def _forget(self) -> None:
        self._thread, self._lock = None, threading.Lock()


running_time = ProcessClock()
"""Seconds for which this process has run, since any moment: `running_time() - began` is a duration."""


def wait_until(
    done: Callable[[float], object],
    seconds: float,
    clock: Callable[[], float] = running_time,
) -> bool:
    """Call `done` until it returns something true, for `seconds` in which this process runs, at least once.
    Returns whether it has.

    done: waits for up to the seconds that it is given, such as `Event.wait`.
    """
    ends = clock() + seconds
    while True:
        if done(min(TICK_SECONDS, max(0.0, ends - clock()))):
            return True
        if clock() >= ends:
            return False


def ended(thread: threading.Thread) -> Callable[[float], bool]:
    """For `wait_until`: waits for a started thread to end, and returns whether it has."""

    def wait(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    return wait


def exited(process: subprocess.Popen[Any]) -> Callable[[float], bool]:
    """For `wait_until`: waits for a process to end, and returns whether it has."""

    def wait(seconds: float) -> bool:
        ends = time.perf_counter() + seconds
        while process.poll() is None:
            left = ends - time.perf_counter()
            if left <= 0:
                return False
            time.sleep(min(_POLL_SECONDS, left))  # Popen.wait sleeps for up to 50 ms
        return True

    return wait


def sleep(seconds: float, clock: Callable[[], float] = running_time) -> None:
    """As time.sleep, for `seconds` in which this process runs."""
    ends = clock() + seconds
    while (left := ends - clock()) > 0:
        time.sleep(min(left, TICK_SECONDS))


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run, in a loop whose time is `running_time`: all timers of asyncio and uvicorn are those of
    the loop, so that none of them counts a pause.
    """
    import asyncio

    def made() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.time = running_time  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=made) as runner:
        return runner.run(main)
