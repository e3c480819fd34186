"""Thinking in vain takes a bounded share of decoding, whatever it takes; where it pays nothing is missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.pace import SHARE, Pace
from specllama.core.ports import Proposal
from tests.core.test_planner import World

seconds = st.floats(1e-6, 1e-2)


@given(seconds, st.floats(1e-4, 1e-1), st.integers(1, 2000))
def test_thinking_in_vain_takes_its_share(taken: float, plain: float, n_rounds: int) -> None:
    pace, n_thoughts = Pace(), 0
    for _ in range(n_rounds):
        if not pace.rests():
            n_thoughts += 1
            pace.thought(taken, plain, True)
    rests = int(taken / (SHARE * plain))
    assert n_rounds / (rests + 1) <= n_thoughts <= n_rounds / (rests + 1) + rests + 1


@given(st.lists(st.tuples(seconds, st.booleans()), min_size=1), seconds)
def test_after_a_draft_it_thinks_at_once(thoughts: list[tuple[float, bool]], plain: float) -> None:
    pace = Pace()
    for taken, in_vain in thoughts:
        if not pace.rests():
            pace.thought(taken, plain, in_vain)
            if not in_vain:
                assert not pace.rests()


def test_one_long_thought_is_not_believed() -> None:
    pace = Pace()
    for _ in range(50):
        while pace.rests():
            pass
        pace.thought(1e-5, 0.001, True)
    pace.thought(1.0, 0.001, True)
    assert not pace.rests()


class Slow:
    """A drafter that takes a while to say that it knows nothing."""

    name, continues = "copy", False

    def __init__(self, world: World, takes: float) -> None:
        self.world, self.takes, self.asked = world, takes, 0

    def start(self, *_: object) -> None: ...

    def committed(self, *_: object) -> None: ...

    def forget(self, _: int) -> None: ...

    def step(self, wanted: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:  # noqa: ARG002
        self.world.now += self.takes
        self.asked += 1
        return {}


@pytest.mark.parametrize(("t1", "least", "most"), [(0.02, 300, 300), (0.0003, 20, 60)])
def test_the_planner_thinks_seldom_beside_a_fast_target(t1: float, least: int, most: int) -> None:
    world = World(lambda n: t1 * (1 + 0.1 * (n - 1)), names=("copy",))
    slow = Slow(world, 5e-5)
    world.policy.drafters = [slow]
    for _ in range(300):
        world.round()
    assert least <= slow.asked <= most
