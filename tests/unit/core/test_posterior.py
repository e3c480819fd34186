"""The posterior of a drafter: chances by bin, what a draft is expected to bring, and what is stored of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.policy.candidates import CandidateDraft, RoundBudget
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.posterior import (
    ALONE,
    COPY,
    AcceptanceTable,
    DrafterPosterior,
    PairState,
    RequestPosterior,
    StepCosts,
)
from specllama.drafters import COPY as COPY_ENTRY
from specllama.drafters import HEAD, MODEL
from tests.support.examples import examples

PRIORS = (0.2, 0.5, 0.9)


def test_an_empty_table_has_the_prior_chances():
    assert AcceptanceTable(PRIORS).chances == list(PRIORS)


def test_observations_outweigh_the_prior_in_the_long_run():
    table = AcceptanceTable(PRIORS, weight=4)
    table.observe(0, True)
    assert table.chances[0] == pytest.approx((1 + 4 * 0.2) / 5)
    for _ in range(300):
        table.observe(0, True)
    assert table.chances[0] > 0.95
    assert table.chances[1:] == [0.5, 0.9]


def test_where_confident_tokens_are_wrong_all_bins_are_less_likely():
    """What the drafter's confidence is worth is a joint prior."""
    table = AcceptanceTable(PRIORS, weight=4)
    for _ in range(12):
        table.observe(2, False)
    worth = 4 / (12 * 0.9 + 4)
    assert table.chances[:2] == pytest.approx([0.2 * worth, 0.5 * worth], rel=0.05)
    for _ in range(200):
        table.observe(2, True)
    assert table.chances[:2] == pytest.approx([0.2, 0.5], rel=0.1)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_no_bin_is_more_likely_than_its_prior_before_it_was_seen(seen):
    table = AcceptanceTable(PRIORS)
    for bin_, right in seen:
        table.observe(bin_, right)
    for bin_ in {0, 1, 2} - {bin_ for bin_, _ in seen}:
        assert 0 < table.chances[bin_] <= PRIORS[bin_]


def test_old_observations_are_forgotten():
    table = AcceptanceTable(PRIORS, forget=0.98)
    for right in [True] * 500 + [False] * 100:
        table.observe(1, right)
    assert table.chances[1] < 0.2


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_a_table_is_stored_and_restored(seen):
    table, restored = AcceptanceTable(PRIORS), AcceptanceTable(PRIORS)
    for bin_, right in seen:
        table.observe(bin_, right)
    assert all(0 < chance < 1 for chance in table.chances)
    assert restored.restore(table.to_dict())
    assert restored.chances == pytest.approx(table.chances, abs=0.001)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=63), st.booleans(), st.sampled_from([0.98, 0.995, 1.0])
)
def test_observe_run_equals_observing_each_token(bins, last, forget):
    at_once, one_by_one = AcceptanceTable(PRIORS, forget=forget), AcceptanceTable(PRIORS, forget=forget)
    at_once.observe_run(bins, last)
    for i, bin_ in enumerate(bins):
        one_by_one.observe(bin_, last or i < len(bins) - 1)
    assert at_once.chances == pytest.approx(one_by_one.chances, rel=1e-12)
    assert at_once.n_seen == pytest.approx(one_by_one.n_seen)
    assert at_once.rate == pytest.approx(one_by_one.rate)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "x",
        {},
        {"right": [0, 0, 0]},
        {"right": [0, 0], "seen": [1, 1]},
        {"right": [2, 0, 0], "seen": [1, 1, 1]},
        {"right": [-1, 0, 0], "seen": [1, 1, 1]},
        {"right": [0, 0, "0"], "seen": [1, 1, 1]},
        {"right": [0, 0, True], "seen": [1, 1, 1]},
        {"right": [0, 0, math.nan], "seen": [1, 1, math.nan]},
        {"right": [0, 0, 0], "seen": [1, 1, 1e9]},
    ],
)
def test_invalid_stored_data_is_ignored(data):
    table = AcceptanceTable(PRIORS)
    table.observe(0, True)
    before = list(table.chances)
    assert not table.restore(data)
    assert table.chances == before


# Drafters whose tokens cost decodes


def draft_of(state: PairState, name: str, confidence: float, n: int) -> CandidateDraft:
    draft = CandidateDraft()
    for place in range(n):
        draft.add(place, name, state.bin_of(name, confidence, place), 0.5)
    return draft


def observe(
    state: PairState, name: str, confidence: float, right: tuple[bool, ...], kind: int = ALONE
) -> RequestPosterior:
    """One draft of tokens of this confidence, in a request of its own."""
    posterior = state.models[name]
    request = RequestPosterior(posterior.first)
    tokens = [place if ok else -1 for place, ok in enumerate(right)]
    posterior.observe(draft_of(state, name, confidence, len(right)), tokens, name, kind, request)
    return request


def test_acceptance_of_a_head_is_learnt_by_place():
    state = PairState([HEAD])
    for _ in range(60):
        observe(state, "head", 0.93, (True, True, True, False))
        observe(state, "head", 0.93, (True, False))
    chances = [state.tables["head"].chances[state.bin_of("head", 0.93, place)] for place in range(5)]
    assert chances[0] > 0.95
    assert 0.4 < chances[1] < 0.7
    assert chances[2] == chances[3] == chances[4]
    again = PairState([HEAD])
    again.restore(state.to_dict())
    assert again.tables["head"].chances == pytest.approx(state.tables["head"].chances, abs=0.01)


def test_that_of_a_draft_model_is_not():
    state = PairState([MODEL])
    assert len({state.bin_of("model", 0.93, place) for place in range(5)}) == 1
    observe(state, "model", 0.93, (True, False))
    assert sum(state.tables["model"].to_dict()["seen"]) == pytest.approx(1.99, abs=0.01)
    assert state.models["model"].next_chance(state.bin_of("model", 0.93, 0)) < DEFAULT.next_chances[7]


def test_tokens_after_the_first_wrong_one_and_forced_ones_are_not_learnt_from():
    state = PairState([MODEL])
    draft = CandidateDraft()
    for token, source in enumerate(("grammar", "model", "model", "model")):
        draft.add(token, source, 7 if source == "model" else 0, 0.5)
    posterior = state.models["model"]
    posterior.observe(draft, [0, 1, -1, 3], "model", ALONE, RequestPosterior(posterior.first))
    assert state.tables["model"].n_seen == pytest.approx(1.99)
    assert posterior.next_token.n_seen == 1  # of the second one
    assert max(posterior.first[ALONE]) == posterior.first[ALONE][7]


def test_first_bins_are_learnt_by_what_the_draft_competes_with():
    state = PairState([MODEL])
    posterior = state.models["model"]
    before = list(posterior.first[ALONE])
    for _ in range(300):
        request = observe(state, "model", 0.93, (True,), COPY)
    assert posterior.first[ALONE] == before
    assert posterior.first[COPY][7] > 0.99
    assert request.first[COPY][7] > posterior.config.request_rate
    for _ in range(300):
        observe(state, "model", 0.93, (), ALONE)
    assert posterior.first[ALONE][-1] > 0.99


DRAFTS = st.lists(
    st.tuples(st.floats(0, 1), st.lists(st.booleans(), max_size=5), st.sampled_from([ALONE, COPY])),
    max_size=30,
)


@settings(deadline=None, max_examples=examples(100))
@given(DRAFTS)
def test_first_bins_are_a_distribution_and_what_is_learnt_is_restored(drafts):
    state, again = PairState([MODEL, COPY_ENTRY]), PairState([MODEL, COPY_ENTRY])
    for confidence, right, kind in drafts:
        request = observe(state, "model", confidence, tuple(right), kind)
        assert all(sum(weights) == pytest.approx(1) for weights in request.first)
        assert 0 < request.worth(DEFAULT.prior_weight) <= 1
    posterior = state.models["model"]
    assert all(sum(weights) == pytest.approx(1) for weights in posterior.first)
    assert all(0 <= x <= 1 for weights in posterior.first for x in weights)
    posterior.steps.observe(1, 0.01)
    posterior.explore = 0.25
    again.restore(json.loads(json.dumps(state.to_dict())))
    other = again.models["model"]
    for one, two in zip(posterior.first, other.first, strict=True):
        assert two == pytest.approx(one, abs=0.001)
    assert other.table.chances == pytest.approx(posterior.table.chances, abs=0.002)
    assert other.next_token.chances == pytest.approx(posterior.next_token.chances, abs=0.002)
    assert other.steps.predict(1, 1.0) == pytest.approx(0.01)
    assert other.explore == 0.25


def test_a_request_in_which_drafts_are_wrong_expects_less():
    state = PairState([MODEL])
    posterior = state.models["model"]
    request = RequestPosterior(posterior.first)
    assert request.worth(4) == 1
    for _ in range(10):
        posterior.observe(draft_of(state, "model", 0.97, 1), [-1], "model", ALONE, request)
    assert request.worth(4) < 0.9
    assert RequestPosterior(posterior.first).worth(4) == 1


SMALL = replace(
    DEFAULT, confidence_edges=(0.5,), chances=(0.3, 0.9), next_chances=(0.4, 0.8), lookahead=3, max_rows=8
)
TIMES = st.lists(st.floats(0, 0.5), min_size=9, max_size=9).map(
    lambda more: [0.0, *(1 + sum(more[:n]) for n in range(8))]
)


@settings(deadline=None, max_examples=examples(200))
@given(
    TIMES, st.lists(st.floats(0.02, 1), min_size=3, max_size=3), st.floats(0, 0.5), st.floats(0.2, 3),
    st.integers(1, 3), st.integers(0, 2), st.floats(0.05, 1),
)  # fmt: skip
def test_no_other_lengths_by_bin_bring_more(seconds, weights, step, rate, rows, n_free, free_chance):
    posterior = DrafterPosterior(AcceptanceTable(SMALL.chances), SMALL)
    request = RequestPosterior([[w / sum(weights) for w in weights]] * 2)
    budget = RoundBudget(seconds, 0.5, lambda n: seconds[n], math.inf, 8)
    free = n_free, n_free * free_chance
    got = posterior.round_with(request, ALONE, (rows, 1.5), free, budget, step, rate)

    def value(bin_: int, n: int) -> tuple[float, float]:
        """(tokens, seconds beyond the first step) with n tokens of the draft, 0 for the model-free one."""
        if not n:
            return free[1], 0.5 * seconds[rows + n_free]
        tokens = sum(SMALL.chances[bin_] * SMALL.next_chances[bin_] ** k for k in range(n))
        return tokens, 0.5 * seconds[rows + n] + (n - 1) * step

    best = -math.inf
    for low, high in product(range(4), repeat=2):
        parts = [value(0, low), value(1, high), value(0, 0)]
        tokens = 1.5 + sum(w * t for w, (t, _) in zip(request.first[0], parts, strict=True))
        took = step + sum(w * s for w, (_, s) in zip(request.first[0], parts, strict=True))
        best = max(best, tokens - rate * took)
    assert got.tokens - rate * got.seconds == pytest.approx(best)
    assert got.rate == pytest.approx(got.tokens / got.seconds)


def test_what_a_request_has_shown_lowers_what_a_round_brings():
    posterior = DrafterPosterior(AcceptanceTable(DEFAULT.chances))
    request = RequestPosterior(posterior.first)
    budget = RoundBudget([1.0] * 65, 1.0, lambda n: 1.0, math.inf, 64)  # noqa: ARG005
    rounds = []
    for expected in (0.0, 4.0, 40.0):
        request.expected = expected
        rounds.append(posterior.round_with(request, ALONE, (1, 1.0), (0, 0.0), budget, 0.01, 1.0).tokens)
    assert rounds[0] > rounds[1] > rounds[2] > 1


def test_what_trials_may_lose_is_refilled_by_time_up_to_the_allowance():
    posterior = DrafterPosterior(AcceptanceTable(DEFAULT.chances))
    posterior.explore = 0.0
    posterior.refill(0.4, 0.01)
    assert posterior.explore == pytest.approx(40 * DEFAULT.explore_share)
    posterior.refill(1e6, 0.01)
    assert posterior.explore == DEFAULT.explore_allowance


# Storage


def test_what_is_stored_of_drafters_that_are_not_loaded_is_kept():
    both = PairState([MODEL, HEAD, COPY_ENTRY])
    for name in ("model", "head"):
        observe(both, name, 0.93, (True, True, False))
        both.models[name].steps.observe(1, 0.02)
    stored = json.loads(json.dumps(both.to_dict()))
    one = PairState([MODEL])
    one.restore(stored)
    observe(one, "model", 0.93, (True,))
    after = json.loads(json.dumps(one.to_dict()))
    for part in ("tables", "priced"):
        assert after[part]["head"] == stored[part]["head"]
        assert after[part]["model"] != stored[part]["model"]
    assert after["tables"]["copy"] == stored["tables"]["copy"]
    assert after["runs"] == stored["runs"]


def test_runs_are_stored_apart_for_sampled_and_greedy_texts():
    state, again = PairState(), PairState()
    for _ in range(9):
        state.runs[True].observe(4, 4, 4)
    again.restore(json.loads(json.dumps(state.to_dict())))
    assert again.runs[True].n_seen == pytest.approx(state.runs[True].n_seen, abs=0.001)
    assert again.runs[False].n_seen == 0


@pytest.mark.parametrize("stored", [None, {"priced": {"model": {"explore": 1.0}}}, {"priced": {"model": 3}}])
def test_steps_can_be_set_for_a_drafter_that_is_not_loaded(stored):
    curve = CostCurve()
    curve.observe(1, 0.03)
    state, later = PairState(), PairState([MODEL])
    state.restore(stored)
    state.set_steps("model", curve)
    later.restore(json.loads(json.dumps(state.to_dict())))
    assert later.models["model"].steps.predict(1, 1.0) == pytest.approx(0.03)
    explored = 1.0 if stored and stored["priced"]["model"] != 3 else DEFAULT.explore_allowance
    assert later.models["model"].explore == explored


KEYS = ["tables", "priced", "credit", "runs", "model", "copy", "right", "seen", "after", "first", "steps"]
SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=3)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*KEYS, "explore"]), inner, max_size=4)
    ),
    max_leaves=15,
)
WEIGHTS = st.lists(st.lists(st.floats(0, 1) | SCALARS, min_size=14, max_size=14) | JSON, max_size=3)
STATE = st.fixed_dictionaries(
    {}, optional={"after": JSON, "first": WEIGHTS | JSON, "steps": JSON, "explore": SCALARS}
)
PAIR = st.fixed_dictionaries(
    {},
    optional={
        "tables": st.fixed_dictionaries({"model": JSON}) | JSON,
        "priced": st.fixed_dictionaries({"model": STATE, "x": JSON}) | JSON,
        "credit": JSON,
        "runs": JSON,
    },
)


@settings(deadline=None, max_examples=examples(300))
@given(JSON | PAIR)
def test_any_stored_data_gives_a_valid_state(data):
    state = PairState([MODEL, COPY_ENTRY])
    state.restore(data)
    posterior = state.models["model"]
    assert all(sum(weights) == pytest.approx(1) for weights in posterior.first)
    assert all(0 < chance < 1 for chance in posterior.table.chances)
    assert abs(posterior.explore) <= DEFAULT.explore_allowance
    assert DEFAULT.stored_credit[0] <= state.budget.credit <= DEFAULT.stored_credit[1]
    state.set_steps("x", CostCurve())
    PairState([MODEL]).restore(state.to_dict())


@pytest.mark.parametrize("first", [[[0.0] * 14] * 2, [[1.0] * 13] * 2, [[-1.0] + [1.0] * 13], 3])
def test_impossible_first_bins_are_ignored(first):
    posterior = DrafterPosterior(AcceptanceTable(DEFAULT.chances))
    before = [list(weights) for weights in posterior.first]
    posterior.restore({"first": first})
    assert posterior.first == before


# Steps


def test_step_costs_depend_on_the_number_of_ids():
    steps = StepCosts()
    assert 0 < steps.predict(1, 1.0) < steps.predict(4, 1.0) < 1
    steps.observe(1, 0.01)
    steps.observe(256, 0.4)
    assert steps.predict(1, 1.0) == pytest.approx(0.01)
    assert steps.predict(512, 1.0) == pytest.approx(0.8)
