"""Who may use a model, who waits for it, and when it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from specllama.errors import ResourceError
from specllama.server.residence import Residence


def in_loop(test: Callable[[Residence], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            await test(Residence())

    asyncio.run(run())


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_those_who_wait_enter_together() -> None:
    async def test(one: Residence) -> None:
        changes: list[int] = []
        one.on_change = lambda: changes.append(one.n_users)
        waiting = [asyncio.create_task(one.enter()) for _ in range(3)]
        await settle()
        assert (one.n_users, one.waiting_since is None, len(changes)) == (0, False, 3)
        one.open()
        assert (one.n_users, one.waiting_since) == (3, None)
        await asyncio.gather(*waiting)
        await one.enter()
        one.close()
        late = asyncio.create_task(one.enter())
        await settle()
        assert (one.n_users, late.done()) == (4, False)
        for _ in range(4):
            one.leave()
        assert one.n_users == 0
        assert changes[-1] == 0
        late.cancel()
        await settle()
        assert one.waiting_since is None

    in_loop(test)


def test_the_first_to_come_is_the_one_that_counts() -> None:
    async def test(one: Residence) -> None:
        first = asyncio.create_task(one.enter())
        await settle()
        since = one.waiting_since
        await asyncio.sleep(0.01)
        second = asyncio.create_task(one.enter())
        await settle()
        assert one.waiting_since == since
        first.cancel()
        await settle()
        assert since is not None
        assert one.waiting_since is not None
        assert one.waiting_since > since
        second.cancel()

    in_loop(test)


def test_an_error_reaches_each_of_those_who_wait() -> None:
    async def test(one: Residence) -> None:
        waiting = [asyncio.create_task(one.enter()) for _ in range(2)]
        await settle()
        one.refuse(ResourceError("too large", details={"n": 1}))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [ResourceError] * 2
        assert found[0] is not found[1]
        assert str(found[0]) == "too large"
        assert one.waiting_since is None

    in_loop(test)


def test_one_who_leaves_as_the_door_opens_is_no_user() -> None:
    async def test(one: Residence) -> None:
        waiting = asyncio.create_task(one.enter())
        await settle()
        one.open()
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        assert one.n_users == 0

    in_loop(test)


def test_idle_time_begins_when_the_last_one_has_left() -> None:
    async def test(one: Residence) -> None:
        one.state, one.idle_seconds = "loaded", 5.0
        one.open()
        async with one.held():
            assert one.idle_at is None
        assert one.idle_at == pytest.approx(asyncio.get_running_loop().time() + 5.0, abs=1.0)
        one.idle_seconds = None
        assert one.idle_at is None
        one.idle_seconds, one.state = 5.0, "unloaded"
        assert one.idle_at is None

    in_loop(test)
