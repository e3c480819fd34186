"""Drafts with second candidates: the output is that of plain decoding, and only where they are asked for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.exact import ExactRows
from specllama.core.interfaces import Alternative, BatchRow, Proposal
from specllama.core.policy.base import CHAINS, Draft, DraftBranch, RoundLimits
from specllama.core.policy.candidates import CandidateDraft, best_branches
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.replay.simulator import WRONG, ChangingDevice, Replay, SimulatedClock, Trace
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.feature_drafter import FeatureRows
from specllama.drafters.head import HeadDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext
from specllama.worker.calibrate import measure_load
from tests.support.devices import curves
from tests.support.examples import examples
from tests.support.scripted import ScriptedDrafter, TableHead, TableMask
from tests.unit.core.test_engine_table import (
    END,
    N_VOCAB,
    clock,
    noisy_draft,
    params_strategy,
    plain,
    prompt_strategy,
)


class Wild(ScriptedDrafter):
    """Wrong and right tokens, each with a second candidate of up to four tokens that may be right."""

    with_alternatives = False

    def __init__(self, seed: int) -> None:
        super().__init__(lambda history, draft: (len(history) * 7 + len(draft)) % N_VOCAB)
        self.rng = random.Random(seed)
        self.texts: dict[tuple[int, ...], list[int]] = {}

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        return {seq: self._proposal(self.histories[seq], draft) for seq, draft in drafts.items()}

    def _proposal(self, history: Sequence[int], draft: Sequence[int]) -> Proposal:
        rest = next(
            (
                t[len(history) - len(p) + len(draft) :]
                for p, t in self.texts.items()
                if p == tuple(history[: len(p)])
            ),
            [],
        )
        right = rest[0] if rest and self.rng.random() < 0.6 else self.rng.randrange(N_VOCAB)
        others = rest[: self.rng.randrange(5)] or [self.rng.randrange(N_VOCAB)]
        return Proposal(right, 0.5, Alternative(others, 0.2) if self.with_alternatives else None)


def run_trees(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    generations = [engine.submit(r) for r in requests]
    for _ in range(10_000):
        if not engine.busy:
            break
        engine.step()
        for g in engine.active:
            cells = engine.target.cells[g.seq_id]
            assert cells == g.history[: g.n_past]
            assert g.n_past <= len(g.history) - 1 or not g.prefilled
    assert not engine.busy
    engine.n_branch = sum(g.stats.n_branch for g in generations)
    for g in generations:
        assert g.stats.n_branch_accept <= g.stats.n_branch <= g.stats.n_drafted
        assert g.stats.n_accept <= g.stats.n_drafted == sum(g.stats.drafted_by.values())
    return [g.output for g in generations]


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(st.tuples(prompt_strategy, params_strategy, st.integers(0, 99)), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from(["wild", "model", "copy", "head", "planner"]),
)
def test_the_output_does_not_depend_on_branches(work, n_max, n_slots, n_tree, kind):
    requests = [Request(p, q, s) for p, q, s in work]
    expected = [plain(r, 128).output for r in requests]
    target = TableContext(N_VOCAB, 128 * n_slots, n_slots, n_branches=n_tree * n_slots)
    model = ModelDrafter(TableContext(N_VOCAB, 512, n_slots, rows=noisy_draft(7)), N_VOCAB)
    drafters = {"wild": Wild(n_max), "model": model, "copy": CopyDrafter(), "planner": model}
    if kind == "head":
        drafter = HeadDrafter(TableHead(N_VOCAB, 512, n_slots), N_VOCAB)
        target.reader = drafter
    else:
        drafter = drafters[kind]
    if isinstance(drafter, Wild):
        drafter.texts = {tuple(r.prompt): output for r, output in zip(requests, expected, strict=True)}
    policy = Planner([CopyDrafter(), drafter], clock()) if kind == "planner" else Fixed([drafter], n_max)
    engine = Engine(target, policy, end_ids={END}, clock=clock(), draft_tree=n_tree)
    limited = [len(e) < 100 for e in expected]  # those that the shared pool has not cut short
    outputs = run_trees(engine, requests)
    assert [f for f, ok in zip(outputs, limited, strict=True) if ok] == [
        e for e, ok in zip(expected, limited, strict=True) if ok
    ]


def is_wrong(at: int) -> bool:
    return random.Random(at).random() < 0.35


def right_second(n_after: int = 0) -> Wild:
    """About every third token is wrong, and its second candidate right."""

    class Second(Wild):
        def _proposal(self, history: Sequence[int], draft: Sequence[int]) -> Proposal:
            (prompt, text), *_ = self.texts.items()
            rest = text[len(history) - len(prompt) + len(draft) :]
            if not rest:
                return Proposal(0, 0.1)
            other = Alternative(rest[: 1 + n_after], 0.3)
            wrong = is_wrong(len(history) + len(draft))
            return Proposal((rest[0] + 1) % N_VOCAB, 0.5, other) if wrong else Proposal(rest[0], 0.9)

    return Second(0)


@pytest.mark.parametrize("n_after", [0, 3])
def test_an_accepted_branch_gives_further_tokens_and_is_evaluated_again(n_after):
    request = Request([5, 6, 7], SamplingParams(temperature=0.8, max_tokens=60, ignore_eos=True), 3)
    text = plain(request).output
    rounds = {}
    for n_tree in (0, 2):
        drafter = right_second(n_after)
        drafter.texts = {tuple(request.prompt): text}
        target = TableContext(N_VOCAB, 256, n_branches=2)
        engine = Engine(target, Fixed([drafter], 3), end_ids={END}, clock=clock(), draft_tree=n_tree)
        (generation,) = [engine.submit(request)]
        behind = 0
        while engine.busy:
            engine.step()
            behind += bool(engine.active) and len(generation.history) - 1 > generation.n_past
        assert generation.output == text
        rounds[n_tree] = generation.stats.rounds
        assert (behind > 5) == (n_tree > 0) == (generation.stats.n_branch_accept > 5)
    assert rounds[2] < 0.9 * rounds[0]


def test_grammars_limits_and_exact_texts_bound_branches():
    def legal(output: Sequence[int]) -> list[int]:
        return [t for t in range(4, N_VOCAB) if t % 3 == len(output) % 3]

    params = SamplingParams(temperature=0.8, max_tokens=30, ignore_eos=True)
    request = Request([5, 6, 7], params, 3, mask=TableMask(N_VOCAB, legal))
    text = plain(request).output
    drafter = right_second(2)
    drafter.texts = {(5, 6, 7): text}
    engine = Engine(
        TableContext(N_VOCAB, 64, n_branches=4),
        Fixed([drafter], 4),
        end_ids={END},
        clock=clock(),
        draft_tree=4,
    )
    again = Request([5, 6, 7], params, 3, mask=TableMask(N_VOCAB, legal))
    assert run_trees(engine, [again]) == [text]
    exact = Engine(
        TableContext(N_VOCAB, 128, n_branches=4),
        Fixed([right_second()], 4),
        end_ids={END},
        clock=clock(),
        draft_tree=4,
        exact=True,
        exact_rows=ExactRows(8),
    )
    exact.scheduler.policy.drafters[0].texts = {(5, 6, 7): plain(Request([5, 6, 7], params, 3)).output}
    generation = exact.submit(Request([5, 6, 7], params, 3))
    while exact.busy:
        exact.step()
    assert generation.stats.n_branch == 0


def candidate(probs: Sequence[float], branches: Sequence[tuple[int, list[int], float]]) -> CandidateDraft:
    draft = CandidateDraft()
    for i, p in enumerate(probs):
        draft.add(10 + i, "model", 0, p)
    for at, tokens, confidence in branches:
        draft.add_branch(at, "model", Alternative(tokens, confidence))
    return draft


def best_of(one: CandidateDraft, n: int, limits: RoundLimits, n_rows: int) -> list[DraftBranch]:
    """Those of a draft of which n tokens are verified."""
    possible = [b for b in one.branches if b.at <= n]
    return best_branches(possible, limits, min(n_rows, limits.n_tokens - n))


def test_the_most_probable_second_candidates_are_taken():
    one = candidate([0.5, 0.5], [(0, [1, 2, 3], 0.4), (1, [4], 0.3), (2, [5], 0.9)])
    limits = RoundLimits(n_branches=2)
    assert best_of(one, 2, limits, 0) == []
    assert best_of(one, 2, limits, 3) == [DraftBranch(0, [1, 2, 3], "model")]
    both = [DraftBranch(0, [1, 2, 3], "model"), DraftBranch(2, [5], "model")]
    assert best_of(one, 2, limits, 9) == both
    assert best_of(one, 1, limits, 9)[1] == DraftBranch(1, [4], "model")
    assert best_of(one, 2, RoundLimits(n_branches=1, n_tokens=4), 9) == [DraftBranch(0, [1, 2], "model")]
    assert best_of(one, 2, CHAINS, 9) == []


def test_a_token_without_a_second_candidate_has_no_branch():
    draft = candidate([0.5], [])
    draft.add_branch(0, "model", None)
    assert draft.branches == []


STEADY = {1: 0.004, 4: 0.006, 8: 0.008, 9: 0.0075, 16: 0.008, 32: 0.012, 64: 0.02}


def planner_over() -> tuple[Planner, Wild]:
    """A planner that knows what decodes cost."""
    costs, machine = CostCurve(), SimulatedClock()
    for n in range(1, DEFAULT.max_rows + 1):
        for _ in range(DEFAULT.min_samples):
            costs.observe(n, float(np.interp(n, list(STEADY), list(STEADY.values()))))
    drafter = right_second()
    drafter.texts = {(5,): list(range(10, 30)) * 8}
    return Planner([drafter], machine.clock, costs), drafter


def drafted(planner: Planner, limits: RoundLimits) -> list[Draft]:
    """The drafts of some rounds in which all is accepted."""
    drafts = []
    planner.start(0, [5], KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB))
    at = 0
    for _ in range(12):
        draft = planner.draft({0: 60}, limits=limits).get(0, Draft())
        drafts.append(draft)
        n = len(draft.tokens) + 1
        planner.committed(0, (list(range(10, 30)) * 8)[at : at + n])
        at += n
    return drafts


class TimedContext(TableContext):
    """Decodes take the time of a device."""

    def __init__(self, device: ChangingDevice, machine: SimulatedClock, n_branches: int) -> None:
        super().__init__(N_VOCAB, 1024, n_branches=n_branches)
        self.device, self.machine = device, machine

    def decode(self, *given):
        rows = super().decode(*given)
        self.machine.spend(self.device(self.n_decoded))
        return rows


@pytest.mark.parametrize("n_tree", [0, 3])
def test_the_planner_verifies_second_candidates_only_where_a_number_is_asked_for(n_tree):
    machine, n_branch = SimulatedClock(), 0
    device = ChangingDevice.from_dict(curves()["padded 4B Q4_0"])
    model = ModelDrafter(TableContext(N_VOCAB, 1024, rows=noisy_draft(5)), N_VOCAB)
    policy = Planner([CopyDrafter(), model], machine.clock)
    measure_load(policy.costs, device, DEFAULT.max_rows)
    target = TimedContext(device, machine, 3)
    engine = Engine(target, policy, end_ids={END}, clock=machine.clock, draft_tree=n_tree)
    for seed in range(4):
        params = SamplingParams(temperature=0.8, max_tokens=200, ignore_eos=True)
        request = Request([5, 6, 7 + seed], params, seed)
        assert run_trees(engine, [request]) == [plain(request, 1024).output]
        n_branch += engine.n_branch
    assert bool(n_branch) == bool(n_tree)


def test_a_number_of_second_candidates_is_used_wherever_there_are_drafts():
    planner, drafter = planner_over()
    drafts = [d for d in drafted(planner, RoundLimits(3)) if d.tokens]
    assert drafter.with_alternatives
    assert any(d.branches for d in drafts)
    assert all(len(d.branches) <= 3 for d in drafts)
    assert all(d.n_rows < DEFAULT.max_rows for d in drafts)
    few = drafted(planner_over()[0], RoundLimits(3, n_tokens=4))
    assert all(d.n_in_branches <= max(0, 4 - len(d.tokens)) for d in few)
    planner, drafter = planner_over()
    assert not any(d.branches for d in drafted(planner, CHAINS))
    assert not drafter.with_alternatives


@pytest.mark.parametrize("width", [0, 16])
def test_rows_that_are_evaluated_again_count_in_the_cost_of_a_round(width):
    planner, _ = planner_over()
    costs = planner.costs
    budget = planner._begin_round(1, inf, RoundLimits(n_recomputed=3, width=width))
    assert budget.max_rows == (width or DEFAULT.max_rows) - 3
    assert budget.predict(1) == pytest.approx(costs.predict(width or 4))
    assert budget.upper_bound(5) == pytest.approx(costs.upper_bound(width or 8))
    budget = planner._begin_round(1, inf, RoundLimits(width=width))
    assert budget.predict(1) == pytest.approx(costs.predict(width or 1))


def test_features_of_an_accepted_branch_are_those_of_the_text():
    rows = FeatureRows(2, 1, kept=16)
    text = [BatchRow(t, i, 0, True) for i, t in enumerate([5, 6, 7, 8])]
    rows.record(text, np.arange(4, dtype=np.float32)[:, None])
    first = [BatchRow(9, 2, 0, True), BatchRow(4, 3, 0, True)]
    second = [BatchRow(4, 3, 0, True)]
    other = [BatchRow(9, 2, 1, True)]
    values = np.array([[20], [21], [30], [40]], np.float32)
    rows.record_branches([first, second, other], values)
    rows.accept_branch(0, 2, [9, 4, 1])  # the history was 5, 6
    assert rows.known_from(0, [5, 6, 9, 4], 4, 0) == 0
    assert rows.rows(0, 0, 4).ravel().tolist() == [0, 1, 20, 21]
    rows.record(text, np.arange(4, dtype=np.float32)[:, None])
    rows.record_branches([first, second], values[:3])
    rows.accept_branch(0, 2, [7, 4])
    assert rows.rows(0, 0, 4).ravel().tolist() == [0, 1, 2, 30]


def test_replay_verifies_second_candidates():
    text = list(range(10, 60))
    draft = [5 if is_wrong(i) else t for i, t in enumerate(text)]
    second = [t if is_wrong(i) else WRONG for i, t in enumerate(text)]
    trace = Trace([3], text, draft, [0.9] * 50, second, [0.4] * 50)
    rounds = {}
    for n in (0, 2):
        limits = RoundLimits(n)
        session = Replay(lambda d, c: Fixed(d, 4), lambda n: 1.0, 0.01, None, limits=limits)  # noqa: ARG005
        done = session.replay([trace])
        assert done.tokens == 50
        assert (done.n_branch_accept > 5) == bool(n)
        rounds[n] = done.rounds
    assert rounds[2] < 0.9 * rounds[0]
    with pytest.raises(ValueError, match="second candidate"):
        Trace([3], text, draft, [0.9] * 50, second[:3], [0.4] * 50)
