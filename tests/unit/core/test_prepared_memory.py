"""Texts give way once there is memory for them, and those from the disk need no memory of the store."""

from __future__ import annotations

import itertools

import pytest

from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.prefix.stored import CachedSequence, as_ids
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.testing import TableContext

N_VOCAB = 64


class Server:
    """Slots over a table model."""

    def __init__(self, budget: float = 1e9, n_slots: int = 2) -> None:
        self.ticks = itertools.count()
        self.target = TableContext(N_VOCAB, 8192, n_slots, "full", n_batch=512)
        self.engine = Engine(
            self.target,
            Fixed([], 0),
            end_ids={3},
            clock=lambda: next(self.ticks) * 1e-6,
            room=lambda _: True,
            cache_budget=budget,
        )

    def submit(self, prompt: list[int], n: int = 8, stored: CachedSequence | None = None) -> Generation:
        params = SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True)
        return self.engine.submit(Request(prompt, params, 7), stored)

    def run(self, generation: Generation, steps: int = 10_000) -> Generation:
        for _ in range(steps):
            if generation.finish_reason is not None:
                break
            self.engine.step()
        return generation


LONG, OTHER, NEXT = [5] * 300, [6] * 300, [7] * 300


@pytest.fixture
def busy() -> Server:
    """A server with a long text in one slot, an idle one in the other, and no memory yet."""
    server = Server()
    server.run(server.submit(OTHER))
    server.submit(LONG, n=3000)
    server.engine.step()
    server.target.has_memory = False
    return server


def test_a_request_waits_for_the_memory_of_what_gives_way_while_others_decode(busy):
    waits = busy.submit(NEXT)
    before = busy.engine.active[0].n_output
    busy.run(waits, 20)
    assert waits.seq_id < 0
    assert busy.engine.active[0].n_output >= before + 15, "the other one goes on"
    busy.target.has_memory = True
    busy.run(waits)
    assert waits.n_output == 8
    assert any(text.ids[0] == 6 for text in busy.engine.scheduler.store.state_cache.texts)


def test_the_next_turn_of_an_idle_text_waits_for_nothing(busy):
    slot = busy.engine.scheduler.store.idle()[0]
    goes_on = busy.submit([*slot.ids, 9])
    busy.run(goes_on)
    assert goes_on.n_output == 8
    assert goes_on.stats.n_reused >= 300


def test_a_server_without_other_requests_waits_for_nothing():
    server = Server()
    for prompt in (OTHER, LONG):
        server.run(server.submit(prompt))
    server.target.has_memory = False
    assert server.run(server.submit(NEXT)).n_output == 8
    assert server.engine.scheduler.store.state_cache.texts


@pytest.mark.parametrize("budget", [0, 1e9])
def test_a_text_from_the_disk_needs_no_budget(budget):
    source = Server()
    told = source.run(source.submit(OTHER))
    ids = source.engine.slots[0].ids
    stored = CachedSequence(as_ids(ids), "", source.target.save(0), len(ids), [], 300)
    server = Server(budget)
    both = [server.submit(OTHER, 8, stored), server.submit([*OTHER, 8], 8, stored)]
    for one in both:
        server.run(one)
        assert one.stats.n_reused >= 290
        assert one.stored is None
    assert both[0].output == told.output
    assert len(server.engine.scheduler.store.state_cache.texts) <= bool(budget)


def test_a_text_from_the_disk_of_another_scope_is_not_used():
    source = Server()
    source.run(source.submit(OTHER))
    ids = source.engine.slots[0].ids
    server = Server()
    foreign = CachedSequence(as_ids(ids), "another", source.target.save(0), len(ids), [], 300)
    assert server.run(server.submit(OTHER, 8, foreign)).stats.n_reused == 0


def test_memory_is_prepared_for_one_text_at_a_time():
    server = Server(n_slots=4)
    others = [server.submit(prompt) for prompt in (OTHER, NEXT, [8] * 300)]
    for one in others:
        server.run(one)
    server.submit(LONG, n=3000)
    server.target.has_memory = False
    asked = set[int]()
    prepare = server.target.prepare_save
    server.target.prepare_save = lambda seq_id: asked.add(seq_id) or prepare(seq_id)
    server.ticks = itertools.count(10**9)
    for _ in range(20):
        server.engine.step()
    assert len(asked) == 1
    server.target.has_memory = True
    for _ in range(20):
        server.ticks = itertools.count(next(server.ticks) + 10**9)
        server.engine.step()
    assert len(server.engine.scheduler.store.state_cache.texts) == 3
