"""Leases of a model: waiting for it, using it, and when it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import EngineDiedError, ResourceError
from specllama.server.dialects.llama_server.routes import slots
from specllama.server.supervisor import ModelLease, Supervisor


def in_loop(test: Callable[[ModelLease], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            await test(ModelLease())

    asyncio.run(run())


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_open_wakes_all_waiters_and_close_makes_later_ones_wait() -> None:
    async def test(one: ModelLease) -> None:
        changes: list[int] = []
        one.on_change = lambda: changes.append(one.n_users)
        waiting = [asyncio.create_task(one.acquire()) for _ in range(3)]
        await settle()
        assert (one.n_users, one.waiting_since is None, len(changes)) == (0, False, 3)
        one.open()
        assert (one.n_users, one.waiting_since) == (3, None)
        await asyncio.gather(*waiting)
        await one.acquire()
        one.close()
        late = asyncio.create_task(one.acquire())
        await settle()
        assert (one.n_users, late.done()) == (4, False)
        for _ in range(4):
            one.release()
        assert one.n_users == 0
        assert changes[-1] == 0
        late.cancel()
        await settle()
        assert one.waiting_since is None

    in_loop(test)


def test_a_model_that_leaves_the_memory_is_not_loading() -> None:
    one = Supervisor(LoadSettings(target=ModelSettings(path="m.gguf")), print)
    assert one.problem == "", "unloaded"
    one.lease.state = "loading"
    assert one.problem == "the model is loading"
    one.lease.state = "loaded"
    one.lease.open()
    one.lease.close()
    assert one.problem == one.public_problem == ""


def test_waiting_since_is_the_arrival_of_the_first_waiter() -> None:
    async def test(one: ModelLease) -> None:
        first = asyncio.create_task(one.acquire())
        await settle()
        since = one.waiting_since
        await asyncio.sleep(0.01)
        second = asyncio.create_task(one.acquire())
        await settle()
        assert one.waiting_since == since
        first.cancel()
        await settle()
        assert since is not None
        assert one.waiting_since is not None
        assert one.waiting_since > since
        second.cancel()

    in_loop(test)


def test_every_waiter_gets_the_error() -> None:
    async def test(one: ModelLease) -> None:
        waiting = [asyncio.create_task(one.acquire()) for _ in range(2)]
        await settle()
        one.fail_waiters(ResourceError("too large", details={"n": 1}))
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in errors] == [ResourceError] * 2
        assert errors[0] is not errors[1]
        assert str(errors[0]) == "too large"
        assert one.waiting_since is None

    in_loop(test)


def test_a_waiter_cancelled_as_it_is_woken_releases_its_lease() -> None:
    async def test(one: ModelLease) -> None:
        waiting = asyncio.create_task(one.acquire())
        await settle()
        one.open()
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        assert one.n_users == 0

    in_loop(test)


def test_idle_time_begins_with_the_last_release() -> None:
    async def test(one: ModelLease) -> None:
        one.state, one.idle_seconds = "loaded", 5.0
        one.open()
        async with one.acquired():
            assert one.idle_at is None
        assert one.idle_at == pytest.approx(asyncio.get_running_loop().time() + 5.0, abs=1.0)
        one.idle_seconds = None
        assert one.idle_at is None
        one.idle_seconds, one.state = 5.0, "unloaded"
        assert one.idle_at is None

    in_loop(test)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_slots_of_a_model_that_is_being_unloaded_are_none(when: str) -> None:
    async def test(one: ModelLease) -> None:
        one.state = "loaded"
        one.open()
        assert one.has_engine

        async def engine() -> None:
            one.close()
            raise EngineDiedError("the engine does not answer")

        async def find_model(_name: None) -> None:
            pass  # it is not damaged

        if when == "before":
            one.close()
        service, supervisor = SimpleNamespace(lease=one), SimpleNamespace(engine=engine)
        api: Any = SimpleNamespace(service=service, supervisor=supervisor, find_model=find_model)
        assert (await slots(api)).body == b"[]"
        one.state = "loading"
        with pytest.raises(EngineDiedError):
            await slots(api)

    in_loop(test)
