"""The shape of a cost curve from products of rows by type of weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.worker.profile_data import CostCurves
from specllama.worker.row_prior import SEVERAL_ROWS, WIDTHS, WeightsRead, checked_times, row_prior


def line(t1: float, more: float) -> list[float]:
    """t1 seconds per byte for one row, and `more` for each further one."""
    return [t1 + more * (n - 1) for n in WIDTHS]


def shape(products: Callable[[int], float]) -> tuple[tuple[int, Any], ...]:
    """The shape that is expected of products that take so long, in those of one row."""
    return tuple((n, pytest.approx(products(n) * (SEVERAL_ROWS if n > 1 else 1))) for n in WIDTHS)


FLAT, STEEP = line(1e-10, 0.0), line(1e-10, 1e-10)
TIMES = {"FLAT": FLAT, "STEEP": STEEP, "SLOW": line(3e-10, 3e-10)}


def test_one_type_has_the_shape_of_its_products() -> None:
    assert row_prior(TIMES, [WeightsRead("STEEP", 10**9)]) == shape(lambda n: n)


def test_types_count_by_the_time_that_one_row_takes() -> None:
    prior = row_prior(TIMES, [WeightsRead("FLAT", 3000), WeightsRead("SLOW", 1000)])
    # Half of the time of one row is SLOW's, though it has a quarter of the bytes.
    assert prior == shape(lambda n: (1 + n) / 2)


def test_without_the_times_of_most_weights_there_is_no_shape() -> None:
    assert row_prior(TIMES, []) is None
    assert row_prior({}, [WeightsRead("FLAT", 1000)]) is None
    assert row_prior(TIMES, [WeightsRead("FLAT", 800), WeightsRead("NEW", 200)]) is None
    mostly = [WeightsRead("FLAT", 950), WeightsRead("NEW", 50)]
    assert row_prior(TIMES, mostly) == shape(lambda _: 1.0)


def test_more_rows_never_cost_less() -> None:
    times = {"NOISY": [1e-10 * x for x in (1, 0.5, 1.3, 1.2, 1.5, 2, 3, 4, 3.5, 5, 6)]}
    prior = row_prior(times, [WeightsRead("NOISY", 1000)])
    assert prior is not None
    expected = [1.3, 1.3, 1.5, 2, 3, 4, 4, 5, 6]
    assert [t for _, t in prior] == pytest.approx([1, 1, *(SEVERAL_ROWS * t for t in expected)])


def test_rows_of_experts_read_further_experts() -> None:
    """Two rows with one of many experts each almost always read two; with all of them, the same."""
    few = row_prior(TIMES, [WeightsRead("FLAT", 1000, n_expert=128, n_used=8)])
    assert few is not None
    assert few[1][1] == pytest.approx(SEVERAL_ROWS * (2 - 8 / 128))  # by inclusion and exclusion
    assert few[-1][1] == pytest.approx(SEVERAL_ROWS * 16 * (1 - (1 - 8 / 128) ** 64))
    everything = row_prior(TIMES, [WeightsRead("FLAT", 1000, n_expert=8, n_used=8)])
    assert everything == shape(lambda _: 1.0)


@given(
    st.dictionaries(
        st.sampled_from(["A", "B", "C"]),
        st.lists(st.floats(1e-12, 1e-9), min_size=len(WIDTHS), max_size=len(WIDTHS)),
        min_size=1,
    ),
    st.lists(
        st.tuples(st.sampled_from(["A", "B", "C"]), st.integers(1, 10**12), st.integers(1, 256)), max_size=4
    ),
)
def test_a_shape_begins_with_one_and_never_falls(times: dict[str, list[float]], given_: list[Any]) -> None:
    weights = [WeightsRead(kind, size, n_expert, 1 + n_expert // 8) for kind, size, n_expert in given_]
    prior = row_prior(times, weights)
    if prior is not None:
        assert prior[0] == (1, 1.0)
        assert [n for n, _ in prior] == list(WIDTHS)
        assert all(a[1] <= b[1] < math.inf for a, b in pairwise(prior))


@pytest.mark.parametrize(
    "bad",
    [
        None, [], 7, {"A": None}, {"A": "x" * len(WIDTHS)}, {"A": FLAT[1:]}, {"A": [*FLAT, 1e-10]},
        {"A": [*FLAT[1:], True]}, {"A": [*FLAT[1:], math.nan]}, {"A": [*FLAT[1:], math.inf]},
        {"A": [*FLAT[1:], -1e-10]}, {"A": [*FLAT[1:], 0]}, {"A": [*FLAT[1:], 10**400]},
        {"A": [1e-10, 5e-10, *FLAT[2:]]},  # two rows took longer than four single ones
    ],
)  # fmt: skip
def test_bad_times_are_left_out(bad: object) -> None:
    assert checked_times(bad) == {}
    if isinstance(bad, dict):
        assert checked_times({**bad, "B": STEEP}) == {"B": STEEP}


def test_a_curve_begins_with_the_shape_and_corrects_it() -> None:
    config = replace(DEFAULT, decode_prior=tuple((n, (1 + n) / 2) for n in WIDTHS))
    curve = CostCurve(config)
    for _ in range(3):
        curve.observe(1, 0.01)
    assert [curve.predict(n) for n in (1, 2, 4, 7, 64)] == pytest.approx([0.01, 0.015, 0.025, 0.04, 0.325])
    assert config.prior(128) == pytest.approx(65.0)
    assert curve.upper_bound(2) == pytest.approx(1.1 * 2 * 0.01)  # it was never measured
    for _ in range(3):
        curve.observe(4, 0.011)
    assert curve.predict(4) == pytest.approx(0.011, rel=0.05)
    assert curve.predict(8) == pytest.approx(0.011 * 4.5 / 2.5, rel=0.05)


def test_all_curves_of_a_model_have_the_shape() -> None:
    config = replace(DEFAULT, decode_prior=((1, 1.0), (64, 1.0)))
    curves = CostCurves.from_dict(None, config)
    for n_ids in (0, 5000):
        curve = curves.at(n_ids)
        curve.observe(1, 0.01)
        assert curve.predict(8) == pytest.approx(curve.predict(1))
