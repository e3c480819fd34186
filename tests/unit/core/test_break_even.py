"""The acceptance from which drafts pay, compared with values computed by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.replay.break_even import acceptance_needed, break_evens, easiest, expected_tokens


def curve(points: dict[int, float], times: int = DEFAULT.min_samples) -> CostCurve:
    made = CostCurve()
    for n, seconds in points.items():
        for _ in range(times):
            made.observe(n, seconds)
    return made


@pytest.mark.parametrize(
    ("acceptance", "k", "tokens"),
    [(0, 3, 1), (1, 3, 4), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.9, 2, 2.71), (1, 2.5, 3.5)],
)
def test_expected_tokens(acceptance, k, tokens):
    assert expected_tokens(acceptance, k) == pytest.approx(tokens)


def test_expected_tokens_agree_with_a_simulation():
    rng, n = random.Random(1), 40_000
    total = sum(1 + next((i for i in range(4) if rng.random() >= 0.7), 4) for _ in range(n))
    assert total / n == pytest.approx(expected_tokens(0.7, 4), rel=0.01)


@pytest.mark.parametrize(
    ("k", "cost", "acceptance"),
    [
        (1, 1.9, 0.9),  # 1 + a = 1.9
        (1, 1.0, 0.0),
        (1, 0.5, 0.0),
        (1, 2.0, 1.0),
        (1, 5.0, 1.0),
        (2, 2.0, (math.sqrt(5) - 1) / 2),  # 1 + a + a² = 2
        (3, 1.875, 0.5),
        (7, 1.2, 1 / 6),  # nearly 1 / (1 - a)
    ],
)
def test_acceptance_needed(k, cost, acceptance):
    assert acceptance_needed(k, cost) == pytest.approx(acceptance, abs=1e-5)


@settings(deadline=None)
@given(st.integers(1, 63), st.floats(1.001, 60))
def test_the_acceptance_needed_breaks_even(k, cost):
    needed = acceptance_needed(k, cost)
    assert 0 <= needed <= 1
    if cost < k + 1:
        assert expected_tokens(needed, k) == pytest.approx(cost, rel=1e-6)
    assert acceptance_needed(k, cost * 1.01) >= needed


def test_break_evens_has_each_length_whose_decode_was_measured():
    lengths = break_evens(curve({1: 0.01, 2: 0.019, 3: 0.03, 4: 0.0158}), 0.0)
    assert [b.k for b in lengths] == [1, 2, 3]
    assert [b.decode for b in lengths] == pytest.approx([1.9, 3.0, 1.58])
    assert lengths[0].acceptance == pytest.approx(0.9)
    assert lengths[1].acceptance == 1
    assert lengths[2].acceptance < 0.45
    assert easiest(lengths) == lengths[2]  # a third draft token makes the decode faster
    assert break_evens(curve({1: 0.01, 2: 0.019, 4: 0.02}), 0.0, (1, 2)) == lengths[:1]


def test_steps_of_the_draft_model_raise_the_acceptance_needed():
    (point,) = break_evens(curve({1: 0.01, 2: 0.015}), 0.003)
    assert (point.k, point.step) == (1, pytest.approx(0.3))
    assert point.acceptance == pytest.approx(0.8)


def test_unmeasured_widths_have_no_break_even():
    assert break_evens(CostCurve(), 0.0) == []
    assert break_evens(curve({1: 0.01}), 0.0) == []
    assert break_evens(curve({1: 0.01, 2: 0.02}, DEFAULT.min_samples - 1), 0.0) == []
    assert easiest([]) is None


def test_where_no_draft_can_pay_the_shortest_is_returned():
    shortest = easiest(break_evens(curve({1: 0.01, 2: 0.025, 3: 0.04}), 0.0))
    assert shortest is not None
    assert (shortest.k, shortest.acceptance) == (1, 1.0)
