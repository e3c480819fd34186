"""The queue of requests for vectors: its limits, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from specllama.client import protocol
from specllama.errors import BusyError, DeadlineError, EngineDiedError, ResourceError, UsageError
from specllama.server.service import MAX_VECTORS, Admission


class Engine:
    """Stands for a Supervisor. ended: whether the question was ended early."""

    def __init__(self, items: list[protocol.TextVectors] | None, error: Exception | None = None) -> None:
        self.items, self.error = items, error
        self.ended = False

    async def collect(self, asked: Callable[[int], Any], _kind: Any, take: Callable[[Any], None]) -> None:
        order = asked(7)
        try:
            if self.error is not None:
                raise self.error
            if self.items is None:
                await asyncio.Event().wait()
            take(protocol.Embedded(order.id, self.items or []))
        except asyncio.CancelledError:
            self.ended = True
            raise


async def never() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    await asyncio.sleep(0)


ORDER = protocol.Embed(0, ["a", "b"])
ITEMS = [protocol.TextVectors(1, 2, ["x"]), protocol.TextVectors(0, 2, ["y"])]


def queue_of() -> Admission:
    return Admission(1, 1)


def ask(engine: Engine, gone: Any = never, seconds: float = 0.0, queue: Admission | None = None) -> Any:
    made = (queue or queue_of()).embed(engine, ORDER, gone, seconds)  # type: ignore[arg-type]
    return asyncio.run(made)


def test_vectors_come_in_the_order_of_the_texts() -> None:
    admission = Admission(1, 1)
    assert ask(Engine(ITEMS), queue=admission) == [ITEMS[1], ITEMS[0]]
    assert not admission.vectors


def test_a_client_that_leaves_ends_its_request() -> None:
    engine = Engine(None)
    assert ask(engine, at_once) is None
    assert engine.ended


def test_a_request_that_takes_too_long() -> None:
    engine = Engine(None)
    with pytest.raises(DeadlineError, match="its limit"):
        ask(engine, seconds=0.01)
    assert engine.ended


def test_errors_of_the_engine_are_raised() -> None:
    with pytest.raises(UsageError, match="no"):
        ask(Engine(None, UsageError("no")))


def test_places_are_limited() -> None:
    full = Admission(1, 1)
    full.vectors = dict.fromkeys(range(MAX_VECTORS))  # type: ignore[assignment]
    with pytest.raises(BusyError) as raised:
        ask(Engine(ITEMS), queue=full)
    assert raised.value.details["retry_after"] == 1
    draining = Admission(1, 1)
    draining.draining = True
    with pytest.raises(ResourceError, match="shutting down"):
        ask(Engine(ITEMS), queue=draining)


def test_a_drain_waits_for_vectors() -> None:
    """It is said when the last request has ended."""
    admission, open_at = Admission(1, 1), list[int]()
    admission.on_drain = lambda: open_at.append(len(admission.vectors))
    left = asyncio.Event()

    async def drained() -> None:
        first, second = (
            asyncio.ensure_future(admission.embed(Engine(None), ORDER, gone, 0.0))  # type: ignore[arg-type]
            for gone in (left.wait, never)
        )
        while len(admission.vectors) < 2:
            await asyncio.sleep(0)
        admission.drain()
        left.set()
        assert await first is None
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)

    asyncio.run(drained())
    assert open_at == [2, 1, 0]


def test_a_server_that_ends_fails_what_is_left() -> None:
    admission, engine = Admission(1, 1), Engine(None)

    async def ended() -> None:
        left = asyncio.ensure_future(
            admission.embed(engine, ORDER, never, 0.0)  # type: ignore[arg-type]
        )
        while not admission.vectors:
            await asyncio.sleep(0)
        admission.end_all(EngineDiedError("shutting down"))
        with pytest.raises(EngineDiedError, match="shutting down"):
            await left

    asyncio.run(ended())
    assert engine.ended
    assert not admission.vectors
