"""The prefix store on models of every memory kind: what is reused, what is kept, what makes way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.prefix.store import PrefixStore
from specllama.core.prefix.stored import (
    GAP,
    Boundary,
    CachedSequence,
    Chances,
    PartialState,
    StateCache,
    ahead,
    as_ids,
    distances,
    n_common,
)
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.testing import TableContext
from tests.support.examples import examples

N_VOCAB = 64
KINDS = ("full", "window", "rollback", "checkpoint")
LIMITED = KINDS[1:]


def text(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(4, N_VOCAB, n).tolist()


class Server:
    """An engine over a table model, with ample room for states unless a test says otherwise."""

    def __init__(
        self, memory="full", n_slots: int = 1, n_ctx: int = 8192, budget: float = 1e9, **more
    ) -> None:
        ticks = itertools.count()
        self.target = TableContext(N_VOCAB, n_ctx, n_slots, memory, n_batch=512)
        self.engine = Engine(
            self.target,
            Fixed([], 0),
            end_ids={3},
            clock=lambda: next(ticks) * 1e-4,
            room=lambda _: True,
            cache_budget=budget,
            **more,
        )

    def ask(
        self, prompt: Sequence[int], n: int = 8, at: Sequence[int] = (), kind="user", scope: str = ""
    ) -> Generation:
        """at: places that later prompts may share."""
        params = SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True)
        boundaries = [Boundary(i, kind) for i in at]
        request = Request(prompt, params, 7, boundaries=boundaries, cache_scope=scope)
        generation = self.engine.submit(request)
        self.run()
        return generation

    def run(self) -> None:
        while self.engine.busy:
            self.engine.step()
        for slot in self.engine.slots:
            assert self.target.cells[slot.seq_id] == slot.ids
            assert all(p.n <= len(slot.ids) for p in slot.partials)


def plain(prompt: Sequence[int], n: int = 8) -> list[int]:
    return Server().ask(prompt, n).output


@pytest.mark.parametrize("memory", KINDS)
def test_a_conversation_evaluates_only_what_is_new(memory):
    server, history = Server(memory), text(300, 0)
    n_known = 0
    for turn in range(5):
        prompt = [*history, *text(40, turn + 1)]
        got = server.ask(prompt, at=[len(prompt) - 3], kind="reasoning")
        assert got.output == plain(prompt)
        assert got.stats.n_evaluated == len(prompt) - n_known
        n_known, history = got.n_past, got.history
    assert n_known > 400


@pytest.mark.parametrize("memory", LIMITED)
def test_a_turn_whose_reasoning_is_stripped_goes_on_before_it(memory):
    server, history = Server(memory), text(300, 0)
    for turn in range(4):
        prompt = [*history, *text(40, turn + 1)]
        got = server.ask(prompt, 90, at=[len(prompt) - 3], kind="reasoning")
        assert got.output == plain(prompt, 90)
        if turn:
            assert got.stats.n_evaluated == 3 + 20 + 40  # the end of the last prompt, the answer, the message
        history = [*prompt[:-3], *text(23, turn + 50)]  # the template writes the answer in another way


@pytest.mark.parametrize("memory", KINDS)
def test_an_edit_evaluates_what_follows_its_boundary(memory):
    server, prompt = Server(memory), text(1000, 0)
    server.ask(prompt, at=[200, 400, 600, 800, 996])
    edited = [*prompt[:650], *text(350, 1)]
    got = server.ask(edited, at=[200, 400, 600, 800, 996])
    assert got.stats.n_reused == (650 if memory == "full" else 600)
    assert got.output == plain(edited)
    assert server.ask([*prompt, 9]).stats.n_reused == (1000 if memory == "full" else 996)  # still there


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("n_slots", [1, 4])
def test_side_requests_leave_a_conversation_warm(memory, n_slots):
    """Issue 43, item 5: a title request, and five of 230 tokens, between two turns."""
    server = Server(memory, n_slots)
    agent = server.ask(text(960, 0), 6, at=[955], kind="reasoning")
    for i in range(6):
        side = text(230, i + 1)
        assert server.ask(side, 20).output == plain(side, 20)
    prompt = [*agent.history, *text(30, 99)]
    got = server.ask(prompt)
    assert got.stats.n_reused == agent.n_past
    assert got.output == plain(prompt)


@pytest.mark.parametrize("memory", KINDS)
def test_a_second_agent_takes_the_system_prompt_and_leaves_the_first_one_its_text(memory):
    server, system = Server(memory), text(500, 0)
    first = server.ask([*system, *text(300, 1)], at=[500], kind="system")
    second = server.ask([*system, *text(300, 2)], at=[500], kind="system")
    assert second.stats.n_reused == 500
    assert second.output == plain(second.request.prompt)
    again = server.ask([*first.history, 5, 6])
    assert again.stats.n_reused == first.n_past
    assert server.ask([*second.history, 5, 6]).stats.n_reused == second.n_past


@pytest.mark.parametrize("memory", KINDS)
def test_two_at_once_share_a_prefix_that_one_of_them_has_evaluated(memory):
    server, system = Server(memory, 3), text(500, 0)
    params = SamplingParams(temperature=1.0, max_tokens=300, ignore_eos=True)
    boundary = [Boundary(500, "system")]
    first = server.engine.submit(Request([*system, *text(90, 1)], params, 1, boundaries=boundary))
    while not first.output:
        server.engine.step()
    second = server.engine.submit(Request([*system, *text(90, 2)], params, 1, boundaries=boundary))
    server.engine.step()
    assert second.stats.n_reused == 500
    server.run()
    for one in (first, second):
        alone = Server().engine
        expected = alone.submit(Request(one.request.prompt, params, 1))
        while alone.busy:
            alone.step()
        assert one.output == expected.output


@pytest.mark.parametrize("memory", LIMITED)
def test_a_raw_prompt_is_kept_at_growing_distances_from_its_end(memory):
    server, prompt = Server(memory), text(2081, 0)
    server.ask(prompt)
    assert server.ask([*prompt, 7, 8]).stats.n_reused >= 2081 - 2 * GAP
    assert server.ask([*prompt[:1900], *text(90, 3)]).stats.n_reused >= 1900 - 256
    assert server.ask([*prompt[:1040], *text(90, 4)]).stats.n_reused >= 960


@pytest.mark.parametrize("memory", LIMITED)
def test_without_memory_for_states_nothing_is_kept_and_texts_are_right(memory):
    server, prompt = Server(memory, budget=0), text(400, 0)
    first = server.ask(prompt, at=[200, 396])
    assert not list(server.engine.scheduler.store.state_cache.partials())
    edited = [*prompt[:300], *text(50, 1)]
    got = server.ask(edited)
    assert got.stats.n_reused == 0
    assert got.output == plain(edited)
    assert server.ask([*got.history, 5]).stats.n_reused == got.n_past
    assert server.ask([*first.history, 5]).output == plain([*first.history, 5])


def test_states_of_a_text_are_limited_in_number():
    server, prompt = Server("rollback", max_partials=2), text(900, 0)
    server.ask(prompt, at=[100, 300, 500, 700, 895])
    assert len(list(server.engine.scheduler.store.state_cache.partials())) == 2
    server = Server("rollback", max_partials=0)
    server.ask(prompt, at=[100, 300, 500, 700, 895])
    assert not list(server.engine.scheduler.store.state_cache.partials())


@pytest.mark.parametrize("memory", KINDS)
def test_another_scope_reuses_nothing(memory):
    server, prompt = Server(memory, 2), text(400, 0)
    first = server.ask(prompt, at=[396], scope="a")
    server.ask(text(400, 1), scope="a")
    assert server.ask([*first.history, 5], scope="b").stats.n_reused == 0
    assert server.ask([*first.history, 5], scope="a").stats.n_reused == first.n_past


def test_the_budget_is_kept():
    server = Server("rollback", budget=2000)
    for i in range(12):
        server.ask(text(300, i), at=[100, 200, 296])
        assert server.engine.scheduler.store.state_cache.n_bytes <= 2000
    assert server.engine.scheduler.store.state_cache.texts
    assert server.engine.scheduler.store.state_cache.chances.floor > 0, "something was evicted"


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.sampled_from([0, 300, 1500, 10**9]),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(1, 90), st.booleans()),
        min_size=1,
        max_size=10,
    ),
)
def test_any_sequence_of_requests_gives_the_texts_of_an_engine_without_a_store(memory, n_slots, budget, work):
    """Requests begin with a part of one of four texts, or go on from an earlier answer."""
    server = Server(memory, n_slots, n_ctx=900, budget=budget)
    texts = {i: text(300, i) for i in range(4)}
    for which, n, n_more, goes_on in work:
        start = texts[which] if goes_on else texts[which][:n]
        prompt = [*start, *text(n_more, n + which)][-700:]
        at = sorted({len(prompt) // 3, len(prompt) // 2, max(1, len(prompt) - 4)})
        got = server.ask(prompt, 6, at=at)
        assert got.output == plain(prompt, 6)
        assert server.engine.scheduler.store.state_cache.n_bytes <= budget
        texts[which] = got.history


@pytest.mark.parametrize("kind", ["full", "rollback"])
def test_looking_up_takes_less_than_a_millisecond_with_a_hundred_states(kind):
    """Bound four times as wide: the machine may be busy."""
    target = TableContext(N_VOCAB, 1 << 20, 4, kind)
    store = PrefixStore(target, time.monotonic)
    prompt = text(12_000, 0)
    for i in range(100):
        ids = as_ids([*prompt[: 100 * i + 50], *text(2000, i + 1)])
        states = [PartialState(n, "user", [], 10, 100) for n in range(500, len(ids), 500)]
        store.state_cache.add_text(CachedSequence(ids, "", [], 10, states, len(ids)))
    wanted = as_ids(prompt)
    took = []
    for _ in range(5):
        began = time.thread_time()
        n = store.longest(wanted, "")
        took.append(time.thread_time() - began)
    assert n >= 9_500
    assert min(took) < 0.004


def test_what_returns_is_kept_longer():
    memory = StateCache(100)
    texts = [CachedSequence(as_ids([i] * 50), "", None, 30, [], 50) for i in range(4)]
    for one in texts[:3]:
        one.priority = memory.of_text(50, 0, 30)
        assert memory.has_room(30, one.priority)
        memory.add_text(one)
    memory.used(texts[0])
    memory.used(texts[0])
    assert memory.has_room(30, memory.of_text(80, 0, 30))
    assert texts[0] in memory.texts
    assert len(memory.texts) == 2


def test_chances_are_learnt_from_what_came_back():
    chances = Chances()
    before = chances.chance("user"), chances.chance("system")
    for _ in range(50):
        for kind in ("user", "system"):
            chances.kept(kind)
        chances.returned("system")
    assert chances.chance("user") < before[0] / 2
    assert chances.chance("system") > 0.9 > before[1]
    low, early = chances.priority("user", 0, 1.0, 100), chances.kept("user")
    chances.evicted(5.0)
    assert chances.priority("user", 0, 1.0, 100) == pytest.approx(low + 5.0, rel=0.01)
    assert chances.priority("user", 0, 1.0, 100, early) == pytest.approx(low, rel=0.02)


def test_boundaries_of_raw_prompts_depend_on_the_text_alone():
    assert [b.n for b in distances(2081)] == [1024, 1792, 1984]
    assert not distances(64)
    assert all(b.n % GAP == 0 for n in range(1, 5000, 37) for b in distances(n))


def test_boundaries_that_are_close_together_are_left_out():
    known = [
        Boundary(100, "system"),
        Boundary(120, "user"),
        Boundary(500, "user"),
        Boundary(540, "reasoning"),
    ]
    assert [b.n for b in ahead(known, 0, 560)] == [100, 500, 540]
    assert [b.n for b in ahead(known, 490, 560)] == [540]
    assert [b.n for b in ahead(known, 0, 560, 64)] == [64, 448, 512]
    assert not ahead(known, 550, 560)


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_common_prefixes(a, b):
    n = n_common(as_ids(a), as_ids(b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]
