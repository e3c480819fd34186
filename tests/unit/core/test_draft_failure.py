"""A draft model that fails while it is used: the output is that of plain decoding, and it is removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, DecodeError
from specllama.core.policy.base import Policy
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.policy.posterior import PairState
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext, table_row
from tests.support.examples import examples
from tests.support.scripted import ScriptedDrafter
from tests.unit.core.test_engine_table import END, N_VOCAB, check_invariant, plain, run


class Clock:
    """Seconds that pass in decodes."""

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

    def decode(self, batch: Sequence[BatchRow], *filled: int) -> np.ndarray:
        self.clock.now += self.first + self.further * (len(batch) - 1)
        return super().decode(batch, *filled)


class Failing(Timed):
    """Fails after n decodes. lost: the failing decode has written to the cache."""

    def __init__(self, clock: Clock, n: int, lost: bool = False, **how: object) -> None:
        super().__init__(clock, 0.01, 0.001, **how)
        self.n_working, self.lost, self.n_decodes, self.n_failed = n, lost, 0, 0

    def decode(self, batch: Sequence[BatchRow], *filled: int) -> np.ndarray:
        self.n_decodes += 1
        if self.n_decodes <= self.n_working:
            return super().decode(batch, *filled)
        self.n_failed += 1
        if self.lost:
            super().decode(batch, *filled)
        raise DecodeError("llama_decode answered -3: device lost")


def known(seconds: Callable[[int], float]) -> CostCurve:
    costs = CostCurve()
    for n in range(1, 65):
        for _ in range(DEFAULT.min_samples):
            costs.observe(n, seconds(n))
    return costs


class Setup:
    """An engine with a draft model that mostly agrees with the target, and fails."""

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


KINDS = ["fixed", "model", "planner", "planner, unmeasured"]
prompts = st.lists(st.integers(4, N_VOCAB - 1), min_size=1, max_size=90)
work = st.lists(st.tuples(prompts, st.sampled_from([0, 0.8]), st.integers(0, 99)), min_size=1, max_size=5)


@settings(max_examples=examples(120), deadline=None)
@given(work, st.sampled_from(KINDS), st.integers(0, 60), st.sampled_from([1, 3]), st.booleans())
def test_the_output_is_plain_and_the_failed_model_is_not_used_again(work, kind, n, n_slots, lost):
    setup = Setup(kind, n, n_slots, lost)
    requests = [
        Request(prompt, SamplingParams(temperature=t, max_tokens=40, ignore_eos=True), seed)
        for prompt, t, seed in work
    ]
    got = run(setup.engine, *requests)
    for request, g in zip(requests, got, strict=True):
        assert g.output == plain(request, 4096).output
        assert g.stats.n_accept <= g.stats.n_drafted == sum(g.stats.drafted_by.values())
        assert g.stats.n_discarded >= 0
    failed = setup.draft.n_failed > 0
    assert setup.draft.n_failed == failed
    assert setup.engine.draft_failed == failed
    notices = ["the draft failed (llama_decode answered -3: device lost); continuing without it"]
    assert setup.engine.notices == (notices if failed else [])
    assert any(d.name == "model" for d in setup.policy.drafters) != failed
    check_planner(setup.policy)
    # Later requests too: one with the same prompt, and one that repeats itself.
    n_before = setup.draft.n_decodes
    for prompt in (requests[0].prompt, [5, 6, 7, 8, 9] * 6):
        again = Request(prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), 1)
        (g,) = run(setup.engine, again)
        assert g.output == plain(again, 4096).output
    if failed:
        assert setup.draft.n_decodes == n_before
        assert len(setup.engine.notices) == 1
    check_planner(setup.policy)


def silent(name: str) -> ScriptedDrafter:
    """A drafter of this name without any proposals."""
    return ScriptedDrafter(lambda history, draft: None, name)  # noqa: ARG005


def check_planner(policy: Policy) -> None:
    """The planner's state is valid and can be stored."""
    if not isinstance(policy, Planner):
        return
    assert isfinite(policy.budget.credit)
    assert policy.budget.credit <= DEFAULT.max_gain + DEFAULT.allowance
    assert isfinite(policy.learnt.models["model"].explore)
    assert policy._plans == {}
    data, again = policy.learnt.to_dict(), PairState([silent("copy"), silent("model")])
    again.restore(data)
    restored = again.to_dict()
    widths, kept = (state["priced"]["model"].pop("steps")["widths"] for state in (data, restored))
    first, rounded = (state["priced"]["model"].pop("first") for state in (data, restored))
    assert np.allclose(first, rounded, atol=2e-4)
    explore = data["priced"]["model"]["explore"]
    assert restored["priced"]["model"].pop("explore") == max(explore, DEFAULT.stored_explore)
    del data["priced"]["model"]["explore"]
    low, high = DEFAULT.stored_credit
    assert restored == data | {"credit": max(low, min(high, policy.budget.credit))}
    assert [width[:2] for width in kept] == [width[:2] for width in widths]  # counts are limited


@pytest.mark.parametrize("kind", ["fixed", "planner"])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_a_failure_in_the_middle_of_a_draft(kind, n_slots):
    """Tokens were drafted in that round, and accepted in earlier rounds."""
    params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
    requests = [Request([5 + i, 6, 7], params, 1) for i in range(n_slots)]
    for n in range(8, 20):
        setup = Setup(kind, n, n_slots, exact_draft=True)
        got = run(setup.engine, *requests)
        assert setup.draft.n_failed == 1
        assert setup.draft.n_decodes == n + 1
        for request, g in zip(requests, got, strict=True):
            assert g.output == plain(request, 4096).output
        assert sum(g.stats.drafted_by["model"] for g in got) > 0


def test_copies_continue_without_the_model():
    """The text repeats the same 4 ids."""

    def rows(ids: Sequence[int]) -> np.ndarray:
        return np.eye(N_VOCAB, dtype=np.float32)[8 + len(ids) % 4] * 9

    for kind in ("fixed", "planner"):
        setup = Setup(kind, 0, 1)
        setup.target.rows = rows
        params = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
        (g,) = run(setup.engine, Request([5, 6, 7], params, 1))
        assert setup.draft.n_failed == 1, kind
        assert g.output == [8 + (3 + i) % 4 for i in range(120)]
        assert g.stats.drafted_by["copy"] > 80
        assert g.stats.rounds < 60


def test_a_failed_draft_costs_credit_but_changes_nothing_that_is_learnt_of_the_draft():
    setup = Setup("planner", 4, 1, exact_draft=True)
    policy = setup.policy
    assert isinstance(policy, Planner)
    engine = setup.engine
    engine.submit(Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True), 1))
    first: list[list[float]] = []
    while not engine.draft_failed:
        first = [list(weights) for weights in policy.learnt.models["model"].first]
        chances, credit = list(policy.learnt.tables["model"].chances), policy.budget.credit
        engine.step()
        check_invariant(engine)
    assert setup.draft.n_decodes == 5
    assert policy.learnt.models["model"].first == first
    assert policy.learnt.tables["model"].chances == chances
    assert policy.budget.credit < credit


def test_logits_that_are_not_finite_are_a_failure():
    for kind in ("fixed", "planner"):
        setup = Setup(kind, 10**9, 1)
        setup.draft.rows = lambda _ids: np.full(N_VOCAB, np.nan, np.float32)
        request = Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), 1)
        (g,) = run(setup.engine, request)
        assert g.output == plain(request, 4096).output
        assert len(setup.engine.notices) == 1
        assert "not finite" in setup.engine.notices[0]
        assert setup.draft.n_decodes == 1
