"""Chances by bin: counted, forgotten slowly, shrunk to a prior, stored."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.policy.acceptance import AcceptanceTable
from specllama.core.policy.config import DEFAULT

PRIORS = (0.2, 0.5, 0.9)


def test_nothing_seen_is_the_prior():
    assert AcceptanceTable(PRIORS).chances == list(PRIORS)


def test_what_was_seen_weighs_more_and_more():
    table = AcceptanceTable(PRIORS, weight=4)
    table.observe(0, True)
    assert table.chances[0] == pytest.approx((1 + 4 * 0.2) / 5)
    for _ in range(300):
        table.observe(0, True)
    assert table.chances[0] > 0.95
    assert table.chances[1:] == [0.5, 0.9]


def test_what_is_long_ago_is_forgotten():
    table = AcceptanceTable(PRIORS, forget=0.98)
    for right in [True] * 500 + [False] * 100:
        table.observe(1, right)
    assert table.chances[1] < 0.2


def test_nothing_is_certain():
    table = AcceptanceTable((1.0,))
    for _ in range(10_000):
        table.observe(0, True)
    assert table.chances[0] == DEFAULT.max_chance < 1


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_it_is_stored(seen):
    table, again = AcceptanceTable(PRIORS), AcceptanceTable(PRIORS)
    for bin_, right in seen:
        table.observe(bin_, right)
    assert all(0 < chance < 1 for chance in table.chances)
    assert again.restore(table.to_dict())
    assert again.chances == pytest.approx(table.chances, abs=0.001)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=63), st.booleans(), st.sampled_from([0.98, 0.995, 1.0])
)
def test_a_run_counts_as_its_tokens_in_turn(bins, last, forget):
    one, other = AcceptanceTable(PRIORS, forget=forget), AcceptanceTable(PRIORS, forget=forget)
    one.observe_run(bins, last)
    for i, bin_ in enumerate(bins):
        other.observe(bin_, last or i < len(bins) - 1)
    assert one.chances == pytest.approx(other.chances, rel=1e-12)
    assert one.n_seen == pytest.approx(other.n_seen)
    assert one.rate == pytest.approx(other.rate)


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
def test_what_is_no_table_is_left_out(data):
    table = AcceptanceTable(PRIORS)
    table.observe(0, True)
    before = list(table.chances)
    assert not table.restore(data)
    assert table.chances == before
