"""Estimates from medians, and their intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.intervals import estimate


def test_an_estimate_is_the_median_of_the_medians_of_its_units() -> None:
    e = estimate([[[1.0, 9.0, 2.0], [4.0], [8.0, 16.0]]])  # medians 2, 4, 12
    assert e is not None
    assert (e.value, e.n) == (4.0, 6)
    assert e.low is not None
    assert e.high is not None
    assert 1.0 <= e.low < 4 < e.high <= 16.0


def test_all_workloads_have_equal_weight_however_many_prompts_they_have() -> None:
    e = estimate([[[4.0]], [[1.0]] * 50])
    assert e is not None
    assert e.value == pytest.approx(2.0)  # the geometric mean of 4 and 1
    assert (e.low, e.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_too_few_values_have_no_interval() -> None:
    assert estimate([]) is None
    assert estimate([[[]], []]) is None
    one = estimate([[[3.0], []]])
    assert one is not None
    assert (one.value, one.low, one.high, one.n) == (pytest.approx(3.0), None, None, 1)


def test_an_interval_narrows_with_the_number_of_prompts() -> None:
    few, many = (estimate([[[1 + 0.1 * (i % 10)] for i in range(n)]]) for n in (10, 1000))
    assert few is not None
    assert many is not None
    width_few, width_many = (e.high - e.low for e in (few, many) if e.high and e.low)
    assert 0 < width_many < width_few / 3


@given(st.lists(st.lists(st.lists(st.floats(0.1, 10), max_size=3), max_size=4), max_size=3))
def test_an_estimate_lies_within_its_values_and_its_interval(groups: list[list[list[float]]]) -> None:
    values = [x for units in groups for unit in units for x in unit]
    e = estimate(groups)
    assert (e is None) == (not values)
    if e is not None:
        assert min(values) * 0.999 <= e.value <= max(values) * 1.001
        assert e.n == len(values)
        if e.low is not None and e.high is not None:
            assert min(values) * 0.999 <= e.low <= e.high <= max(values) * 1.001
