"""Acceptance tables: chances by bin with a prior and exponential forgetting, and their storage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.policy.acceptance import PairState
from specllama.core.policy.acceptance_table import AcceptanceTable
from specllama.core.policy.candidates import CandidateDraft
from specllama.core.policy.config import DEFAULT
from specllama.drafters import HEAD, MODEL

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


def observe(state: PairState, name: str, confidence: float, right: tuple[bool, ...]) -> None:
    """One draft of tokens of this confidence."""
    draft = CandidateDraft()
    for place in range(len(right)):
        draft.add(place, name, state.bin_of(name, confidence, place), 0.5)
    tokens = [place if ok else -1 for place, ok in enumerate(right)]
    state.observe_model(draft, tokens, name)


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
    assert state.priced["model"].next_chance(state.bin_of("model", 0.93, 0)) < DEFAULT.next_chances[7]
