"""Runs the engine process of a model: loads it, detects its end at once, restarts it with back-off."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, BinaryIO, Literal, TypeVar

from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.config.load import LoadSettings
from specllama.errors import EngineDiedError, SpecllamaError
from specllama.regular_file import open_regular

DELAYS = (0.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds from the first, second, ... consecutive failure to the next attempt."""


class LoadBackoff:
    """Counts the consecutive failed loads of one model."""

    def __init__(self) -> None:
        self._n_failures = 0
        self._until = 0.0
        self._why = ""

    def failed(self, error: SpecllamaError, now: float) -> None:
        """Record a failed load at this time, in seconds of any clock."""
        self._n_failures += 1
        self._until = now + DELAYS[min(self._n_failures, len(DELAYS)) - 1]
        self._why = error.message

    def succeeded(self) -> None:
        self._n_failures = 0

    def refusal(self, now: float) -> SpecllamaError | None:
        """For a request before the next attempt, None after. `details["retry_after"]`: seconds until then."""
        left = math.ceil(self._until - now)
        if not self._n_failures or left <= 0:
            return None
        return EngineDiedError(
            f"the last {self._n_failures} loads failed, and it is tried again in {left} s: {self._why}",
            details={"retry_after": left},
        )


State = Literal["unloaded", "loading", "loaded"]


class ModelLease:
    """Counts the users of one model, which stays loaded while there are any.

    on_change: called when a waiter arrives or gives up, and when the last user releases the model. state: of
    the model. is_open: whether `acquire` returns at once. n_users: requests and queries that have acquired
    it. used_at: time of the last release.
    idle_seconds: time without users after which it is unloaded, None for never.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.state: State = "unloaded"
        self.n_users = 0
        self.used_at = 0.0
        self.idle_seconds: float | None = None
        self.is_open = False
        self._waiters: dict[asyncio.Future[None], float] = {}  # to the time of arrival, in this order

    @property
    def has_engine(self) -> bool:
        """Whether the model is loaded or loading, and is not being unloaded."""
        return self.is_open or self.state == "loading"

    @property
    def waiting_since(self) -> float | None:
        """When the first waiter arrived, None without waiters; seconds of the event loop."""
        return next(iter(self._waiters.values()), None)

    @property
    def idle_at(self) -> float | None:
        """When the model is due to be unloaded, None if it is in use, has waiters or never is."""
        if self.state != "loaded" or self.n_users or self._waiters or self.idle_seconds is None:
            return None
        return self.used_at + self.idle_seconds

    @property
    def expires_in(self) -> float | None:
        """Seconds until the model is unloaded unless a request uses it before, None for never."""
        if self.state != "loaded" or self.idle_seconds is None:
            return None
        at = self.idle_at
        now = asyncio.get_running_loop().time()
        return self.idle_seconds if at is None else max(0.0, at - now)

    async def acquire(self) -> None:
        """Wait for the model, which then stays loaded until `release`. Raises the error of its load."""
        if self.is_open:
            self.n_users += 1
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = loop.time()
        self.on_change()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()
            raise
        finally:
            if self._waiters.pop(waiter, None) is not None:
                self.on_change()

    def release(self) -> None:
        self.n_users -= 1
        self.used_at = asyncio.get_running_loop().time()
        if not self.n_users:
            self.on_change()

    @asynccontextmanager
    async def acquired(self) -> AsyncIterator[None]:
        await self.acquire()
        try:
            yield
        finally:
            self.release()

    def open(self) -> None:
        """Wakes all waiters; later acquires return at once."""
        self.is_open = True
        for waiter in list(self._waiters):
            del self._waiters[waiter]
            if not waiter.done():
                self.n_users += 1
                waiter.set_result(None)

    def close(self) -> None:
        """Makes later acquires wait. Requests that have acquired the model keep it."""
        self.is_open = False

    def fail_waiters(self, error: SpecllamaError) -> None:
        for waiter in list(self._waiters):
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_exception(SpecllamaError.from_dict(error.to_dict()))


# Detects changes of the files of a loaded model.
#
# llama.cpp maps them: overwriting a file in place changes the weights in memory, and so the answers.
# Replacing a file by another (as downloads do) leaves the mapped one intact.


_BLOCKS, _BLOCK_BYTES = 64, 4096  # compared if the modification time has changed
_FIRST_PART = re.compile(r"(.*)-00001-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(slots=True)
class _File:
    path: str
    file: BinaryIO
    written: tuple[int, int]  # bytes, time of the last change
    digest: bytes


class LoadedFiles:
    """The files of a load, opened before it; it reports itself those that cannot be opened."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._files: list[_File] = []
        for path in paths:
            with contextlib.suppress(OSError):
                file = open_regular(path, buffering=0)
                self._files.append(_File(path, file, _written(file), _digest(file)))

    def close(self) -> None:
        for one in self._files:
            one.file.close()

    def changed(self) -> str | None:
        """The path of a file that was changed in place, by content and not by its time alone; None: none."""
        for one in self._files:
            with contextlib.suppress(OSError):
                now = _written(one.file)
                if now == one.written:
                    continue
                if now[0] != one.written[0] or _digest(one.file) != one.digest:
                    return one.path
                one.written = now
        return None


def files_of(settings: LoadSettings) -> Iterator[str]:
    """The files of target, draft and adapters, with all parts of split files."""
    for model in filter(None, (settings.target, settings.draft)):
        first = _FIRST_PART.fullmatch(model.path)
        n_parts = int(first[2]) if first is not None else 1
        yield model.path
        if first is not None:
            yield from (f"{first[1]}-{i:05d}-of-{n_parts:05d}.gguf" for i in range(2, n_parts + 1))
        yield from (path for path, _ in model.lora)


def _written(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _digest(file: BinaryIO) -> bytes:
    """Of blocks spread evenly over the file, the first and the last included."""
    size, digest = os.fstat(file.fileno()).st_size, hashlib.sha256()
    for i in range(_BLOCKS):
        at = i * max(0, size - _BLOCK_BYTES) // (_BLOCKS - 1)
        file.seek(at)
        digest.update(file.read(_BLOCK_BYTES))
    return digest.digest()


WAIT_SECONDS = 5.0  # longest wait of a request for an engine that is starting
HEARTBEAT_TIMEOUT_SECONDS = 10.0  # the engine sends a heartbeat every half second
_DELAYS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before a restart, by the number of consecutive failures
CHECK_SECONDS = 2.0  # between two checks of the files of a loaded model
_LONG_LIFE = 60.0  # seconds; an engine that ran longer resets the number of failures
Say = Callable[[str], None]
Answer = TypeVar("Answer", bound=protocol.Answer)


class Supervisor:
    """Runs engine processes of one model, one after another, while it is loaded.

    say: gets lines for the operator. label: their prefix. log: gets llama.cpp's log. lease: of the model.
    loaded: reported by the latest engine, None before the first; kept when the model is unloaded. loading:
    (part, loaded share of it) during a load, None otherwise. restarts: engine processes started after another
    one ended; loads: successful loads. yields, reserved: see
    protocol.Load.
    """

    def __init__(
        self,
        settings: LoadSettings,
        say: Say,
        log: IO[str] | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        self.settings, self.lease = settings, ModelLease()
        self.loaded: LoadInfo | None = None
        self.loading: tuple[str, float] | None = None
        self.restarts = self.loads = 0
        self.label, self.yields, self.reserved = "", False, 0
        self._say, self._log, self._progress = say, log, progress
        self._client: EngineClient | None = None
        self._ready = asyncio.Event()
        self._why: SpecllamaError | None = None  # why the last engine ended

    async def run(self) -> None:
        """Keep an engine running until cancelled. Raises the error of the first load. May be called again."""
        loop, n_failures, n_loads = asyncio.get_running_loop(), 0, self.loads
        self._why = None
        while True:
            began = loop.time()
            try:
                await self._run_once()
            except SpecllamaError as error:
                if self.loads == n_loads:
                    raise
                self._why = error
            n_failures = 1 if loop.time() - began > _LONG_LIFE else n_failures + 1
            delay = _DELAYS[min(n_failures - 1, len(_DELAYS) - 1)]
            soon = f"in {delay:.0f} s" if delay else "now"
            why = " ".join(str(self._why).split()) if self._why else "the engine ended"
            self._say(f"{self.label}{why}; another one is started {soon}")
            await asyncio.sleep(delay)
            self.restarts += 1

    async def started(self) -> None:
        await self._ready.wait()

    @property
    def pid(self) -> int | None:
        return self._client.pid if self._client is not None else None

    async def client(self) -> EngineClient:
        """The client of the engine; loads the model. Raises EngineDiedError, and errors of the load."""
        async with self.lease.acquired():
            return await self.engine()

    async def engine(self) -> EngineClient:
        """Waits up to WAIT_SECONDS for an engine that is starting. Raises EngineDiedError."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise EngineDiedError(self.problem or "the engine does not answer") from None
        assert self._client is not None
        return self._client

    @property
    def problem(self) -> str:
        """The problem now, "" for none and for a model that is unloaded, or just being unloaded. For the
        operator and clients with a key.
        """
        public = self.public_problem
        if self._client is None and self._why is not None and public:
            return f"{self._why.message}; it is being started again"
        dead = self._client.dead if self._client is not None else None
        return dead.message if dead is not None and public else public

    @property
    def public_problem(self) -> str:
        """`problem` for everybody: without file names and quoted text."""
        if not self.lease.has_engine:
            return ""
        if self._client is None:
            return "the engine ended; it is being started again" if self._why else "the model is loading"
        if self._client.dead is not None:
            return "the engine process ended"
        quiet = self._client.silent_for
        return (
            f"the engine process has sent nothing for {quiet:.0f} s"
            if quiet > HEARTBEAT_TIMEOUT_SECONDS
            else ""
        )

    @property
    def info(self) -> LoadInfo:
        """The description of the latest load. Raises EngineDiedError before the first."""
        if self.loaded is None:
            raise EngineDiedError(self.problem or "the model is not in memory")
        return self.loaded

    async def load(self) -> LoadInfo:
        """The description of the latest load; loads a model that never was. Raises errors of the load."""
        if self.loaded is None:
            await self.client()
        return self.info

    async def query(self, question: Callable[[int], protocol.Question], answer: type[Answer]) -> Answer:
        """The engine's answer to a question; loads the model. question: creates the message from an id;
        answer: the type of the answer.

        Raises errors of the engine and of the load.
        """
        parts: list[Answer] = []
        await self.collect(question, answer, parts.append)
        return parts[-1]

    async def peek(
        self, question: Callable[[int], protocol.Question], answer: type[Answer], seconds: float | None = None
    ) -> Answer:
        """`query` without loading the model or keeping it loaded.

        Raises EngineDiedError without an engine, TimeoutError after `seconds`.
        """
        parts: list[Answer] = []
        if self._client is None:
            raise EngineDiedError(self.problem or "the model is not in memory")
        await self._collect(self._client, question, answer, parts.append, seconds)
        return parts[-1]

    async def collect(
        self,
        question: Callable[[int], protocol.Question],
        answer: type[Answer],
        take: Callable[[Answer], None],
    ) -> None:
        """Call `take` in the event loop with each part of the engine's answer as it arrives. See `query`."""
        async with self.lease.acquired():
            await self._collect(await self.engine(), question, answer, take)

    async def _collect(
        self,
        client: EngineClient,
        question: Callable[[int], protocol.Question],
        answer: type[Answer],
        take: Callable[[Answer], None],
        seconds: float | None = None,
    ) -> None:
        ended: asyncio.Future[SpecllamaError | None] = asyncio.get_running_loop().create_future()

        def settle(message: protocol.Message | SpecllamaError) -> None:
            if ended.done():
                return
            if isinstance(message, SpecllamaError):
                ended.set_result(message)
                return
            assert isinstance(message, answer)
            take(message)
            if not message.more:
                ended.set_result(None)

        submission = client.submit(question(client.next_id()), settle)
        try:
            async with asyncio.timeout(seconds):
                error = await ended
        finally:
            submission.discard()
        if error is not None:
            raise error

    async def _run_once(self) -> None:
        """Run one engine process to its end. Raises the error that ended it."""
        ended = asyncio.Event()
        files = await asyncio.to_thread(LoadedFiles, files_of(self.settings))  # before they are loaded
        client = EngineClient(self._log, self._say, ended.set, loop=asyncio.get_running_loop())
        try:
            verbose = self._log is not None
            given = self.yields, self.reserved
            load = partial(client.load, measure_when_idle=True, yields=given[0], reserved=given[1])
            info = await asyncio.to_thread(load, self.settings, self._load_progress, verbose)
            self.loading = None
            self.loaded, self._client = info, client
            self.loads += 1
            self._ready.set()
            await self._watch(client, files, ended)
            raise client.dead or EngineDiedError("the engine process ended")
        finally:
            self._ready.clear()
            self._client = self.loading = None
            files.close()
            await asyncio.shield(asyncio.to_thread(client.close))

    async def _watch(self, client: EngineClient, files: LoadedFiles, ended: asyncio.Event) -> None:
        """Wait for the end of the engine, and end it if a file of the model is overwritten."""
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await ended.wait()
            if not ended.is_set() and (path := await asyncio.to_thread(files.changed)) is not None:
                self._say(
                    f"{self.label}{path} was overwritten while it was in use; the model is loaded again"
                )
                client.end(EngineDiedError("the model's file was overwritten"))
                return

    def _load_progress(self, part: str, share: float) -> None:
        """Report the progress of a load, in the thread that loads."""
        self.loading = part, share
        if self._progress is not None:
            self._progress(part, share)
