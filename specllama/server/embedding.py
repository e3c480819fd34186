"""Requests for vectors and scores: they wait in a queue of their own, apart from that of texts, since clients
send each piece of a document at once. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from specllama.client import protocol
from specllama.errors import BusyError, DeadlineError, ResourceError, UsageError
from specllama.server.service import SHUTTING_DOWN, Admission, Service

MAX_OPEN = 512  # requests that run or wait


class EmbeddingQueue:
    """The open requests for vectors of a server. admission: of its other requests, which counts these."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    @contextlib.contextmanager
    def place(self) -> Iterator[asyncio.Future[None]]:
        """A place in the queue; the future fails where the server ends before the request. Raises BusyError
        without a place, ResourceError while the server shuts down.
        """
        if self._admission.draining:
            raise ResourceError(SHUTTING_DOWN, "ask again when it is back")
        if len(self._admission.vectors) >= MAX_OPEN:
            busy = f"{MAX_OPEN} requests for vectors wait, and no more can"
            raise BusyError(busy, "ask again later", {"retry_after": 1})
        ended = asyncio.get_running_loop().create_future()
        self._admission.vectors.add(ended)
        try:
            yield ended
        finally:
            ended.cancel()
            self._admission.vectors.discard(ended)
            if self._admission.draining:
                self._admission.on_drain()

    async def answer(
        self, service: Service, order: protocol.Embed, gone: Callable[[], Awaitable[object]], seconds: float
    ) -> list[protocol.TextVectors] | None:
        """What a model makes of the texts of an order, in their order; loads the model. None if the client is
        gone before. gone: returns then. seconds: limit, 0 for none. Raises DeadlineError, what `place` and
        protocol.Embed raise, errors of the load, and EngineDiedError where the server ends before.
        """
        items: list[protocol.TextVectors] = []
        with self.place() as ended:
            asked = service.supervisor.collect(
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


def writes_texts(name: str, other: str) -> UsageError:
    """The error for a model that writes texts. other: name of the embedding model, "" without one."""
    hint = f"ask for {other}" if other else "start specllama serve with --embeddings MODEL"
    return UsageError(f"{name} writes texts, and makes no vectors: {hint}")


def makes_vectors(name: str, other: str) -> UsageError:
    """The reverse. other: name of the chat model, "" without one."""
    hint = f"ask for {other}" if other else "start specllama serve with -m MODEL"
    return UsageError(f"{name} makes vectors, and writes no texts: {hint}")
