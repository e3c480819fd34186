"""Prepares large requests in a thread of its own while others decode, the smallest first.

Rendering and tokenising megabytes takes seconds; in the thread that decodes, all other requests would wait.
"""

from __future__ import annotations

import itertools
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from specllama.errors import EngineError, SpecllamaError
from specllama.processor_time import WorkMeter, of_thread

_Result = TypeVar("_Result")
LARGE = 16 * 1024  # bytes of a message; the work on smaller ones takes a few milliseconds
_ALLOWED_SECONDS, _ALLOWED_PER_BYTE = 30.0, 200e-6  # far beyond the slowest tokeniser


@dataclass(slots=True)
class Job:
    """The work on one message. open: its ids that nobody has cancelled; without any it is not begun."""

    open: set[int]
    size: int
    work: Callable[[], object]
    done: Callable[[Job, Any], None]


class Preparer:
    """Runs jobs in a thread that starts with the first one. held: bytes of the jobs that wait or run."""

    def __init__(self) -> None:
        self.held = 0
        self._jobs: queue.PriorityQueue[tuple[int, int, Job]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._by_id: dict[int, Job] = {}
        self._current: tuple[WorkMeter, int] | None = None  # of the job at hand, and its size
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether there are jobs that have not been released."""
        return bool(self._by_id)

    def submit(
        self,
        ids: set[int],
        size: int,
        work: Callable[[], _Result],
        done: Callable[[Job, _Result | SpecllamaError], None],
    ) -> None:
        """Queue a job. size: bytes of its message; of two that wait, the smaller one runs first.

        done: called in the thread with the result of `work`, or its error; it sees to it that the job is
        released.
        """
        job = Job(ids, size, work, done)
        self._by_id.update(dict.fromkeys(ids, job))
        with self._lock:
            self.held += size
        self._jobs.put((size, next(self._numbers), job))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="specllama-prepare", daemon=True)
            self._thread.start()

    def cancel(self, id_: int) -> bool:
        """Remove an id from its job, if it has one. Returns whether it had."""
        job = self._by_id.pop(id_, None)
        if job is not None:
            job.open.discard(id_)
        return job is not None

    def release(self, job: Job) -> None:
        """Forget a job that is done."""
        for id_ in list(job.open):
            self._by_id.pop(id_, None)

    @property
    def hang(self) -> tuple[float, float] | None:
        """How long the job at hand has run (WorkMeter.seconds) and how long it may, in seconds; None without
        one.
        """
        current = self._current
        if current is None:
            return None
        meter, size = current
        return meter.seconds, _ALLOWED_SECONDS + _ALLOWED_PER_BYTE * size

    def _run(self) -> None:
        while True:
            size, _, job = self._jobs.get()
            self._current = WorkMeter(of_thread(threading.current_thread())), size
            if job.open:
                job.done(job, _outcome(job.work))
            self._current = None
            with self._lock:
                self.held -= size
            del job  # what it holds is freed before the next one arrives


def attempt(work: Callable[[], _Result]) -> _Result:
    """The result of `work` for one request; whatever it raises is an error of that request alone. Raises
    SpecllamaError.
    """
    try:
        return work()
    except SpecllamaError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise EngineError(f"{type(error).__name__} in the engine process: {error}") from error


def _outcome(work: Callable[[], object]) -> object:
    """The result of `work`, or the error that it raises: the thread must go on."""
    try:
        return attempt(work)
    except SpecllamaError as error:
        return error
