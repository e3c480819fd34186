"""How many texts may be open in the engines, and how many of one owner. Knows no engine and no HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from specllama.errors import BusyError, ResourceError, SpecllamaError
from specllama.wording import counted

MAX_HELD = 64 * 1024 * 1024  # bytes of all requests that wait for their models
KEPT = 4  # the last 1/4 of the queue is kept for owners that have nothing waiting


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """n_slots: texts that run at once. size: texts that may wait. several: whether there is more than one
    owner; a single one may use the whole queue.
    """

    n_slots: int
    size: int
    several: bool = False

    @property
    def n_most(self) -> int:
        """Texts that may run or wait."""
        return self.n_slots + self.size

    @property
    def n_kept(self) -> int:
        """Places of the queue for owners with nothing waiting."""
        return self.size // KEPT if self.several else 0

    def problem(self, n_open: Mapping[str, int], n_waiting: int, n: int) -> str:
        """Why a request for n more texts is refused, "" where it is not. n_open: texts running
        and waiting, by owner. n_waiting: texts of the owner that asks that wait.

        If nothing is open, a request of any number of texts is accepted. However many they are, they leave
        the kept places to the other owners.
        """
        n_all, n_shared = sum(n_open.values()), self.n_most - self.n_kept
        if not n_all:
            return ""
        n_counted = sum(min(one, n_shared) for one in n_open.values()) + n
        if n_counted > self.n_most:
            return f"{counted(n_all, 'text')} running or waiting, at most {self.n_most} can be"
        if n_waiting and n_counted > n_shared:
            return (
                f"this key has {counted(n_waiting, 'text')} waiting, and the last {self.n_kept} of "
                f"{self.size} places in the queue are kept for keys that have none"
            )
        return ""


class OpenRequest(Protocol):
    """A request that has not ended. n_open: its texts that have not; n_waiting: those that wait. n_held:
    bytes
    of it that wait for their model.
    """

    @property
    def owner(self) -> str: ...

    @property
    def n_open(self) -> int: ...

    @property
    def n_waiting(self) -> int: ...

    @property
    def n_held(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Since it began."""
        ...

    def fail(self, error: SpecllamaError) -> None:
        """End it with an error."""
        ...


class Admission:
    """The open requests of a server, whatever their models. draining: no new one is accepted."""

    def __init__(self, limit: QueueLimit) -> None:
        self.limit = limit
        self.requests: set[OpenRequest] = set()
        self.draining = False
        self._mean_seconds = 1.0  # of a request, moving average

    @property
    def n_open(self) -> int:
        """Texts that run or wait."""
        return sum(request.n_open for request in self.requests)

    @property
    def retry_after(self) -> int:
        """Seconds after which a slot is likely to be free."""
        waiting = max(1, self.n_open - self.limit.n_slots + 1)
        return max(1, min(60, round(self._mean_seconds * waiting / self.limit.n_slots)))

    def check(self, owner: str, n: int, n_bytes: int = 0) -> None:
        """Raises ResourceError while the server shuts down, BusyError if n more texts of an owner are too
        many, or too large. n_bytes: of a request that must wait for its model.
        """
        if self.draining:
            raise ResourceError("the server is shutting down", "ask again when it is back")
        n_open = Counter[str]()
        for request in self.requests:
            n_open[request.owner] += request.n_open
        n_waiting = sum(request.n_waiting for request in self.requests if request.owner == owner)
        problem = self.limit.problem(n_open, n_waiting, n)
        if not problem and n_bytes and sum(r.n_held for r in self.requests) + n_bytes > MAX_HELD:
            problem = f"requests of more than {MAX_HELD >> 20} MiB wait for their models"
        if problem:
            raise BusyError(problem, "ask again later", {"retry_after": self.retry_after})

    def ended(self, request: OpenRequest) -> None:
        """A request has ended."""
        self.requests.discard(request)
        self._mean_seconds += 0.2 * (request.seconds - self._mean_seconds)

    def end_all(self, error: SpecllamaError) -> None:
        """End all requests with this error."""
        for request in list(self.requests):
            request.fail(error)
