"""Limits how many texts may run or wait in the engines, in all and per owner. Knows no engine and no HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from specllama.errors import BusyError, ResourceError, SpecllamaError
from specllama.server.requests import RequestStream
from specllama.wording import counted

MAX_HELD = 64 * 1024 * 1024  # bytes of all requests that wait for their models
RESERVED = 4  # the last 1/4 of the queue is kept for owners that have nothing waiting


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """n_slots: texts that run at once. size: texts that may wait. several: whether there is more than one
    owner; a single owner may use the whole queue.
    """

    n_slots: int
    size: int
    several: bool = False

    @property
    def max_open(self) -> int:
        """Texts that may run or wait."""
        return self.n_slots + self.size

    @property
    def n_reserved(self) -> int:
        """Queue places reserved for owners that have nothing waiting."""
        return self.size // RESERVED if self.several else 0

    def problem(self, n_open: Mapping[str, int], n_waiting: int, n: int) -> str:
        """Why a request for n more texts is refused, "" if it is accepted. n_open: texts running or waiting,
        by owner. n_waiting: the requesting owner's waiting texts.

        A request of any size is accepted while nothing is open. However many texts an owner has open, the
        reserved places stay available to the others.
        """
        n_all, n_shared = sum(n_open.values()), self.max_open - self.n_reserved
        if not n_all:
            return ""
        n_counted = sum(min(one, n_shared) for one in n_open.values()) + n
        if n_counted > self.max_open:
            return f"{counted(n_all, 'text')} running or waiting, at most {self.max_open} can be"
        if n_waiting and n_counted > n_shared:
            return (
                f"this key has {counted(n_waiting, 'text')} waiting, and the last {self.n_reserved} of "
                f"{self.size} places in the queue are kept for keys that have none"
            )
        return ""


class Admission:
    """The open requests of a server, for all its models. draining: refuses new requests."""

    def __init__(self, limit: QueueLimit) -> None:
        self.limit = limit
        self.requests: set[RequestStream] = set()
        self.draining = False
        self._mean_seconds = 1.0  # of a request, moving average

    @property
    def n_open(self) -> int:
        """Texts that run or wait."""
        return sum(request.n_open for request in self.requests)

    @property
    def retry_after(self) -> int:
        """Estimated seconds until a slot is free, from 1 to 60."""
        waiting = max(1, self.n_open - self.limit.n_slots + 1)
        return max(1, min(60, round(self._mean_seconds * waiting / self.limit.n_slots)))

    def check(self, owner: str, n: int, n_bytes: int = 0) -> None:
        """Raises ResourceError while the server shuts down, and BusyError if n more texts of this owner are
        too many or too large. n_bytes: size of a request that must wait for its model, 0 for others.
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

    def ended(self, request: RequestStream) -> None:
        """Record the end of a request."""
        self.requests.discard(request)
        self._mean_seconds += 0.2 * (request.seconds - self._mean_seconds)

    def end_all(self, error: SpecllamaError) -> None:
        """End all requests with this error."""
        for request in list(self.requests):
            request.fail(error)
