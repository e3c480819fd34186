"""The widths of decodes: measured at loading, chosen by how many drafted tokens are right, and held."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import WIDTHS, CostCurve, RunLengths, TotalWidth
from specllama.core.replay.simulator import ChangingDevice
from specllama.worker.calibrate import FAST_SECONDS, LOAD_SECONDS, measure_load
from tests.support.devices import curves
from tests.support.examples import examples

GPUS = ["8B Q4_K_M", "MoE 128/8, 16 layers, Q4_K_M", "padded 4B Q4_0"]
ALL = sorted(curves())
T1 = 0.004


class Decodes:
    """Decodes so many rows, and records that."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.log: list[tuple[int, float]] = []

    def __call__(self, n: int) -> float:
        self.log.append((n, self.seconds(n)))
        return self.log[-1][1]

    @property
    def widths(self) -> list[int]:
        return [n for n, _ in self.log]

    @property
    def spent(self) -> float:
        return sum(seconds for _, seconds in self.log)


def device(name: str) -> ChangingDevice:
    return ChangingDevice.from_dict(curves()[name])


# Measuring


@pytest.mark.parametrize("name", GPUS)
def test_steady_times_are_measured_on_a_device_with_changes(name):
    one, curve = device(name), CostCurve()
    measure_load(curve, Decodes(one), 64)
    for n in (1, 2, 4, 8, 9, 16):
        assert curve.predict(n) == pytest.approx(one.steady(n), rel=0.02)


@pytest.mark.parametrize("name", GPUS)
def test_what_a_change_costs_is_found_on_measured_devices(name):
    one = device(name)
    change = measure_load(CostCurve(), one, 64)
    costs = [one.first(n) + one.second(n) for n in (1, 2)]
    assert change is not None
    assert min(costs) * 0.99 <= change <= max(costs) * 1.01


@pytest.mark.parametrize("name", GPUS)
def test_it_is_found_in_noise_too(name):
    one = device(name)
    for seed in range(20):
        rng = random.Random(seed)
        change = measure_load(CostCurve(), lambda n: one(n) * rng.lognormvariate(0, 0.1), 64)  # noqa: B023
        assert change is not None
        assert change > 0


@pytest.mark.parametrize("name", ALL)
def test_noise_is_hardly_ever_taken_for_the_cost_of_changes(name):
    steady, found = device(name).steady, 0
    for seed in range(100):
        rng = random.Random(seed)
        found += bool(measure_load(CostCurve(), lambda n: steady(n) * rng.lognormvariate(0, 0.1), 64))  # noqa: B023
    assert found <= 8


@pytest.mark.parametrize(
    ("t1", "change"),
    [
        (0.02, 0.0015),  # less than a tenth of a decode
        (0.0002, 0.00025),  # what caches cost the embedded target on two cores
        (0.024, 0.0),
    ],
)
def test_a_change_that_costs_next_to_nothing_counts_as_free(t1, change):
    one = ChangingDevice(lambda n: t1 * (1 + 0.1 * n), lambda _: change)
    assert measure_load(CostCurve(), one, 64) == 0


@pytest.mark.parametrize("stored", [False, True])
def test_a_slow_device_is_decoded_twice_and_shows_one_row_only(stored):
    curve, decodes = CostCurve(), Decodes(lambda n: 1.5 * FAST_SECONDS * n)
    if stored:
        curve = CostCurve.from_dict({"widths": [[1, FAST_SECONDS, 3], [4, 2 * FAST_SECONDS, 3]]})
    assert measure_load(curve, decodes, 64) is None
    assert decodes.widths == [1, 1]
    if stored:
        assert curve.predict(4) == pytest.approx(3.0 * FAST_SECONDS)
    else:
        assert curve.times == [(1, pytest.approx(1.5 * FAST_SECONDS))]


def test_a_first_decode_that_loads_something_does_not_set_the_scale():
    curve = CostCurve.from_dict({"widths": [[n, T1 * n, 3] for n in WIDTHS]})
    one = [1.0, T1, 1.3 * T1, T1]
    measure_load(curve, lambda n: one.pop(0) if one else T1 * n, 64, changes_known=True)
    assert curve.scale == pytest.approx(1)


def test_a_context_of_one_row_decodes_no_more():
    decodes = Decodes(lambda n: 0.001 * n)
    assert measure_load(CostCurve(), decodes, 1) is None
    assert set(decodes.widths) == {1}


def test_a_known_curve_costs_few_decodes():
    curve = CostCurve.from_dict({"widths": [[n, T1 * n, 3] for n in WIDTHS]})
    decodes = Decodes(lambda n: 2 * T1 * n)
    assert measure_load(curve, decodes, 64, changes_known=True) is None
    assert len(decodes.widths) <= 12
    for n in WIDTHS:
        assert curve.predict(n) == pytest.approx(2 * T1 * n)
    curve.forget(9)
    decodes.log.clear()
    measure_load(curve, decodes, 64, changes_known=True)
    assert decodes.widths.count(9) >= 2
    assert len(decodes.widths) <= 14


@pytest.mark.parametrize("name", ALL)
def test_after_a_few_starts_little_is_measured_again(name):
    curve = CostCurve()
    for _ in range(8):
        decodes = Decodes(device(name))
        measure_load(curve, decodes, 32, changes_known=True)
        curve = CostCurve.from_dict(curve.to_dict())
    assert len(decodes.widths) <= 24


@settings(deadline=None, max_examples=examples(200))
@given(st.floats(1e-4, FAST_SECONDS), st.floats(0, 1), st.integers(1, 64))
def test_measuring_keeps_to_its_time_and_to_the_rows_of_the_context(t1, slope, max_rows):
    decodes = Decodes(lambda n: t1 * (1 + slope * (n - 1)))
    measure_load(CostCurve(), decodes, max_rows, changes_known=True)
    assert decodes.spent <= 1.25 * LOAD_SECONDS + 3 * t1
    assert max(decodes.widths) <= max_rows
    both = Decodes(decodes.seconds)
    measure_load(CostCurve(), both, max_rows)
    assert both.spent <= decodes.spent + 9 * sum(map(decodes.seconds, (1, 2))) + 1e-9
    assert max(both.widths) <= max_rows


# Tokens that are right in a row


def observed(n_right: int, n_most: int = 15, times: int = 60, seconds: float = 0.0) -> RunLengths:
    runs = RunLengths()
    for _ in range(times):
        runs.observe(n_most, n_right, n_most, seconds)
    return runs


def test_without_drafts_each_place_is_half_as_likely_as_the_one_before():
    assert [RunLengths().tokens(n) for n in (1, 2, 3, 4)] == [1, 1.5, 1.75, 1.875]
    assert RunLengths().n_seen == 0


def test_a_draft_that_ends_at_its_limit_says_nothing_about_further_places():
    whole = observed(4, 4)
    assert whole.tokens(5) > 4.9
    assert whole.tokens(9) > 8.5  # further places are as likely as the last one that was seen
    assert observed(4, 8).tokens(9) < 5.1


def test_a_draft_without_further_tokens_counts_as_wrong_there():
    runs = RunLengths()
    for _ in range(60):
        runs.observe(2, 2, 8)
    assert runs.tokens(3) > 2.9
    assert runs.tokens(9) < 3.1


def test_no_draft_counts_as_wrong_and_one_without_room_as_nothing():
    runs = RunLengths()
    runs.observe(0, 0, 0)
    assert runs.n_seen == 0
    runs.observe(0, 0, 5)
    assert runs.n_seen == 1
    assert runs.tokens(2) == 1.25


@pytest.mark.parametrize("seed", range(3))
def test_chances_of_places_are_found_where_drafts_end_early(seed):
    rng, chances = random.Random(seed), [0.9, 0.8, 0.9, 0.5, 0.95, 0.9, 0.3, 0.8]
    runs = RunLengths(replace(DEFAULT, forget=0.9999))
    for _ in range(8000):
        n_most = rng.randint(1, len(chances))
        n_right = next((i for i in range(n_most) if rng.random() > chances[i]), n_most)
        runs.observe(n_most, n_right, n_most)
    expected = path = 1.0
    for place, chance in enumerate(chances):
        path *= chance
        expected += path
        assert runs.tokens(place + 2) == pytest.approx(expected, rel=0.03)


def test_old_drafts_are_forgotten():
    runs = observed(15, times=500)
    for _ in range(400):
        runs.observe(15, 0, 15)
    assert runs.tokens(2) < 1.05


def test_the_seconds_of_a_drafted_token_are_averaged():
    runs = observed(3, 5, 200, seconds=0.5)
    assert runs.draft_seconds == pytest.approx(0.1, rel=0.05)
    runs.observe(0, 0, 5, 100.0)
    assert runs.draft_seconds == pytest.approx(0.1, rel=0.05)


RUNS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 63), st.floats(0, 5)).map(
        lambda x: (x[0], min(x[:3]), x[2], x[3])
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=examples(100))
@given(RUNS)
def test_further_rows_bring_less_and_less(drafts):
    runs = RunLengths()
    for draft in drafts:
        runs.observe(*draft)
    tokens = [runs.tokens(n) for n in range(1, DEFAULT.max_rows + 1)]
    assert tokens[0] == 1
    more = [b - a for a, b in pairwise(tokens)]
    assert all(-1e-9 <= b <= a + 1e-9 <= 1 + 1e-8 for a, b in pairwise(more))


@settings(deadline=None, max_examples=examples(100))
@given(RUNS)
def test_what_was_seen_is_stored_and_restored(drafts):
    runs, again = RunLengths(), RunLengths()
    for draft in drafts:
        runs.observe(*draft)
    again.restore(json.loads(json.dumps(runs.to_dict())))
    assert again.n_seen == pytest.approx(runs.n_seen, abs=0.001)
    assert [again.tokens(n) for n in (2, 9, 64)] == pytest.approx(
        [runs.tokens(n) for n in (2, 9, 64)], abs=0.05
    )
    if runs.n_seen:
        assert again.draft_seconds == pytest.approx(runs.draft_seconds, abs=1e-5)


SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=3)
LISTS = st.lists(st.floats(-1, 110) | SCALARS, max_size=4)
DATA = st.fixed_dictionaries(
    {}, optional={"right": LISTS | SCALARS, "seen": LISTS | SCALARS, "draft": SCALARS}
)


@settings(deadline=None)
@given(DATA | SCALARS | LISTS)
def test_malformed_stored_data_gives_valid_chances(data):
    runs = RunLengths()
    runs.restore(data)
    tokens = [runs.tokens(n) for n in range(1, DEFAULT.max_rows + 1)]
    assert all(a <= b <= a + 1 for a, b in pairwise(tokens))
    json.dumps(runs.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "data",
    [
        {"right": [1.0], "seen": [1.0]},
        {"right": [2.0], "seen": [1.0], "draft": 0},
        {"right": [1.0], "seen": [1.0, 1.0], "draft": 0},
        {"right": [1.0], "seen": [1e6], "draft": 0},
        {"right": [-1.0], "seen": [1.0], "draft": 0},
        {"right": [1.0], "seen": [1.0], "draft": -1},
        {"right": [0.0] * 65, "seen": [1.0] * 65, "draft": 0},
    ],
)
def test_impossible_stored_data_is_ignored(data):
    runs = RunLengths()
    runs.restore(data)
    assert (runs.n_seen, runs.draft_seconds) == (0, 0)


# The best width


def known(times: dict[int, float]) -> CostCurve:
    """times: in t(1)."""
    return CostCurve.from_dict({"widths": [[n, T1 * x, DEFAULT.min_samples] for n, x in times.items()]})


GPU = known({1: 1.0, 2: 1.1, 3: 1.15, 4: 1.2, 6: 1.4, 8: 1.6, 9: 1.25, 12: 1.26, 16: 1.28, 24: 2.1, 32: 2.2})


@pytest.mark.parametrize(
    ("n_right", "seconds", "width"),
    [
        (0, 0.0, 1),
        (1, 0.0, 2),
        (3, 0.0, 4),
        (15, 0.0, 16),
        (63, 0.0, 32),
        (15, 63 * 2.0, 1),  # each drafted token takes as long as two plain decodes
    ],
)
def test_the_best_width_gives_most_tokens_per_second(n_right, seconds, width):
    runs = observed(n_right, 63, times=200, seconds=seconds)
    assert runs.best_width(GPU) == width


def test_without_times_a_text_has_one_row():
    assert observed(15).best_width(CostCurve()) == 1
    assert observed(15).best_width(CostCurve(), 3) == 3


def test_a_width_that_was_never_measured_has_to_promise_more():
    runs = observed(3)
    assert runs.best_width(known({1: 1.0, 4: 2.0, 8: 3.0, 64: 9.0})) == 4
    assert runs.best_width(known({1: 1.0, 3: 1.7, 8: 3.0, 64: 9.0})) != 4


def test_a_change_has_to_pay_twice():
    curve = known({1: 1.0, 2: 1.5, 3: 2.5, 64: 60.0})
    runs = observed(1)  # 1.33 times as fast with two rows: 64 rounds save 64 * 0.33 plain decodes
    assert runs.best_width(curve) == 2
    assert runs.best_width(curve, change=8 * T1) == 2
    assert runs.best_width(curve, change=13 * T1) == 1


def test_several_texts_share_the_rows():
    curve = known({n: 1 + 0.01 * n for n in (1, 2, 4, 8, 16, 32, 64)})
    runs = observed(3)
    for n_texts in (1, 2, 4):
        assert runs.best_width(curve, n_texts) == 4 * n_texts
    assert observed(0).best_width(curve, 8) == 8


def test_the_total_of_several_texts_is_held_for_as_long_as_their_number_is():
    total, good, bad = TotalWidth(), observed(3), observed(0)
    assert total.of_round(2, GPU, good, 2 * T1) == 9
    widths = {total.of_round(2, GPU, bad, 2 * T1) for _ in range(63)}
    assert widths == {9}
    assert total.of_round(2, GPU, bad, 2 * T1) == 2
    assert total.of_round(3, GPU, good, 2 * T1) == 12


def test_another_total_has_to_gain_twice_what_the_change_costs():
    good = observed(3)
    for change, expected in ((2 * T1, 9), (100 * T1, 2)):
        total = TotalWidth()
        total.of_round(2, GPU, observed(0), change)
        assert {total.of_round(2, GPU, good, change) for _ in range(200)} == {2, expected}
