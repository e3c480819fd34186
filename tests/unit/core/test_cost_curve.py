"""The cost curve: one estimate per width, cautious for unmeasured widths, robust against disturbed times."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve, StepCosts, decode_prior

STAIR = {1: 0.010, 2: 0.0175, 3: 0.024, 4: 0.0158, 5: 0.024, 8: 0.028, 16: 0.042}


def measured(points: dict[int, float], times: int = DEFAULT.min_samples) -> CostCurve:
    curve = CostCurve()
    for n, seconds in points.items():
        for _ in range(times):
            curve.observe(n, seconds)
    return curve


def test_an_empty_curve_knows_no_times():
    curve = CostCurve()
    assert not curve.known
    assert curve.predict(5) == 0
    assert curve.unmeasured([1, 2, 4]) == [1, 2, 4]


def test_measured_widths_are_predicted_as_measured():
    curve = measured(STAIR)
    for n, seconds in STAIR.items():
        assert curve.predict(n) == pytest.approx(seconds)
    assert curve.unmeasured([1, 4, 6, 16]) == [6]


def test_times_between_measured_widths_are_interpolated():
    curve = measured(STAIR)
    assert curve.predict(6) == pytest.approx(0.024 + (0.028 - 0.024) / 3)
    assert curve.predict(12) == pytest.approx(0.035)


def test_wider_decodes_follow_the_prior_from_the_widest_measured():
    curve = measured({1: 0.01})
    assert curve.predict(8) == pytest.approx(0.01 * decode_prior(8))
    curve = measured({1: 0.01, 8: 0.012})
    assert curve.predict(16) == pytest.approx(0.012 * decode_prior(16) / decode_prior(8))
    assert curve.predict(2 * DEFAULT.max_rows) == pytest.approx(2 * curve.predict(DEFAULT.max_rows))


def test_several_rows_are_never_predicted_faster_than_one():
    assert measured({1: 0.01, 2: 0.005}).predict(2) == pytest.approx(0.01)


def test_the_upper_bound_is_higher_for_unmeasured_widths():
    curve = measured({1: 0.01, 8: 0.02})
    assert curve.upper_bound(8) == curve.predict(8)
    assert curve.upper_bound(2) == pytest.approx(1.5 * curve.predict(2))
    assert curve.upper_bound(30) > curve.predict(30)


def test_the_shortest_of_the_first_times_counts():
    curve = CostCurve()
    for seconds in (0.9, 0.011, 0.010):
        curve.observe(1, seconds)
    assert curve.predict(1) == pytest.approx(0.010)


@pytest.mark.parametrize("seed", range(5))
def test_one_time_in_ten_twice_as_long_has_little_effect(seed):
    rng, curve = random.Random(seed), measured(STAIR)
    for _ in range(400):
        n = rng.choice([1, 1, 4, 5])
        curve.observe(n, STAIR[n] * (2 if rng.random() < 0.1 else 1), plain=n == 1)
    for n in (1, 4, 5):
        assert curve.predict(n) == pytest.approx(STAIR[n], rel=0.35)
    assert curve.predict(4) / curve.predict(1) == pytest.approx(1.58, rel=0.2)


def test_a_slower_machine_raises_the_times_of_all_widths():
    curve = measured(STAIR)
    for i in range(60):
        n = (1, 4)[i % 2]
        curve.observe(n, 2 * STAIR[n], plain=n == 1)
    for n in STAIR:  # also those not measured again
        assert curve.predict(n) == pytest.approx(2 * STAIR[n], rel=0.1)
    assert curve.scale == pytest.approx(2, rel=0.1)


def test_a_very_long_round_is_an_outlier():
    curve = measured(STAIR)
    curve.observe(4, 60.0)
    assert curve.predict(4) < 1.1 * STAIR[4]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_ignored(seconds):
    curve = CostCurve()
    curve.observe(1, seconds)
    assert not curve.known


@pytest.mark.parametrize("n", [0, -3, DEFAULT.max_rows + 1])
def test_impossible_widths_are_ignored(n):
    curve = CostCurve()
    curve.observe(n, 1.0)
    assert not curve.known


def test_stored_times_include_the_scale():
    curve = measured(STAIR)
    for _ in range(40):
        curve.observe(1, 0.02, plain=True)
    restored = CostCurve.from_dict(curve.to_dict())
    assert restored.scale == 1
    for n in range(1, 20):
        assert restored.predict(n) == pytest.approx(curve.predict(n))
    assert restored.unmeasured(STAIR) == []


# Stored curves and curves of another context length


def stored(points: dict[int, float], times: int = DEFAULT.min_samples) -> CostCurve:
    return CostCurve.from_dict(measured(points, times).to_dict())


def test_the_first_plain_rounds_set_the_scale_of_a_stored_curve():
    curve = stored(STAIR)
    assert curve.scale_uncertain
    curve.observe(1, 3 * STAIR[1], plain=True)
    assert not curve.scale_uncertain
    for n in STAIR:
        assert curve.predict(n) == pytest.approx(3 * STAIR[n])
    curve.observe(4, STAIR[4])  # so the plain round was disturbed
    curve.observe(1, STAIR[1], plain=True)
    for n in STAIR:
        assert curve.predict(n) == pytest.approx(STAIR[n], rel=0.01)


def test_a_stored_width_that_is_far_off_is_measured_again():
    curve = stored(STAIR)
    curve.observe(1, STAIR[1], plain=True)
    assert not curve.is_reliable(4)
    curve.observe(4, 5 * STAIR[4])
    assert curve.predict(4) == pytest.approx(5 * STAIR[4])
    assert curve.unmeasured([4]) == [4]
    for _ in range(DEFAULT.min_samples):
        curve.observe(4, 5 * STAIR[4])
    assert curve.is_reliable(4)
    assert curve.predict(16) == pytest.approx(STAIR[16])  # other widths keep their times


def test_a_stored_width_that_is_about_right_is_kept_and_adapted():
    curve = stored(STAIR, 500)
    curve.observe(1, STAIR[1], plain=True)
    for _ in range(30):
        curve.observe(4, 1.2 * STAIR[4])
        curve.observe(1, STAIR[1], plain=True)
        assert STAIR[4] * 0.99 < curve.predict(4) < 1.21 * STAIR[4]
    assert curve.is_reliable(4)
    assert curve.predict(4) == pytest.approx(1.2 * STAIR[4], rel=0.05)


def test_a_stored_width_with_too_few_samples_is_measured_again():
    curve = stored({1: 0.01, 4: 0.001}, 1)
    curve.observe(1, 0.01, plain=True)
    for _ in range(DEFAULT.min_samples):
        curve.observe(4, 0.02)
    assert curve.predict(4) == pytest.approx(0.02)


def test_a_prior_from_another_context_length_is_replaced_by_measurements():
    near = measured(STAIR)
    for _ in range(60):
        near.observe(1, 2 * STAIR[1], plain=True)
    curve = near.as_prior()
    assert curve.known
    assert not curve.measured
    assert curve.scale_uncertain
    assert curve.to_dict() == {"widths": [], "anew": []}
    assert curve.unmeasured(STAIR) == list(STAIR)
    assert curve.predict(4) == pytest.approx(near.predict(4))
    assert curve.upper_bound(4) > near.upper_bound(4)
    curve.observe(1, 0.03, plain=True)
    assert curve.predict(4) == pytest.approx(3 * STAIR[4], rel=0.01)
    curve.observe(4, 0.08)
    assert curve.predict(4) == pytest.approx(0.08)  # its own first time counts
    assert [n for n, _, _ in curve.to_dict()["widths"]] == [1, 4]
    assert near.predict(4) == pytest.approx(2 * STAIR[4], rel=0.01)


def test_a_confirmed_implausible_time_is_accepted_in_later_processes():
    """Two rows can take longer than two single ones: tiled kernels always compute whole tiles."""
    curve = stored({1: 0.01, 2: 0.027, 4: 0.03})
    curve = CostCurve.from_dict(curve.to_dict())
    assert curve.unmeasured([1, 2, 4]) == [2]
    curve.forget(2)
    assert CostCurve.from_dict(curve.to_dict()).unmeasured([1, 4]) == []
    for _ in range(3):
        assert curve.unmeasured([1, 2, 4]) == [2]
        curve.observe(2, 0.026)
    assert curve.unmeasured([1, 2, 4]) == []
    restored = CostCurve.from_dict(curve.to_dict())
    assert restored.unmeasured([1, 2, 4]) == []
    assert restored.predict(2) == pytest.approx(0.026)


@pytest.mark.parametrize("anew", [None, 3, "2", [True], [0], [1e9], [[2]], {"2": 1}])
def test_invalid_stored_confirmations_are_ignored(anew):
    data = {"widths": [[1, 0.01, 4], [2, 0.027, 4]], "anew": anew}
    assert CostCurve.from_dict(data).unmeasured([1, 2]) == [2]


def test_remeasure_if_stored_forgets_only_stored_widths():
    curve = stored({1: 0.01, 2: 0.025, 4: 0.03})
    curve.observe(1, 0.01, plain=True)
    for n in (1, 2):
        curve.remeasure_if_stored(n)
    assert curve.unmeasured([1, 2, 4]) == [2]
    assert curve.predict(2) == pytest.approx(0.025)
    curve.observe(2, 0.013)
    assert curve.predict(2) == pytest.approx(0.013)
    for _ in range(DEFAULT.min_samples):
        curve.observe(2, 0.013)
    curve.remeasure_if_stored(2)
    assert curve.is_reliable(2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 16]), st.floats(1e-4, 1.0)), max_size=30))
def test_a_stored_curve_stays_valid_whatever_is_observed(times):
    for curve in (stored(STAIR), measured(STAIR).as_prior()):
        for n, seconds in times:
            curve.observe(n, seconds, plain=n == 1)
        assert all(0 < curve.predict(n) < 1e4 for n in (1, 2, 3, 4, 16, 64))
        restored = CostCurve.from_dict(curve.to_dict())
        assert restored.measured == curve.measured


json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["widths", "x"]), inner),
    max_leaves=12,
)


ROUNDS = st.tuples(st.sampled_from([1, 2, 3, 5, 8, 16, 64]), st.floats(0.5, 3.0), st.booleans())


@given(st.lists(ROUNDS, min_size=1, max_size=40), st.booleans())
def test_predictions_do_not_depend_on_earlier_predictions(rounds, stored):
    """Cached predictions are those of a curve that predicts for the first time."""
    used, unused = CostCurve(), CostCurve()
    if stored:
        data = {"widths": [[1, 0.01, 4], [4, 0.02, 4], [16, 0.05, 4]], "anew": []}
        used, unused = CostCurve.from_dict(data), CostCurve.from_dict(data)
    for n, factor, plain in rounds:
        for curve in (used, unused):
            curve.observe(n, factor * 0.01 * decode_prior(n), plain and n == 1)
        predicted = [used.predict(m) for m in range(1, DEFAULT.max_rows + 3)]
        assert [used.scale * seconds for seconds in used.table()][1:] == predicted[: DEFAULT.max_rows]
    assert predicted == [unused.predict(m) for m in range(1, DEFAULT.max_rows + 3)]


@given(json)
def test_invalid_stored_data_gives_an_empty_or_valid_curve(data):
    curve = CostCurve.from_dict(data)
    assert all(math.isfinite(curve.predict(n)) and curve.predict(n) >= 0 for n in (1, 2, 64))


@pytest.mark.parametrize(
    "item", [[0, 1.0, 3], [1, -1.0, 3], [1, 1.0, 0], [1.5, 1.0, 3], [1, "1", 3], [65, 1.0, 3], [1, 1.0], True]
)
def test_one_invalid_width_invalidates_the_stored_curve(item):
    assert not CostCurve.from_dict({"widths": [[1, 0.01, 3], item]}).known


def test_step_costs_depend_on_the_number_of_ids():
    steps = StepCosts()
    assert 0 < steps.predict(1, 1.0) < steps.predict(4, 1.0) < 1
    steps.observe(1, 0.01)
    steps.observe(256, 0.4)
    assert steps.predict(1, 1.0) == pytest.approx(0.01)
    assert steps.predict(512, 1.0) == pytest.approx(0.8)
