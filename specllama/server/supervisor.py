"""Runs the engine process of a model: loads it, detects its end at once, restarts it with back-off.

Knows no HTTP and no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import IO, TypeVar

from specllama.client import protocol
from specllama.client.loop_client import LoopClient
from specllama.client.model_info import LoadInfo
from specllama.config.load import LoadSettings
from specllama.errors import EngineDiedError, SpecllamaError
from specllama.server.lease import ModelLease
from specllama.server.model_files import LoadedFiles, files_of

WAIT_SECONDS = 5.0  # longest wait of a request for an engine that is starting
HEARTBEAT_TIMEOUT_SECONDS = 10.0  # the engine sends a heartbeat every half second
_DELAYS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before a restart, by the number of consecutive failures
CHECK_SECONDS = 2.0  # between two checks of the files of a loaded model
_LONG_LIFE = 60.0  # seconds; an engine that ran longer resets the number of failures
Say = Callable[[str], None]
Answer = TypeVar(
    "Answer",
    protocol.Tokenized,
    protocol.Detokenized,
    protocol.Rendered,
    protocol.TokenCount,
    protocol.Slots,
    protocol.SlotDone,
)


class Supervisor:
    """Runs engine processes of one model, one after another, while it is loaded.

    say: gets lines for the operator. label: their prefix. log: gets llama.cpp's log. lease: of the model.
    loaded: reported by the latest engine, None before the first; kept when the model is unloaded. loading:
    (part, loaded share of it) during a load, None otherwise. restarts: engine processes started after another
    one ended; loads: successful loads.
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
        self.label = ""
        self._say, self._log, self._progress = say, log, progress
        self._client: LoopClient | None = None
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
        """Wait until an engine is ready."""
        await self._ready.wait()

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None without one."""
        return self._client.pid if self._client is not None else None

    async def client(self) -> LoopClient:
        """The client of the engine; loads the model. Raises EngineDiedError, and errors of the load."""
        async with self.lease.acquired():
            return await self.engine()

    async def engine(self) -> LoopClient:
        """The client of the engine of a loaded model; waits up to WAIT_SECONDS for one that is starting.
        Raises EngineDiedError.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise EngineDiedError(self.problem or "the engine does not answer") from None
        assert self._client is not None
        return self._client

    @property
    def problem(self) -> str:
        """What is wrong with the engine now, "" for nothing and for an unloaded model. For the operator and
        clients with a key.
        """
        public = self.public_problem
        if self._client is None and self._why is not None and public:
            return f"{self._why.message}; it is being started again"
        dead = self._client.dead if self._client is not None else None
        return dead.message if dead is not None and public else public

    @property
    def public_problem(self) -> str:
        """`problem` for everybody: without file names and quoted text."""
        if self.lease.state == "unloaded":
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
        client: LoopClient,
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
        client = LoopClient(self._log, self._say, ended.set)
        try:
            verbose = self._log is not None
            info = await asyncio.to_thread(client.load, self.settings, self._load_progress, verbose, True)
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

    async def _watch(self, client: LoopClient, files: LoadedFiles, ended: asyncio.Event) -> None:
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
