"""What changes of the width cost is learnt from decodes in a row, and stored; elsewhere nothing changes."""

from __future__ import annotations

import random

import pytest

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve, CostCurves
from specllama.core.policy.warm_up import SECONDS, warm_up
from specllama.core.policy.width_changes import Phase, WidthChanges
from specllama.core.replay.devices import ChangingDevice
from tests.support.devices import curves

GPUS = ["8B Q4_K_M", "MoE 128/8, 16 layers, Q4_K_M", "padded 4B Q4_0", "nine rows cost twice eight"]
STEADY = {1: 0.004, 2: 0.0045, 8: 0.008, 16: 0.009}


def device(first: float = 0.001, second: float = 0.004) -> ChangingDevice:
    return ChangingDevice(lambda n: STEADY[n], lambda n: first, lambda n: second)  # noqa: ARG005


def observed(one: ChangingDevice, widths: list[int]) -> CostCurve:
    curve = CostCurve()
    for n in widths:
        curve.observe(n, one(n), plain=n == 1)
    return curve


RUNS = [n for n in (1, 2, 8, 1, 2, 8, 1, 2, 8) for _ in range(4)]


def test_phases_are_counted_in_a_run():
    changes = WidthChanges()
    phases = [changes.record(n, 0.01) for n in (1, 1, 1, 2, 2, 2, 1, 1, 1, 2)]
    assert phases == [
        *[Phase.LOADING] * 2, Phase.STEADY, *[Phase.LOADING] * 2, Phase.STEADY,
        Phase.FIRST, Phase.SECOND, Phase.STEADY, Phase.FIRST,
    ]  # fmt: skip


def test_other_decodes_end_a_run():
    changes = WidthChanges()
    for _ in range(4):
        changes.record(1, 0.01)
    changes.interrupt()
    assert changes.record(1, 0.01) == Phase.FIRST


def test_the_cost_of_changes_is_learnt_and_kept_out_of_the_times():
    curve = observed(device(), RUNS)
    assert curve.changes.change
    assert curve.changes.more(Phase.FIRST) == pytest.approx(0.001)
    assert curve.changes.more(Phase.SECOND) == pytest.approx(0.004)
    for n in (1, 2, 8):
        assert curve.predict(n) == pytest.approx(STEADY[n], rel=0.01)


def test_a_width_that_was_met_only_after_changes_is_not_measured():
    curve = observed(device(), [*RUNS, 16, 16, 1, 16])
    assert curve.count(16) == 0
    assert curve.predict(16) > curve.predict(8)


def test_where_changes_cost_nothing_all_decodes_count():
    curve = observed(device(0.0, 0.0), RUNS)
    assert not curve.changes.change
    assert curve.count(8) == RUNS.count(8)
    assert curve.now() == curve.table()
    assert [curve.width(n) for n in range(1, 20)] == list(range(1, 20))
    assert curve.to_dict().keys() == {"widths", "anew"}


@pytest.mark.parametrize("seed", range(4))
def test_times_that_scatter_are_no_changes(seed):
    """Neither noise of 10 % nor a machine that becomes twice as slow is taken for a cost of changes."""
    rng, curve = random.Random(seed), CostCurve()
    for i in range(600):
        n = rng.choice((1, 1, 1, 2, 8))
        slow = 2.0 if 200 <= i < 400 else 1.0
        curve.observe(n, STEADY[n] * slow * rng.lognormvariate(0, 0.1), plain=n == 1)
        assert curve.changes.more(Phase.FIRST) + curve.changes.more(Phase.SECOND) < 0.0015
    assert not curve.changes.change


def test_what_caches_cost_a_fast_processor_is_no_change():
    """t(1) and what a change costs as measured with the embedded target on two cores."""
    steady = {1: 0.0002, 2: 0.00025, 8: 0.0005}
    curve = observed(ChangingDevice(lambda n: steady[n], lambda _: 3e-5, lambda _: 1e-5), RUNS)
    assert curve.changes.whole > DEFAULT.change_share * curve.predict(1)
    assert not curve.changes.change


def test_the_cheapest_width_is_often_the_last_one():
    curve = observed(device(), RUNS)
    assert curve.changes.last == 8
    assert [curve.width(n) for n in (3, 8)] == [3, 8]
    for _ in range(4):
        curve.observe(1, STEADY[1])
    assert curve.width(1) == 1
    costly = observed(device(0.01, 0.03), RUNS)
    assert [costly.width(n) for n in (1, 3, 8)] == [8, 8, 8]  # also plain rounds, where changing costs more


def test_rows_after_a_stair_are_filled_up_to_its_cheap_end():
    steady = {1: 0.004, 2: 0.006, 5: 0.009, 9: 0.005, 16: 0.0052}
    one = ChangingDevice(lambda n: steady[n], lambda n: 0.001, lambda n: 0.002)  # noqa: ARG005
    curve = observed(one, [n for n in (1, 2, 5, 9, 16, 1, 2, 5, 9, 16) for _ in range(5)])
    for _ in range(4):
        curve.observe(1, steady[1])
    assert curve.width(5) == 9
    assert curve.now()[5] == pytest.approx(curve.now()[9])


def test_curves_of_all_lengths_share_what_changes_cost():
    all_curves = CostCurves()
    near = all_curves.at(0)
    one = device()
    for n in RUNS:
        near.observe(n, one(n))
    assert all_curves.at(20000).changes is near.changes
    restored = CostCurves.from_dict(all_curves.to_dict())
    assert restored.changes.change
    assert restored.at(0).changes is restored.at(20000).changes
    assert restored.changes.more(Phase.SECOND) == pytest.approx(0.004)
    assert restored.at(0).predict(8) == pytest.approx(near.predict(8))


def test_times_of_an_older_file_give_way_where_changes_cost_something():
    """Older files have the times of all decodes, most of which followed a change."""
    stored = {"widths": [[1, 0.005, 4], [2, 0.0095, 4], [8, 0.013, 4]], "anew": []}
    curve, one = CostCurve.from_dict(stored), device()
    for n in RUNS:
        curve.observe(n, one(n), plain=n == 1)
    for n in (1, 2, 8):
        assert curve.predict(n) == pytest.approx(STEADY[n], rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [{"first": 1.0}, {"loading": 0, "first": "a", "second": 1}, {"loading": -1, "first": 0, "second": 0}, 3],
)
def test_malformed_costs_of_changes_are_ignored(changes):
    curve = CostCurve.from_dict({"widths": [[1, 0.005, 4]], "anew": [], "changes": changes})
    assert not curve.changes.change
    assert curve.predict(1) == 0.005


# Loading


@pytest.mark.parametrize("name", GPUS)
def test_loading_measures_a_device_whose_changes_cost_something(name):
    one, spent = ChangingDevice.from_dict(curves()[name]), [0.0]

    def decode(n: int) -> float:
        seconds = one(n)
        spent[0] += seconds
        return seconds

    curve = CostCurve()
    warm_up(curve, decode, 64)
    assert curve.changes.change
    for n in (1, 2, 4):
        assert curve.predict(n) == pytest.approx(one.steady(n), rel=0.02)
    assert spent[0] < 2 * SECONDS
    assert curve.changes.n_kept == DEFAULT.kept_prior


def test_loading_makes_two_decodes_on_a_slow_device_and_learns_nothing_where_changes_are_free():
    widths: list[int] = []

    def slow(n: int) -> float:
        widths.append(n)
        return 0.06 * n

    curve = CostCurve()
    warm_up(curve, slow, 64)
    assert widths == [1, 2, 1]
    assert not curve.known

    def fast(n: int) -> float:
        widths.append(n)
        return 0.01 + 0.002 * n

    widths.clear()
    warm_up(curve, fast, 64)
    assert widths == [1, 2, 1, 1, 1]
    assert not curve.known
    widths.clear()
    warm_up(curve, fast, 1)
    assert widths == [1]
