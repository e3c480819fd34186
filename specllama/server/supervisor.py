"""Keeps an engine process running: loads it, notices its end at once, starts another one with back-off.

Knows nothing of HTTP and of what is asked of the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import IO, TypeVar

from specllama.client import protocol as m
from specllama.client.loop_client import LoopClient
from specllama.config.load import LoadSettings
from specllama.errors import EngineDiedError, SpecllamaError

WAIT_SECONDS = 5.0  # that a request waits for an engine which is being started
SILENT_SECONDS = 10.0  # a living engine says something every half second
_DELAYS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # before a start, by the number of ends in a row
_LONG_LIFE = 60.0  # seconds after which an end is no longer in a row with those before
Say = Callable[[str], None]
_A = TypeVar("_A", m.Tokenized, m.Detokenized, m.Rendered, m.Slots)


class Supervisor:
    """One engine process after another. say: gets lines for the operator. log: where llama.cpp's log goes.

    restarts: how often one was started after the end of another.
    """

    def __init__(
        self,
        settings: LoadSettings,
        say: Say,
        log: IO[str] | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        self.settings = settings
        self.loaded: m.LoadInfo | None = None  # by the last engine
        self.restarts = 0
        self._say, self._log, self._progress = say, log, progress
        self._client: LoopClient | None = None
        self._ready = asyncio.Event()
        self._why: SpecllamaError | None = None  # there is no engine, but at the very beginning

    async def run(self) -> None:
        """Have an engine until cancelled. Raises what the first load raises."""
        loop, in_a_row = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                await self._live()
            except SpecllamaError as error:
                if self.loaded is None:
                    raise
                self._why = error
            in_a_row = 1 if loop.time() - began > _LONG_LIFE else in_a_row + 1
            delay = _DELAYS[min(in_a_row - 1, len(_DELAYS) - 1)]
            soon = f"in {delay:.0f} s" if delay else "now"
            self._say(
                f"{self._why.message if self._why else 'the engine ended'}; another one is started {soon}"
            )
            await asyncio.sleep(delay)
            self.restarts += 1

    async def started(self) -> None:
        """Wait until an engine is ready."""
        await self._ready.wait()

    async def client(self) -> LoopClient:
        """The engine; waits a little for one that is being started. Raises EngineDiedError."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise EngineDiedError(self.problem or "the engine does not answer") from None
        assert self._client is not None
        return self._client

    @property
    def problem(self) -> str:
        """What is wrong with the engine at this moment; "" where nothing is."""
        if self._client is None:
            return f"{self._why.message}; it is being started again" if self._why else "the model is loading"
        if (dead := self._client.dead) is not None:
            return dead.message
        silent = self._client.silent_for
        return f"the engine process has said nothing for {silent:.0f} s" if silent > SILENT_SECONDS else ""

    @property
    def info(self) -> m.LoadInfo:
        """What is loaded. Raises EngineDiedError before the first engine is ready."""
        if self.loaded is None:
            raise EngineDiedError(self.problem)
        return self.loaded

    async def ask(
        self, question: Callable[[int], m.Question], answer: type[_A], seconds: float | None = None
    ) -> _A:
        """The engine's answer, of this type, to a question (a function of its id). Raises what the engine
        says, TimeoutError after `seconds`.
        """
        client = await self.client()
        reply: asyncio.Future[m.Message | SpecllamaError] = asyncio.get_running_loop().create_future()

        def settle(message: m.Message | SpecllamaError) -> None:
            if not reply.done():
                reply.set_result(message)

        asked = client.submit(question(client.next_id()), settle)
        try:
            async with asyncio.timeout(seconds):
                found = await reply
        finally:
            asked.leave()
        if isinstance(found, SpecllamaError):
            raise found
        assert isinstance(found, answer)
        return found

    async def _live(self) -> None:
        """The life of one engine process. Raises why it ended."""
        ended = asyncio.Event()
        client = LoopClient(self._log, self._say, ended.set)
        try:
            verbose = self._log is not None
            info = await asyncio.to_thread(client.load, self.settings, self._progress, verbose, True)
            self.loaded, self._client = info, client
            self._ready.set()
            await ended.wait()
            raise client.dead or EngineDiedError("the engine process ended")
        finally:
            self._ready.clear()
            self._client = None
            await asyncio.shield(asyncio.to_thread(client.close))
