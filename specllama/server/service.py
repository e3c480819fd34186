"""What all requests share: the engine, through its supervisor, a limit on texts, the metrics.

Knows no HTTP. Everything runs in one event loop.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from specllama.client import protocol
from specllama.core.seeds import nth_seed
from specllama.errors import BusyError, ContextLengthError, ResourceError, SpecllamaError
from specllama.server.admission import QueueLimit
from specllama.server.metrics import Metrics, MetricsByOwner
from specllama.server.requests import CompletionSpec, RequestStream
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Supervisor

_GAUGE_SECONDS = 1.0  # that a scrape waits for the engine's own figures


class Service:
    """One model being served.

    created: seconds since the epoch. jobs: the requests in the engine. draining: no new request is accepted.
    """

    def __init__(self, settings: ServerSettings, supervisor: Supervisor) -> None:
        self.settings, self.supervisor = settings, supervisor
        self.created = int(time.time())
        self.jobs: set[RequestStream] = set()
        self.draining = False
        several = len(set(settings.keys)) > 1
        self.metrics = MetricsByOwner(settings.name, several)
        self._limit = QueueLimit(settings.load.n_slots, settings.queue, several)
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

    async def start(self, specs: Sequence[CompletionSpec], n: int = 1, place: str = "") -> RequestStream:
        """Start n texts of each spec, with different seeds. place: earlier requests of the same owner with
        the same place, which the client needs no longer, end with the text that they have, unless this one
        only evaluates its prompt; "" for none.

        Raises ContextLengthError for too many ids, BusyError if too many texts wait already, EngineDiedError
        without an engine, ResourceError while the server shuts down.
        """
        texts = [text for spec in specs for text in _choices(spec, n)]
        self._check_accepting(texts)
        client = await self.supervisor.client()
        self._check_fit(specs)
        self._check_accepting(texts)  # again: other requests may have started meanwhile
        info = self.supervisor.info
        metrics = self.metrics.counting(texts[0].request.owner)
        end_ids, owner = frozenset(info.end_ids), texts[0].request.owner
        job = RequestStream(texts, metrics, self._ended, end_ids, info.call_format, place)
        if place and not texts[0].request.warm:
            for older in [other for other in self.jobs if (other.owner, other.place) == (owner, place)]:
                older.end_early()
        self.jobs.add(job)
        job.start(client)
        return job

    def end_all(self, error: SpecllamaError) -> None:
        """End all requests with this error."""
        for job in list(self.jobs):
            job.fail(error)

    async def read_metrics(self, owner: str) -> Metrics:
        """The figures that an owner may read, with gauges of this moment; those that the engine does not
        report in time stay as they are.
        """
        found, problem = self.metrics.of(owner), self.supervisor.problem
        found.up.set(not problem)
        found.restarts.set(self.supervisor.restarts)
        found.slots.set(self.n_slots)
        own = [job for job in self.jobs if job.owner == owner]
        n_waiting = sum(job.n_waiting for job in own)
        n_running = sum(job.n_open for job in own) - n_waiting
        if found is self.metrics.all:
            n_running = min(self.n_open, self.n_slots)
            n_waiting = self.n_open - n_running
        found.running.set(n_running)
        found.waiting.set(n_waiting)
        if found is self.metrics.all and not problem:
            with contextlib.suppress(SpecllamaError, TimeoutError):
                state = await self.supervisor.query(protocol.GetSlots, protocol.Slots, _GAUGE_SECONDS)
                found.kv.set(state.n_used / max(1, state.n_ctx))
        return found

    def _check_accepting(self, texts: Sequence[CompletionSpec]) -> None:
        """Raises ResourceError while the server shuts down, BusyError if these texts are too many."""
        if self.draining:
            raise ResourceError("the server is shutting down", "ask again when it is back")
        owner, n_open = texts[0].request.owner, Counter[str]()
        for job in self.jobs:
            n_open[job.owner] += job.n_open
        n_waiting = sum(job.n_waiting for job in self.jobs if job.owner == owner)
        problem = self._limit.problem(n_open, n_waiting, len(texts))
        if problem:
            for metrics in self.metrics.counting(owner):
                metrics.refused.inc()
            raise BusyError(problem, "ask again later", {"retry_after": self.retry_after})

    def _check_fit(self, specs: Sequence[CompletionSpec]) -> None:
        """Raises ContextLengthError for ids that the context cannot hold; the engine checks texts."""
        n_ctx = self.supervisor.info.n_ctx
        longest = max((len(spec.request.ids or ()) for spec in specs), default=0)
        if longest >= n_ctx:
            raise ContextLengthError(
                f"the prompt has {longest} tokens, which exceeds the available context size of {n_ctx}",
                details={"n_prompt_tokens": longest, "n_ctx": n_ctx},
            )

    def _ended(self, job: RequestStream) -> None:
        """The engine has ended all texts of a request."""
        self.jobs.discard(job)
        self._mean_seconds += 0.2 * (job.seconds - self._mean_seconds)


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
