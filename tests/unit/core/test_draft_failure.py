"""A draft model that fails while it is used: the text is the plain one, and nothing asks it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, DecodeError
from specllama.core.policy.acceptance import PairState
from specllama.core.policy.base import Policy
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import ScriptedDrafter, TableContext, table_row
from tests.unit.core.test_engine_table import END, N_VOCAB, check_invariant, plain, run


class Clock:
    """Seconds as they are spent."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


class Timed(TableContext):
    """A decode of n rows takes first + (n - 1) * further seconds."""

    def __init__(self, clock: Clock, first: float, further: float, **how: object) -> None:
        super().__init__(N_VOCAB, **how)  # type: ignore[arg-type]
        self.clock, self.first, self.further = clock, first, further

    def decode(self, batch: Sequence[BatchRow]) -> np.ndarray:
        self.clock.now += self.first + self.further * (len(batch) - 1)
        return super().decode(batch)


class Failing(Timed):
    """Fails from the n-th decode on; where `lost` says so the failing ones have written to the cache."""

    def __init__(self, clock: Clock, n: int, lost: bool = False, **how: object) -> None:
        super().__init__(clock, 0.01, 0.001, **how)
        self.n_good, self.lost, self.n_asked, self.n_failed = n, lost, 0, 0

    def decode(self, batch: Sequence[BatchRow]) -> np.ndarray:
        self.n_asked += 1
        if self.n_asked <= self.n_good:
            return super().decode(batch)
        self.n_failed += 1
        if self.lost:
            super().decode(batch)
        raise DecodeError("llama_decode answered -3: device lost")


def known(seconds: Callable[[int], float]) -> CostCurve:
    found = CostCurve()
    for n in range(1, 65):
        for _ in range(DEFAULT.min_samples):
            found.observe(n, seconds(n))
    return found


class World:
    """An engine with a draft model that agrees mostly, and fails."""

    def __init__(
        self, kind: str, n: int, n_slots: int, lost: bool = False, exact_draft: bool = False
    ) -> None:
        clock = Clock()

        def rows(ids: Sequence[int]) -> np.ndarray:
            noise = 0.0 if exact_draft else 0.4
            return (table_row(ids, N_VOCAB) + noise * table_row(ids, N_VOCAB, 9)).astype(np.float32)

        self.target = Timed(clock, 0.1, 0.002, n_ctx=4096, n_seq_max=n_slots)
        self.draft = Failing(clock, n, lost, n_ctx=4096, n_seq_max=n_slots, rows=rows)
        drafters = [ModelDrafter(self.draft, N_VOCAB)] if kind == "model" else []
        if kind != "model":
            drafters = [CopyDrafter(), ModelDrafter(self.draft, N_VOCAB)]
        self.policy: Policy = Fixed(drafters, 5)
        if kind.startswith("planner"):
            costs = known(lambda n: 0.1 + 0.002 * (n - 1)) if kind == "planner" else None
            self.policy = Planner(drafters, clock, costs)
        self.engine = Engine(self.target, self.policy, end_ids={END}, clock=clock)


KINDS = ["fixed", "model", "planner", "planner, nothing known"]
prompts = st.lists(st.integers(4, N_VOCAB - 1), min_size=1, max_size=90)
work = st.lists(st.tuples(prompts, st.sampled_from([0, 0.8]), st.integers(0, 99)), min_size=1, max_size=5)


@settings(max_examples=120, deadline=None)
@given(work, st.sampled_from(KINDS), st.integers(0, 60), st.sampled_from([1, 3]), st.booleans())
def test_the_text_is_plain_and_the_failed_model_is_left_alone(work, kind, n, n_slots, lost):
    world = World(kind, n, n_slots, lost)
    requests = [
        Request(prompt, SamplingParams(temperature=t, max_tokens=40, ignore_eos=True), seed)
        for prompt, t, seed in work
    ]
    got = run(world.engine, *requests)
    for request, g in zip(requests, got, strict=True):
        assert g.output == plain(request, 4096).output
        assert g.stats.n_accept <= g.stats.n_drafted == sum(g.stats.drafted_by.values())
        assert g.stats.n_discarded >= 0
    failed = world.draft.n_failed > 0
    assert world.draft.n_failed == failed
    assert world.engine.draft_failed == failed
    said = ["the draft model failed (llama_decode answered -3: device lost); going on without it"]
    assert world.engine.notices == (said if failed else [])
    assert any(d.name == "model" for d in world.policy.drafters) != failed
    check_planner(world.policy)
    # The next requests too: one that begins alike, and one that repeats itself.
    asked = world.draft.n_asked
    for prompt in (requests[0].prompt, [5, 6, 7, 8, 9] * 6):
        again = Request(prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), 1)
        (g,) = run(world.engine, again)
        assert g.output == plain(again, 4096).output
    if failed:
        assert world.draft.n_asked == asked
        assert len(world.engine.notices) == 1
    check_planner(world.policy)


def silent(name: str) -> ScriptedDrafter:
    """A drafter of this name that has nothing to propose."""
    return ScriptedDrafter(lambda history, draft: None, name)  # noqa: ARG005


def check_planner(policy: Policy) -> None:
    """Its books are in order, and can be stored."""
    if not isinstance(policy, Planner):
        return
    assert isfinite(policy.budget.credit)
    assert policy.budget.credit <= DEFAULT.max_gain + DEFAULT.allowance
    assert all(g is None or isfinite(g) for g in policy.learnt.gain.gains)
    assert policy._plans == {}
    data, again = policy.learnt.to_dict(), PairState([silent("copy"), silent("model")])
    again.restore(data)
    steps, restored = data.pop("steps"), again.to_dict()
    widths, kept = steps["widths"], restored.pop("steps")["widths"]
    low, high = DEFAULT.stored_credit
    assert restored == data | {"credit": max(low, min(high, policy.budget.credit))}
    assert [width[:2] for width in kept] == [width[:2] for width in widths]  # the counts are cut


@pytest.mark.parametrize("kind", ["fixed", "planner"])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_it_fails_in_the_middle_of_a_draft(kind, n_slots):
    """Tokens were drafted in that round, and were accepted in the rounds before."""
    params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
    requests = [Request([5 + i, 6, 7], params, 1) for i in range(n_slots)]
    for n in range(8, 20):
        world = World(kind, n, n_slots, exact_draft=True)
        got = run(world.engine, *requests)
        assert world.draft.n_failed == 1
        assert world.draft.n_asked == n + 1
        for request, g in zip(requests, got, strict=True):
            assert g.output == plain(request, 4096).output
        assert sum(g.stats.drafted_by["model"] for g in got) > 0


def test_without_the_model_copies_go_on():
    """The text repeats itself: each of 4 ids again and again."""

    def rows(ids: Sequence[int]) -> np.ndarray:
        return np.eye(N_VOCAB, dtype=np.float32)[8 + len(ids) % 4] * 9

    for kind in ("fixed", "planner"):
        world = World(kind, 0, 1)
        world.target.rows = rows
        params = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
        (g,) = run(world.engine, Request([5, 6, 7], params, 1))
        assert world.draft.n_failed == 1, kind
        assert g.output == [8 + (3 + i) % 4 for i in range(120)]
        assert g.stats.drafted_by["copy"] > 80
        assert g.stats.rounds < 60


def test_what_the_failed_look_cost_is_booked_and_not_taken_for_a_look():
    """The gains of looks outlast the model: the next one of this pair is no worse for it."""
    world = World("planner", 4, 1, exact_draft=True)
    policy = world.policy
    assert isinstance(policy, Planner)
    engine = world.engine
    engine.submit(Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True), 1))
    gains: list[float | None] = []
    while not engine.draft_failed:
        gains, credit = list(policy.learnt.gain.gains), policy.budget.credit
        engine.step()
        check_invariant(engine)
    assert world.draft.n_asked == 5
    assert policy.learnt.gain.gains == gains
    assert policy.budget.credit < credit


def test_logits_that_are_no_numbers_are_a_failure_too():
    for kind in ("fixed", "planner"):
        world = World(kind, 10**9, 1)
        world.draft.rows = lambda _ids: np.full(N_VOCAB, np.nan, np.float32)
        request = Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), 1)
        (g,) = run(world.engine, request)
        assert g.output == plain(request, 4096).output
        assert len(world.engine.notices) == 1
        assert "not finite" in world.engine.notices[0]
        assert world.draft.n_asked == 1
