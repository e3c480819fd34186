"""Caches that nobody uses leave the pool while others are decoded, and come back when they are wanted."""

from __future__ import annotations

import itertools

import pytest

from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.scheduler import UNUSED_SECONDS
from specllama.core.sequence import Generation, Request
from specllama.testing import TableContext

N_VOCAB = 32
LONG = [4 + i * 7 % 25 for i in range(90)]
OTHER = [5 + i * 11 % 25 for i in range(60)]


class Engines:
    """An engine whose clock goes a second for every look at it. asked: sizes that it wanted room for."""

    def __init__(self, n_ctx: int = 600, n_slots: int = 3, memory="full", room: bool = True) -> None:
        ticks = itertools.count()
        self.asked: list[int] = []
        self.target = TableContext(N_VOCAB, n_ctx, n_slots, memory)
        self.has_room = room
        self.engine = Engine(
            self.target, Fixed([], 0), end_ids={3}, clock=lambda: float(next(ticks)), room=self._room
        )

    def _room(self, size: int) -> bool:
        self.asked.append(size)
        return self.has_room

    def run(self, *prompts: list[int], n: int = 8) -> list[Generation]:
        params = SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True)
        found = [self.engine.submit(Request(p, params, 7)) for p in prompts]
        while self.engine.busy:
            self.engine.step()
        for slot in self.engine.slots:
            assert self.target.cells[slot.seq_id] == ([] if slot.saved is not None else slot.ids)
        return found


def alone(prompt: list[int], n: int = 8) -> list[int]:
    return Engines(n_slots=1).run(prompt, n=n)[0].output


def test_a_cache_leaves_and_comes_back():
    one = Engines()
    (first,) = one.run(LONG)
    (other,) = one.run(OTHER)
    slots = one.engine.slots
    assert slots[first.seq_id].saved is not None
    assert slots[first.seq_id].ids == first.history[:-1]
    longer = [*first.history, 9, 8]
    (again,) = one.run(longer)
    assert again.seq_id == first.seq_id
    assert again.stats.n_reused == len(first.history) - 1
    assert again.output == alone(longer)
    assert slots[other.seq_id].saved is not None
    assert slots[again.seq_id].saved is None


def test_a_common_beginning_is_taken_from_what_was_saved():
    one = Engines()
    (first,) = one.run(LONG)
    one.run(OTHER)
    begun = [*LONG[:20], 9, 9]
    (third,) = one.run(begun)
    assert third.stats.n_reused == 20
    assert third.output == alone(begun)
    assert third.seq_id != first.seq_id
    (again,) = one.run([*first.history, 9])  # the long one is still there
    assert again.stats.n_reused == len(first.history) - 1


def test_what_does_not_fit_any_more_is_evaluated_again():
    one = Engines(n_ctx=170, n_slots=2)
    (first,) = one.run(LONG)
    one.run(OTHER, n=40)  # beside the first one's cells this would just fit
    assert one.engine.slots[first.seq_id].saved is not None
    wanted = [*first.history, 9]
    # a request that fills the pool runs while the saved one is wanted
    found = one.run([8, *OTHER, *OTHER[:20]], wanted, n=30)
    assert [g.output for g in found] == [alone(list(g.request.prompt), n=30) for g in found]


def test_nothing_moves_without_room():
    one = Engines(room=False)
    one.run(LONG)
    one.run(OTHER, n=40)
    assert one.asked
    assert all(slot.saved is None for slot in one.engine.slots)
    (again,) = one.run([*LONG, 9])
    assert again.stats.n_reused == len(LONG)


def test_room_is_not_asked_for_in_every_round():
    one = Engines(room=False)
    one.run(LONG)
    ticks = itertools.count()
    one.engine.clock = lambda: 1000 + next(ticks) * UNUSED_SECONDS / 100
    one.asked.clear()
    rounds = len(one.target.widths)
    one.run(OTHER, n=60)
    assert len(one.target.widths) - rounds > 50
    assert len(one.asked) < 10


@pytest.mark.parametrize("memory", ["window", "rollback", "checkpoint"])
def test_windows_and_states_stay_where_they_are(memory):
    one = Engines(memory=memory)
    one.run(LONG)
    one.run(OTHER)
    assert not one.asked
    (again,) = one.run([*LONG, 9])
    assert again.output == alone([*LONG, 9])


def test_without_a_word_about_room_caches_stay():
    one = Engines()
    one.engine.room = None
    one.run(LONG)
    one.run(OTHER)
    assert all(slot.saved is None for slot in one.engine.slots)
