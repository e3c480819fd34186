"""The thread that prepares large requests."""

from __future__ import annotations

import queue
import threading
from typing import Any

from specllama.errors import EngineError, UsageError
from specllama.worker.intake import Job, Preparer

SOON = 30.0


class Held:
    """A preparer whose first job waits until `go`; the results of the others, in order."""

    def __init__(self) -> None:
        self.go, self.began = threading.Event(), threading.Event()
        self.results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.preparer = Preparer()
        self.submit({0}, 1, self._wait)
        assert self.began.wait(SOON)

    def _wait(self) -> str:
        self.began.set()
        self.go.wait(SOON)
        return "first"

    def submit(self, ids: set[int], size: int, work: Any) -> None:
        self.preparer.submit(ids, size, work, self._done)

    def _done(self, job: Job, result: object) -> None:
        self.preparer.release(job)
        self.results.put(result)

    def get(self, n: int) -> list[Any]:
        self.go.set()
        return [self.results.get(timeout=SOON) for _ in range(n)]


def test_the_smallest_runs_first() -> None:
    held = Held()
    for size in (30, 10, 20):
        held.submit({size}, size, lambda size=size: size)
    assert held.preparer.held == 61
    assert held.get(4) == ["first", 10, 20, 30]
    assert not held.preparer.busy


def test_a_cancelled_job_is_not_begun() -> None:
    held = Held()
    held.submit({1, 2}, 5, lambda: "cancelled")
    held.submit({3, 4}, 6, lambda: "wanted")
    assert [held.preparer.cancel(id_) for id_ in (1, 2, 3, 3, 9)] == [True, True, True, False, False]
    assert held.get(2) == ["first", "wanted"]
    assert not held.preparer.busy


def test_errors_are_results_and_the_thread_goes_on() -> None:
    def fail(error: Exception) -> None:
        raise error

    held = Held()
    held.submit({1}, 1, lambda: fail(UsageError("no")))
    held.submit({2}, 2, lambda: fail(ZeroDivisionError("oh")))
    held.submit({3}, 3, lambda: 3)
    _, refused, failed, last = held.get(4)
    assert (refused.message, last) == ("no", 3)
    assert isinstance(failed, EngineError)
    assert failed.message == "ZeroDivisionError in the engine process: oh"


def test_a_job_may_take_longer_the_larger_it_is() -> None:
    held = Held()
    assert held.preparer.hang is not None
    busy, allowed = held.preparer.hang
    assert busy < SOON
    assert 30 <= allowed < 31
    held.get(1)
