"""What requests share: the engine behind its supervisor, places for a bounded number of texts, the metrics.

Knows no HTTP. Everything runs in one event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from specllama.core.seeds import nth_seed
from specllama.errors import BusyError, ResourceError, SpecllamaError
from specllama.server.metrics import Metrics
from specllama.server.requests import CompletionSpec, RequestStream
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Supervisor


class Service:
    """One model being served. draining: nothing new is let in."""

    def __init__(self, settings: ServerSettings, supervisor: Supervisor, metrics: Metrics) -> None:
        self.settings, self.supervisor, self.metrics = settings, supervisor, metrics
        self.draining = False
        self.jobs: set[RequestStream] = set()
        self._took = 1.0  # seconds, moving average over requests

    @property
    def n_open(self) -> int:
        """Texts that run or wait in the engine."""
        return sum(job.n_open for job in self.jobs)

    @property
    def n_slots(self) -> int:
        return self.settings.load.n_slots

    @property
    def retry_after(self) -> int:
        """Seconds after which a place is likely to be free."""
        waiting = max(1, self.n_open - self.n_slots + 1)
        return max(1, min(60, round(self._took * waiting / self.n_slots)))

    async def start(self, prompts: Sequence[CompletionSpec], n: int = 1) -> RequestStream:
        """Hand in n texts of each prompt, with seeds of their own. Raises BusyError where too many wait
        already, EngineDiedError without an engine.
        """
        wanted = [each for prompt in prompts for each in _choices(prompt, n)]
        self._refuse_new()
        self._check_room(len(wanted))
        client = await self.supervisor.client()
        self._refuse_new()
        self._check_room(len(wanted))
        job = RequestStream(wanted, self.metrics, self._ended, frozenset(self.supervisor.info.end_ids))
        self.jobs.add(job)
        self.metrics.update_open(self.n_open, self.n_slots)
        job.start(client)
        return job

    def end_all(self, error: SpecllamaError) -> None:
        """Whoever waits for an answer gets this error instead."""
        for job in list(self.jobs):
            job.fail(error)

    def _refuse_new(self) -> None:
        if self.draining:
            raise ResourceError("the server is shutting down", "ask again when it is back")

    def _check_room(self, n: int) -> None:
        if self.n_open and self.n_open + n > self.n_slots + self.settings.queue:
            self.metrics.refused.inc()
            most = self.n_slots + self.settings.queue
            said = f"{self.n_open} texts are being written or wait, {most} are the most"
            raise BusyError(said, "ask again later", {"retry_after": self.retry_after})

    def _ended(self, job: RequestStream) -> None:
        """All texts of a job have ended in the engine."""
        self.jobs.discard(job)
        self._took += 0.2 * (job.seconds - self._took)
        self.metrics.update_open(self.n_open, self.n_slots)


def _choices(prompt: CompletionSpec, n: int) -> list[CompletionSpec]:
    """The prompt n times; choice i has the i-th seed made of the request's."""
    params = prompt.request.params
    if n == 1:
        return [prompt]
    seed = params["seed"] if params.get("seed") is not None else secrets.randbits(32)
    return [
        replace(prompt, request=replace(prompt.request, params={**params, "seed": nth_seed(seed, i)}))
        for i in range(n)
    ]
