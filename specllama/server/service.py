"""What all requests share: the engine, through its supervisor, a limit on texts, the metrics.

Knows no HTTP. Everything runs in one event loop.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from specllama.client import protocol
from specllama.core.seeds import nth_seed
from specllama.errors import BusyError, ResourceError, SpecllamaError
from specllama.server.metrics import Metrics
from specllama.server.requests import CompletionSpec, RequestStream
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Supervisor

_GAUGE_SECONDS = 1.0  # that a scrape waits for the engine's own figures


class Service:
    """One model being served.

    created: seconds since the epoch. jobs: the requests in the engine. draining: no new request is accepted.
    """

    def __init__(self, settings: ServerSettings, supervisor: Supervisor, metrics: Metrics) -> None:
        self.settings, self.supervisor, self.metrics = settings, supervisor, metrics
        self.created = int(time.time())
        self.jobs: set[RequestStream] = set()
        self.draining = False
        self._mean_seconds = 1.0  # of a request, moving average

    @property
    def n_open(self) -> int:
        """Texts that run or wait in the engine."""
        return sum(job.n_open for job in self.jobs)

    @property
    def n_slots(self) -> int:
        return self.settings.load.n_slots

    @property
    def retry_after(self) -> int:
        """Seconds after which a slot is likely to be free."""
        waiting = max(1, self.n_open - self.n_slots + 1)
        return max(1, min(60, round(self._mean_seconds * waiting / self.n_slots)))

    async def start(self, specs: Sequence[CompletionSpec], n: int = 1) -> RequestStream:
        """Start n texts of each spec, with different seeds.

        Raises BusyError if too many wait already, EngineDiedError without an engine, ResourceError while the
        server shuts down.
        """
        texts = [text for spec in specs for text in _choices(spec, n)]
        self._check_accepting(len(texts))
        client = await self.supervisor.client()
        self._check_accepting(len(texts))  # again: other requests may have started meanwhile
        end_ids = frozenset(self.supervisor.info.end_ids)
        job = RequestStream(texts, self.metrics, self._ended, end_ids)
        self.jobs.add(job)
        self.metrics.update_open(self.n_open, self.n_slots)
        job.start(client)
        return job

    def end_all(self, error: SpecllamaError) -> None:
        """End all requests with this error."""
        for job in list(self.jobs):
            job.fail(error)

    async def update_gauges(self) -> None:
        """Update the gauges of the engine; those that it does not report in time stay as they are."""
        problem = self.supervisor.problem
        self.metrics.up.set(not problem)
        self.metrics.restarts.set(self.supervisor.restarts)
        if problem:
            return
        with contextlib.suppress(SpecllamaError, TimeoutError):
            found = await self.supervisor.query(protocol.GetSlots, protocol.Slots, _GAUGE_SECONDS)
            self.metrics.kv.set(found.n_used / max(1, found.n_ctx))

    def _check_accepting(self, n: int) -> None:
        """Raises ResourceError while the server shuts down, BusyError if n more texts are too many."""
        if self.draining:
            raise ResourceError("the server is shutting down", "ask again when it is back")
        most = self.n_slots + self.settings.queue
        if self.n_open and self.n_open + n > most:
            self.metrics.refused.inc()
            problem = f"{self.n_open} texts are running or waiting, {most} are the most"
            raise BusyError(problem, "ask again later", {"retry_after": self.retry_after})

    def _ended(self, job: RequestStream) -> None:
        """The engine has ended all texts of a request."""
        self.jobs.discard(job)
        self._mean_seconds += 0.2 * (job.seconds - self._mean_seconds)
        self.metrics.update_open(self.n_open, self.n_slots)


def _choices(spec: CompletionSpec, n: int) -> list[CompletionSpec]:
    """The spec n times, with different seeds derived from the request's."""
    params = spec.request.params
    if n == 1:
        return [spec]
    seed = params["seed"] if params.get("seed") is not None else secrets.randbits(32)
    return [
        replace(spec, request=replace(spec.request, params={**params, "seed": nth_seed(seed, i)}))
        for i in range(n)
    ]
