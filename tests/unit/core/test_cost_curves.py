"""Cost curves by context length: each range has its own, a new one starts as the nearest measured one."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.policy.base import Draft, Round, VerifyResult
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.worker.profile import CostCurves, bucket_of
from tests.support.scripted import ScriptedDrafter


def fill(curves: CostCurves, n_ids: int, points: dict[int, float]) -> None:
    for n, seconds in points.items():
        for _ in range(10):
            curves.at(n_ids).observe(n, seconds)


def test_a_curve_applies_to_a_range_of_lengths():
    curves = CostCurves()
    assert curves.at(0) is curves.at(4095)
    assert curves.at(4096) is curves.at(16383)
    assert len({id(curves.at(n)) for n in (0, 4096, 16384, 65536, 10**7)}) == len(DEFAULT.context_buckets)


def test_a_new_range_starts_as_the_nearest_measured_one():
    curves = CostCurves()
    fill(curves, 10, {1: 0.01, 4: 0.02})
    fill(curves, 70_000, {1: 0.1, 4: 0.3})
    curves.at(20_000)
    assert curves.at(20_000).predict(4) == pytest.approx(0.3)  # the nearest is the one from 65536
    assert curves.at(5_000).predict(4) == pytest.approx(0.02)  # the nearest measured is the first
    assert curves.at(20_000).times == []


def test_a_new_range_adapts_at_once():
    """Attention raises the cost of wide decodes: the first round sets the scale, a wide one its width."""
    curves = CostCurves()
    fill(curves, 0, {1: 0.01, 4: 0.015})
    long = curves.at(5000)
    long.observe(1, 0.02)
    assert long.predict(4) == pytest.approx(0.03)
    for _ in range(6):
        long.observe(1, 0.02)
    long.observe(4, 0.06)
    assert long.predict(4) == pytest.approx(0.06)
    assert curves.at(0).predict(4) == pytest.approx(0.015)


def test_curves_are_stored_by_range():
    curves = CostCurves()
    fill(curves, 0, {1: 0.01, 4: 0.02})
    fill(curves, 5000, {1: 0.02})
    curves.at(20_000)
    data = json.loads(json.dumps(curves.to_dict()))
    assert list(data) == ["0", "4096"]
    restored = CostCurves.from_dict(data)
    assert restored.at(0).predict(4) == pytest.approx(0.02)
    assert restored.at(5000).predict(1) == pytest.approx(0.02)
    assert restored.at(20_000).predict(1) == pytest.approx(0.02)  # a prior


def test_used_curves_can_be_selected():
    curves = CostCurves()
    fill(curves, 0, {1: 0.01})
    fill(curves, 5000, {1: 0.02})
    restored = CostCurves.from_dict(curves.to_dict())
    assert restored.to_dict(used=True) == {}
    restored.at(4096)
    assert list(restored.to_dict(used=True)) == ["4096"]
    assert list(restored.to_dict()) == ["0", "4096"]


def test_a_curve_can_be_replaced():
    curves, measured = CostCurves(), CostCurve()
    measured.observe(1, 0.03)
    curves.put(5000, measured)
    assert curves.at(4096) is measured
    assert curves.at(0) is not measured
    assert list(curves.to_dict(used=True)) == ["4096"]


@given(st.integers(0, 10**7))
def test_the_range_of_a_length_is_the_last_one_that_begins_before_it(n_ids):
    bucket = bucket_of(n_ids)
    assert bucket <= n_ids
    assert not any(bucket < other <= n_ids for other in DEFAULT.context_buckets)


def test_stored_curves_of_the_old_form_are_read():
    old = {"widths": [[1, 0.01, 3], [4, 0.02, 3]], "anew": [], "changes": {"first": 0.001, "second": 0.004}}
    curves = CostCurves.from_dict({"0": old, "changes": {"first": 0.001}, "1": old})
    assert curves.at(0).predict(4) == 0.02
    assert list(curves.to_dict()) == ["0"]


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["widths", "0", "4096"]), inner, max_size=3)
    ),
    max_leaves=15,
)


@settings(deadline=None)
@given(anything)
def test_invalid_stored_data_gives_valid_curves(data):
    curves = CostCurves.from_dict(data)
    for n_ids in (0, 5000, 10**6):
        assert all(math.isfinite(curves.at(n_ids).predict(n)) for n in (1, 2, 64))
    json.dumps(curves.to_dict(), allow_nan=False)


def test_a_planner_switches_to_the_curve_of_a_longer_context():
    """Rows are nearly free in a short context and cost as much as decodes in a long one; drafts are right."""
    curves, now = CostCurves(), [0.0]
    fill(curves, 0, {n: 0.01 * (1 + 0.02 * n) for n in (1, 2, 4, 8, 16)})
    copies = ScriptedDrafter(lambda history, draft: 5, "copy", 0.97)  # noqa: ARG005
    policy = Planner([copies], lambda: now[0], curves.at(0))
    policy.start(0, [1], KeyedSampler(SamplingParams(temperature=0), 0, 32))
    assert max(_widths(policy, curves, 0, now, lambda n: 0.01 * (1 + 0.02 * n))) > 4
    long = _widths(policy, curves, 4096, now, lambda n: 0.02 * n)
    assert long[0] == 1, "the first round in a new range is plain"
    assert long[-40:].count(1) > 35
    assert max(_widths(policy, curves, 0, now, lambda n: 0.01 * (1 + 0.02 * n))) > 4


def _widths(policy, curves, n_ids, now, seconds, n_rounds=80):
    widths = []
    for _ in range(n_rounds):
        if policy.costs is not curves.at(n_ids):
            policy.use_costs(curves.at(n_ids))
        draft = policy.draft({0: 99}).get(0, Draft())
        n = len(draft.tokens) + 1
        now[0] += seconds(n)
        policy.committed(0, [*draft.tokens, 5])
        policy.observe(Round(n, seconds(n), 0.0, seconds(n), [VerifyResult(0, draft, n - 1, n)]))
        widths.append(n)
    return widths
