"""The cost curve: a shape by width times one scale, cautious for unmeasured widths, robust to outliers."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.worker.calibrate import unmeasured
from tests.support.examples import examples

STAIR = {1: 0.010, 2: 0.0175, 3: 0.024, 4: 0.0158, 5: 0.024, 8: 0.028, 16: 0.042}


def measured(points: dict[int, float], times: int = DEFAULT.min_samples) -> CostCurve:
    curve = CostCurve()
    for n, seconds in points.items():
        for _ in range(times):
            curve.observe(n, seconds)
    return curve


def stored(points: dict[int, float], times: int = DEFAULT.min_samples) -> CostCurve:
    return CostCurve.from_dict(json.loads(json.dumps(measured(points, times).to_dict())))


def settled(curve: CostCurve, t1: float = STAIR[1]) -> CostCurve:
    """After the first decodes, which set the scale."""
    for _ in range(8):
        curve.observe(1, t1)
    return curve


def test_an_empty_curve_knows_no_times():
    curve = CostCurve()
    assert not curve.known
    assert curve.predict(5) == 0
    assert unmeasured(curve, [1, 2, 4]) == [1, 2, 4]


def test_measured_widths_are_predicted_as_measured():
    curve = measured(STAIR)
    for n, seconds in STAIR.items():
        assert curve.predict(n) == pytest.approx(seconds)
    assert unmeasured(curve, [1, 4, 6, 16]) == [6]


def test_times_between_measured_widths_are_interpolated():
    curve = measured(STAIR)
    assert curve.predict(6) == pytest.approx(0.024 + (0.028 - 0.024) / 3)
    assert curve.predict(12) == pytest.approx(0.035)


def test_before_any_measurement_the_table_is_the_prior():
    table = CostCurve().table
    assert [table[n] for n, _ in DEFAULT.decode_prior] == [time for _, time in DEFAULT.decode_prior]
    assert all(a < b for a, b in pairwise(table))


def test_wider_decodes_follow_the_prior_from_the_widest_measured():
    curve = measured({1: 0.01})
    assert curve.predict(8) == pytest.approx(0.01 * DEFAULT.prior(8))
    curve = measured({1: 0.01, 8: 0.012})
    assert curve.predict(16) == pytest.approx(0.012 * DEFAULT.prior(16) / DEFAULT.prior(8))
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


# Shape and scale


@pytest.mark.parametrize("seed", range(5))
def test_one_time_in_ten_three_times_as_long_does_not_drive_scale_and_widths_apart(seed):
    rng, curve = random.Random(seed), measured(STAIR)
    used = [1, 2, 4, 8, 16]
    for _ in range(1000):
        n = rng.choice(used)
        curve.observe(n, STAIR[n] * (3 if rng.random() < 0.1 else 1))
    assert curve.scale == pytest.approx(1, rel=0.15)
    for n in STAIR:
        assert curve.predict(n) == pytest.approx(STAIR[n], rel=0.2)
        assert curve.predict(n) / curve.predict(1) == pytest.approx(STAIR[n] / STAIR[1], rel=0.1)


@pytest.mark.parametrize("used", [(1,), (1, 4), (1, 4, 8, 16)])
@pytest.mark.parametrize("times", [DEFAULT.min_samples, 500])
@pytest.mark.parametrize("slower", [2.5, 1 / 2.5])
def test_a_throttled_machine_is_followed_within_forty_rounds(used, times, slower):
    curve = measured(STAIR, times)
    for i in range(40):
        n = used[i % len(used)]
        curve.observe(n, slower * STAIR[n])
    for n in used:
        assert curve.predict(n) == pytest.approx(slower * STAIR[n], rel=0.12)


@pytest.mark.parametrize("slower", [2.5, 1 / 2.5])
def test_the_scale_carries_widths_that_are_not_in_use(slower):
    curve = measured(STAIR, 500)
    for i in range(60):
        n = (1, 4)[i % 2]
        curve.observe(n, slower * STAIR[n])
    assert curve.scale == pytest.approx(slower, rel=0.15)
    for n in STAIR:
        assert curve.predict(n) == pytest.approx(slower * STAIR[n], rel=0.15)


@pytest.mark.parametrize("seconds", [60.0, 1e6])
def test_a_very_long_round_is_an_outlier(seconds):
    curve = measured(STAIR)
    curve.observe(4, seconds)
    for n in STAIR:
        assert STAIR[n] <= curve.predict(n) < 1.2 * STAIR[n]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_ignored(seconds):
    curve = CostCurve()
    curve.observe(1, seconds)
    assert not curve.known
    curve = stored(STAIR)
    curve.set_scale(1, seconds)
    assert curve.scale == 1


@pytest.mark.parametrize("n", [0, -3, DEFAULT.max_rows + 1])
def test_impossible_widths_are_ignored(n):
    curve = CostCurve()
    curve.observe(n, 1.0)
    assert not curve.known


# Stored curves and curves of another context length


def test_stored_times_include_the_scale():
    curve = measured(STAIR, 100)
    for _ in range(40):
        curve.observe(1, 0.02)
    assert curve.scale > 1.5
    restored = CostCurve.from_dict(curve.to_dict())
    assert restored.scale == 1
    for n in range(1, 20):
        assert restored.predict(n) == pytest.approx(curve.predict(n))
    assert unmeasured(restored, STAIR) == []


@pytest.mark.parametrize("n", [1, 4, 16])
def test_a_scale_that_is_set_applies_to_all_stored_widths(n):
    curve = stored(STAIR)
    curve.set_scale(n, 3 * curve.predict(n))
    assert curve.scale == pytest.approx(3)
    for width in STAIR:
        assert curve.predict(width) == pytest.approx(3 * STAIR[width])


def test_the_first_round_sets_the_scale_where_nothing_did_before():
    curve = stored(STAIR)
    curve.observe(4, 3 * STAIR[4])
    for n in STAIR:
        assert curve.predict(n) == pytest.approx(3 * STAIR[n])


@pytest.mark.parametrize("disturbed", [0, 1])
def test_one_disturbed_decode_of_the_first_ones_does_not_set_the_scale(disturbed):
    curve = stored(STAIR)
    for i in range(5):
        curve.observe(1, STAIR[1] * (100 if i == disturbed else 1))
    for n in STAIR:
        assert curve.predict(n) == pytest.approx(STAIR[n])


def test_a_curve_of_this_process_has_no_scale_to_set():
    curve = measured(STAIR)
    curve.set_scale(1, 3 * STAIR[1])
    assert curve.predict(1) == pytest.approx(STAIR[1])


@pytest.mark.parametrize("factor", [7, 1 / 7])
def test_a_wrong_stored_width_is_corrected_by_few_rounds(factor):
    """Other widths keep their times."""
    curve = stored({**STAIR, 16: factor * STAIR[16]}, 500)
    for _ in range(3):
        for n in (1, 4, 16):
            curve.observe(n, STAIR[n])
    for n in STAIR:
        assert curve.predict(n) == pytest.approx(STAIR[n], rel=0.05)


def test_a_stored_width_that_is_about_right_is_kept_and_adapted():
    curve = stored(STAIR, 500)
    curve.set_scale(1, STAIR[1])
    for _ in range(40):
        curve.observe(4, 1.2 * STAIR[4])
        curve.observe(1, STAIR[1])
        assert STAIR[4] * 0.99 < curve.predict(4) < 1.21 * STAIR[4]
    assert curve.predict(4) == pytest.approx(1.2 * STAIR[4], rel=0.05)


def test_a_stored_width_with_too_few_samples_is_measured_again():
    curve = stored({1: 0.01, 4: 0.001}, 1)
    assert unmeasured(curve, [1, 4]) == [1, 4]
    settled(curve)
    for _ in range(DEFAULT.min_samples):
        curve.observe(4, 0.02)
    assert curve.predict(4) == pytest.approx(0.02)


def test_a_prior_from_another_context_length_is_replaced_by_measurements():
    near = measured(STAIR)
    curve = near.as_prior()
    assert curve.known
    assert curve.times == []
    assert curve.to_dict() == {"widths": []}
    assert unmeasured(curve, STAIR) == list(STAIR)
    assert curve.predict(4) == pytest.approx(near.predict(4))
    assert curve.upper_bound(4) > near.upper_bound(4)
    settled(curve, 3 * STAIR[1])
    assert curve.predict(4) == pytest.approx(3 * STAIR[4], rel=0.01)
    curve.observe(4, 0.08)
    assert curve.predict(4) == pytest.approx(0.08)  # its own first time counts
    assert [n for n, _, _ in curve.to_dict()["widths"]] == [1, 4]
    assert near.predict(4) == pytest.approx(STAIR[4])


def test_a_forgotten_width_is_measured_again_unless_this_process_measured_it():
    curve = stored({1: 0.01, 2: 0.025, 4: 0.03})
    settled(curve, 0.01)
    for n in (1, 2):
        curve.forget(n)
    assert unmeasured(curve, [1, 2, 4]) == [2]
    assert curve.predict(2) == pytest.approx(0.025)
    assert [n for n, _ in curve.times] == [1, 4]
    curve.observe(2, 0.013)
    assert curve.predict(2) == pytest.approx(0.013)
    curve.forget(2)
    assert curve.count(2) == 1


@pytest.mark.parametrize("curve", [stored(STAIR), measured(STAIR).as_prior()], ids=["stored", "prior"])
def test_a_width_can_be_forgotten_twice(curve):
    for _ in range(2):
        curve.forget(2)
    assert unmeasured(curve, [2]) == [2]


def test_stored_times_that_cannot_be_are_left_out():
    """Five rows do not take as long as eleven single ones: the machine was busy."""
    curve = CostCurve.from_dict({"widths": [[1, 0.01, 3], [5, 0.11, 3], [8, 0.05, 3]]})
    assert [n for n, _ in curve.times] == [1, 8]


def test_data_of_the_old_form_is_read():
    """It also named widths to be measured again, and what changes of the width cost."""
    changes = {"loading": 0.01, "first": 0.001, "second": 0.004}
    data = {"widths": [[1, 0.01, 4], [2, 0.027, 4]], "anew": [2], "changes": changes}
    curve = CostCurve.from_dict(data)
    assert curve.times == [(1, 0.01), (2, 0.027)]
    assert unmeasured(curve, [1, 2]) == []
    assert CostCurve.from_dict(curve.to_dict()).times == curve.times


WIDTHS = st.sampled_from([1, 2, 3, 5, 8, 16, 64])
ROUNDS = st.lists(st.tuples(WIDTHS, st.floats(1e-4, 1.0)), max_size=40)
PLAUSIBLE = st.lists(
    st.tuples(WIDTHS, st.floats(0.008, 0.012)).map(lambda x: (x[0], x[1] * DEFAULT.prior(x[0]))), max_size=40
)


@settings(deadline=None, max_examples=examples(100))
@given(ROUNDS)
def test_a_curve_stays_valid_whatever_is_observed(rounds):
    for curve in (CostCurve(), stored(STAIR), measured(STAIR).as_prior()):
        for n, seconds in rounds:
            curve.observe(n, seconds)
        if curve.known:
            assert all(0 < curve.predict(n) <= curve.upper_bound(n) < 1e6 for n in range(1, 130))
        json.dumps(curve.to_dict(), allow_nan=False)


@settings(deadline=None, max_examples=examples(100))
@given(PLAUSIBLE)
def test_predictions_do_not_depend_on_the_order_in_which_widths_were_met(rounds):
    """Each round changes only a part of the table; a restored curve has its widths in order."""
    curve = CostCurve()
    for n, seconds in rounds:
        curve.observe(n, seconds)
    restored = CostCurve.from_dict(curve.to_dict())
    widths = range(1, DEFAULT.max_rows + 3)
    assert [restored.predict(n) for n in widths] == pytest.approx([curve.predict(n) for n in widths])
    table = [curve.scale * seconds for seconds in curve.table][1:]
    if rounds:
        assert table == [curve.predict(n) for n in range(1, DEFAULT.max_rows + 1)]
        assert curve.table[1:] == [curve._predict(n) for n in range(1, DEFAULT.max_rows + 1)]


SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=3)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["widths", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)
NEARLY_WIDTHS = st.lists(
    st.lists(st.integers(-1, 70) | st.floats(0, 2) | SCALARS, min_size=2, max_size=4), max_size=4
)


@settings(deadline=None)
@given(JSON | st.fixed_dictionaries({"widths": NEARLY_WIDTHS | JSON, "anew": JSON, "changes": JSON}))
def test_any_stored_data_gives_a_valid_curve(data):
    curve = CostCurve.from_dict(data)
    assert all(math.isfinite(curve.predict(n)) for n in (1, 2, 64, 100))
    assert curve.known == bool(curve.times)
    assert all(1 <= n <= DEFAULT.max_rows and 0 < seconds < 1e7 for n, seconds in curve.times)
    json.dumps(curve.to_dict(), allow_nan=False)
    curve.observe(1, 0.01)
    assert curve.predict(1) > 0


@pytest.mark.parametrize(
    "item", [[0, 1.0, 3], [1, -1.0, 3], [1, 1.0, 0], [1.5, 1.0, 3], [1, "1", 3], [65, 1.0, 3], [1, 1.0], True]
)
def test_one_invalid_width_invalidates_the_stored_curve(item):
    assert not CostCurve.from_dict({"widths": [[1, 0.01, 3], item]}).known
