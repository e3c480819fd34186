"""Idle caches are moved out of the context while others are decoded, and restored for their next use."""

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


class Harness:
    """An engine whose clock advances by a second per reading. requested: sizes passed to `room`."""

    def __init__(self, n_ctx: int = 600, n_slots: int = 3, memory="full", room: bool = True) -> None:
        ticks = itertools.count()
        self.requested: list[int] = []
        self.target = TableContext(N_VOCAB, n_ctx, n_slots, memory)
        self.has_room = room
        self.engine = Engine(
            self.target, Fixed([], 0), end_ids={3}, clock=lambda: float(next(ticks)), room=self._room
        )

    def _room(self, size: int) -> bool:
        self.requested.append(size)
        return self.has_room

    def run(self, *prompts: list[int], n: int = 8) -> list[Generation]:
        params = SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True)
        generations = [self.engine.submit(Request(p, params, 7)) for p in prompts]
        while self.engine.busy:
            self.engine.step()
        for slot in self.engine.slots:
            assert self.target.cells[slot.seq_id] == slot.ids
        return generations

    @property
    def stored(self) -> list[list[int]]:
        """The ids of the texts that were copied out of the context."""
        return [text.ids.tolist() for text in self.engine.scheduler.store.state_cache.texts]


def alone(prompt: list[int], n: int = 8) -> list[int]:
    return Harness(n_slots=1).run(prompt, n=n)[0].output


def test_an_idle_cache_is_saved_and_restored():
    harness = Harness()
    (first,) = harness.run(LONG)
    (other,) = harness.run(OTHER)
    assert harness.stored == [first.history[:-1]]
    longer = [*first.history, 9, 8]
    (again,) = harness.run(longer)
    assert again.stats.n_reused == len(first.history) - 1
    assert again.output == alone(longer)
    assert harness.stored == [other.history[:-1]]


def test_a_common_prefix_is_restored_from_a_saved_cache():
    harness = Harness()
    (first,) = harness.run(LONG)
    harness.run(OTHER)
    prompt = [*LONG[:20], 9, 9]
    (third,) = harness.run(prompt)
    assert third.stats.n_reused == 20
    assert third.output == alone(prompt)
    (again,) = harness.run([*first.history, 9])  # the long cache is still there
    assert again.stats.n_reused == len(first.history) - 1


def test_a_saved_cache_that_no_longer_fits_is_evaluated_again():
    harness = Harness(n_ctx=170, n_slots=2)
    (first,) = harness.run(LONG)
    harness.run(OTHER, n=40)  # with the first cache in the pool this would just fit
    assert first.history[:-1] in harness.stored
    longer = [*first.history, 9]
    # a request that fills the pool runs while the saved cache is needed
    generations = harness.run([8, *OTHER, *OTHER[:20]], longer, n=30)
    assert [g.output for g in generations] == [alone(list(g.request.prompt), n=30) for g in generations]


def test_without_room_caches_stay_in_the_context():
    harness = Harness(room=False)
    harness.run(LONG)
    harness.run(OTHER, n=40)
    assert harness.requested
    assert not harness.stored
    (again,) = harness.run([*LONG, 9])
    assert again.stats.n_reused == len(LONG)


def test_room_is_not_queried_in_every_round():
    harness = Harness(room=False)
    harness.run(LONG)
    ticks = itertools.count()
    harness.engine.scheduler.clock = lambda: 1000 + next(ticks) * UNUSED_SECONDS / 100
    harness.requested.clear()
    rounds = len(harness.target.widths)
    harness.run(OTHER, n=60)
    assert len(harness.target.widths) - rounds > 50
    assert len(harness.requested) < 10


@pytest.mark.parametrize("memory", ["window", "rollback", "checkpoint"])
def test_windows_and_recurrent_states_are_offloaded_whole(memory):
    harness = Harness(memory=memory)
    (first,) = harness.run(LONG)
    harness.run(OTHER)
    assert first.history[: first.n_past] in harness.stored
    (again,) = harness.run([*first.history, 9])
    assert again.output == alone([*first.history, 9])
    assert again.stats.n_reused == first.n_past


def test_without_a_room_callback_caches_stay():
    harness = Harness()
    harness.engine.scheduler.store.room = None
    harness.run(LONG)
    harness.run(OTHER)
    assert not harness.stored
