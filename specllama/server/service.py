"""One served model: its engine (through its supervisor), requests and metrics; and limits of all requests.

Everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from specllama.client import protocol
from specllama.errors import BusyError, DeadlineError, ResourceError, SpecllamaError
from specllama.models.catalogue import CatalogueModel
from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.prefix_disk.scopes import OPEN, SHARED, scope_of
from specllama.server.metrics import Metrics, MetricsByOwner
from specllama.server.requests import RequestStream
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say, Supervisor
from specllama.wording import counted

SHUTTING_DOWN = "the server is shutting down"
MAX_HELD = 64 * 1024 * 1024  # bytes of all requests that wait for their models
MAX_VECTORS = 512  # requests for vectors that run or wait
RESERVED = 4  # the last 1/4 of the queue is kept for owners that have nothing waiting


class Admission:
    """The open requests of a server, for all its models. n_slots: completions that run at once. size: those
    that may wait. several: whether there is more than one owner; a single owner may use the whole queue.

    vectors: requests for vectors and scores, which have a queue of their own: clients send each piece of a
    document at once. draining: refuses new requests. on_drain: called by `drain`, and while draining whenever
    a request has ended.
    """

    def __init__(self, n_slots: int, size: int, several: bool = False) -> None:
        self._n_slots, self._size, self._max_open = n_slots, size, n_slots + size
        self._n_reserved = size // RESERVED if several else 0  # places for owners that have nothing waiting
        self.requests: set[RequestStream] = set()
        self.vectors: set[asyncio.Future[None]] = set()
        self.draining = False
        self.on_drain: Callable[[], None] = lambda: None
        self._mean_seconds = 1.0  # of a request, moving average

    @property
    def n_open(self) -> int:
        """Completions that run or wait."""
        return sum(request.n_open for request in self.requests)

    @property
    def retry_after(self) -> int:
        """Estimated seconds until a slot is free, from 1 to 60."""
        waiting = max(1, self.n_open - self._n_slots + 1)
        return max(1, min(60, round(self._mean_seconds * waiting / self._n_slots)))

    def problem(self, n_open: Mapping[str, int], n_waiting: int, n: int) -> str:
        """Why a request for n more completions is refused, "" if it is accepted. n_open: those running or
        waiting, by owner. n_waiting: the requesting owner's waiting ones.

        A request of any size is accepted while nothing is open. However many an owner has open, the
        reserved places stay available to the others.
        """
        n_all, n_shared = sum(n_open.values()), self._max_open - self._n_reserved
        if not n_all:
            return ""
        n_counted = sum(min(one, n_shared) for one in n_open.values()) + n
        if n_counted > self._max_open:
            return f"{counted(n_all, 'text')} running or waiting, at most {self._max_open} can be"
        if n_waiting and n_counted > n_shared:
            return (
                f"this key has {counted(n_waiting, 'text')} waiting, and the last {self._n_reserved} of "
                f"{self._size} places in the queue are kept for keys that have none"
            )
        return ""

    def check(self, owner: str, n: int, n_bytes: int = 0) -> None:
        """Raises ResourceError while the server shuts down, and BusyError if n more completions of this owner
        are too many or too large. n_bytes: size of a request that must wait for its model, 0 for others.
        """
        if self.draining:
            raise ResourceError(SHUTTING_DOWN, "ask again when it is back")
        n_open = Counter[str]()
        for request in self.requests:
            n_open[request.owner] += request.n_open
        n_waiting = sum(request.n_waiting for request in self.requests if request.owner == owner)
        problem = self.problem(n_open, n_waiting, n)
        if not problem and n_bytes and sum(r.n_held for r in self.requests) + n_bytes > MAX_HELD:
            problem = f"requests of more than {MAX_HELD >> 20} MiB wait for their models"
        if problem:
            raise BusyError(problem, "ask again later", {"retry_after": self.retry_after})

    def ended(self, request: RequestStream) -> None:
        self.requests.discard(request)
        self._mean_seconds += 0.2 * (request.seconds - self._mean_seconds)
        if self.draining:
            self.on_drain()

    def drain(self) -> None:
        self.draining = True
        self.on_drain()

    @contextlib.contextmanager
    def _place(self) -> Iterator[asyncio.Future[None]]:
        """A place for a request for vectors; the future fails where the server ends before it."""
        if self.draining:
            raise ResourceError(SHUTTING_DOWN, "ask again when it is back")
        if len(self.vectors) >= MAX_VECTORS:
            busy = f"{MAX_VECTORS} requests for vectors wait, and no more can"
            raise BusyError(busy, "ask again later", {"retry_after": 1})
        ended = asyncio.get_running_loop().create_future()
        self.vectors.add(ended)
        try:
            yield ended
        finally:
            ended.cancel()
            self.vectors.discard(ended)
            if self.draining:
                self.on_drain()

    async def embed(
        self,
        supervisor: Supervisor,
        order: protocol.Embed,
        gone: Callable[[], Awaitable[object]],
        seconds: float,
    ) -> list[protocol.TextVectors] | None:
        """What a model makes of an order's texts, in order; loads it. None if the client is gone before.
        gone: returns then. seconds: limit, 0 for none. Raises BusyError without a place, DeadlineError, what
        protocol.Embed raises, errors of the load, and EngineDiedError where the server ends before.
        """
        items: list[protocol.TextVectors] = []
        with self._place() as ended:
            asked = supervisor.collect(
                lambda id_: replace(order, id=id_), protocol.Embedded, lambda part: items.extend(part.items)
            )
            work = asyncio.ensure_future(asked)
            leaving = asyncio.ensure_future(gone())
            try:
                async with asyncio.timeout(seconds or None):
                    await asyncio.wait((work, leaving, ended), return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    ended.result()
                if not work.done():
                    return None
                work.result()
                return sorted(items)
            except TimeoutError:
                limit = f"the request took longer than {seconds:.0f} s, which is its limit"
                raise DeadlineError(limit) from None
            finally:
                for task in (work, leaving):
                    task.cancel()
                await asyncio.gather(work, leaving, return_exceptions=True)

    def end_all(self, error: SpecllamaError) -> None:
        for request in list(self.requests):
            request.fail(error)
        for ended in self.vectors:
            if not ended.done():
                ended.set_exception(error)


_GAUGE_SECONDS = 1.0  # longest wait of a scrape for the engine's own figures


class Service:
    """One served model.

    model: its location and catalogue entry. names: shown in lists, the preferred one first. created: seconds
    since the epoch. jobs: its requests that have not ended. admission: limits the requests of all models.
    """

    def __init__(
        self,
        settings: ServerSettings,
        model: CatalogueModel,
        names: Sequence[str],
        supervisor: Supervisor,
        admission: Admission,
    ) -> None:
        self.settings, self.model, self.names = settings, model, tuple(names)
        self.supervisor, self.admission = supervisor, admission
        self.lease = supervisor.lease
        self.created = int(time.time())
        self.jobs: set[RequestStream] = set()
        several = len(set(settings.keys)) > 1
        self.metrics: MetricsByOwner[Metrics] = MetricsByOwner(
            lambda owner: Metrics(self.name, owner), several
        )
        self._launches: dict[RequestStream, asyncio.Task[None]] = {}  # those that wait for the engine

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def n_open(self) -> int:
        return sum(job.n_open for job in self.jobs)

    @property
    def embeds(self) -> bool:
        return self.supervisor.settings.pooling is not None

    @property
    def n_slots(self) -> int:
        return 0 if self.embeds else self.settings.load.n_slots

    def start(self, job: RequestStream) -> None:
        """Start a request, which waits until the model is loaded, and raises errors of the load and of the
        engine, and EngineDiedError without one. Raises BusyError if too many completions are waiting,
        ResourceError while the server shuts down.
        """
        job.metrics, job.ended = self.metrics.counting(job.owner), self._ended
        try:
            self.admission.check(job.owner, job.n_completions, 0 if self.lease.is_open else job.n_held)
        except BusyError:
            for metrics in job.metrics:
                metrics.refused.inc()
            raise
        if job.supersedes and not job.requests[0].warm:
            same = (job.owner, job.supersedes)
            for older in [other for other in self.jobs if (other.owner, other.supersedes) == same]:
                older.end_early()
        self.jobs.add(job)
        self.admission.requests.add(job)
        launch = self._launches[job] = asyncio.create_task(self._launch(job))
        launch.add_done_callback(partial(self._launched, job))

    async def read_metrics(self, owner: str) -> Metrics:
        """The metrics that an owner may read. Gauges that are not reported in time keep their values."""
        metrics, problem = self.metrics.of(owner), self.supervisor.problem
        metrics.up.set(not problem)
        metrics.loaded.set(self.lease.state == "loaded")
        metrics.restarts.set(self.supervisor.restarts)
        metrics.slots.set(self.n_slots)
        own = [job for job in self.jobs if job.owner == owner]
        n_waiting = sum(job.n_waiting for job in own)
        n_running = sum(job.n_open for job in own) - n_waiting
        if metrics is self.metrics.all:
            n_running = min(sum(job.n_open for job in self.jobs if job.begun), self.n_slots)
            n_waiting = self.n_open - n_running
        metrics.running.set(n_running)
        metrics.waiting.set(n_waiting)
        if metrics is self.metrics.all and not problem and self.lease.is_open:
            with contextlib.suppress(SpecllamaError, TimeoutError):
                state = await self.supervisor.peek(protocol.GetSlots, protocol.Slots, _GAUGE_SECONDS)
                metrics.kv.set(state.n_used / max(1, state.n_ctx))
                metrics.states.set(state.n_states)
                metrics.state_bytes.set(state.state_bytes)
        return metrics

    async def _launch(self, job: RequestStream) -> None:
        """Submit a request once the model is loaded. Raises the reason if that is impossible."""
        await self.lease.acquire()
        try:
            client, info = await self.supervisor.engine(), self.supervisor.info
            job.start(client, frozenset(info.end_ids), info.answer_reader)
        except BaseException:
            self.lease.release()
            raise

    def _launched(self, job: RequestStream, launch: asyncio.Task[None]) -> None:
        self._launches.pop(job, None)
        if launch.cancelled() or (error := launch.exception()) is None:
            return
        if not isinstance(error, SpecllamaError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a request could not be started", "exception": error}
            )
            error = SpecllamaError("something unexpected went wrong")
        job.fail(error)

    def _ended(self, job: RequestStream) -> None:
        self.jobs.discard(job)
        self.admission.ended(job)
        if (launch := self._launches.pop(job, None)) is not None and not job.begun:
            launch.cancel()
        if job.begun:
            self.lease.release()


class DiskScopes:
    """Scopes of prompts on disk (prefix_disk/scopes.py) by the name of the owner. A key whose scope needs the
    secret of the cache directory has none if that directory cannot be used: its prompts are not kept. say:
    gets a line then.
    """

    def __init__(self, settings: ServerSettings, say: Say) -> None:
        self._common = SHARED if settings.share_cache else "" if settings.keys else OPEN
        self._own: dict[str, str] = {}
        if self._common or not (settings.load.cache_disk or settings.slot_save_path):
            return
        directory = StateDirectory(default_directory(), say)
        try:
            directory.open(create=True)
        except OSError as error:
            why = error.strerror or str(error)
            say(f"prompts are not kept on disk: {directory.path}: {why}")
            return
        for i, key in enumerate(settings.keys, 1):
            self._own[f"key {i}"] = scope_of(key, directory.secret)

    def of(self, owner: str) -> str:
        """The scope of an owner, "" for none."""
        return self._common or self._own.get(owner, "")

    def folder(self, owner: str) -> str | None:
        """The directory of an owner's saved slots: "" for the common one, None if there can be none."""
        return "" if self._common else self._own.get(owner)
