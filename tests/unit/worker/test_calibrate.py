"""Calibration on table models with a simulated clock."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specllama.core.interfaces import BatchRow, NoRoomError
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.testing import TableContext
from specllama.worker.calibrate import (
    CHANGING,
    ENOUGH_ROWS,
    TIMED,
    WIDTHS,
    Calibration,
    margin_change,
    measure,
    time_widths,
)

N_VOCAB = 16


class TimedContext(TableContext):
    """A decode of n rows takes t1 · (1 + (n - 1) / 4) seconds; logits in a batch of `unlike` or more rows are
    off by `rounding`.
    """

    def __init__(self, t1: float = 0.01, rounding: float = 0.0, unlike: int = 2, **kwargs) -> None:
        super().__init__(N_VOCAB, **kwargs)
        self.t1, self.rounding, self.unlike, self.now = t1, rounding, unlike, 0.0

    def decode(self, batch, *filled):
        self.now += self.t1 * (1 + (len(batch) - 1) / 4)
        rows = super().decode(batch, *filled)
        if len(batch) >= self.unlike:
            rows = rows + np.float32(self.rounding) * np.where(np.arange(N_VOCAB) % 2, 1, -1).astype(
                np.float32
            )
        return rows

    def clock(self) -> float:
        return self.now


def filled(context: TableContext, n: int) -> list[int]:
    ids = [i * 7 % N_VOCAB for i in range(n)]
    for begin in range(0, n, context.n_batch):
        part = ids[begin : begin + context.n_batch]
        context.decode([BatchRow(t, begin + i, 0, False) for i, t in enumerate(part)])
    return ids


def test_single_decodes_are_timed():
    context = TimedContext(t1=0.02, n_ctx=512)
    ids = filled(context, 200)
    context.widths.clear()
    measured = measure(context, 0, ids, 6.0, context.clock)
    assert measured.t1 == pytest.approx(0.02)
    assert measured.epsilon == 0
    assert measured.n_rows > context.widths.count(1) > 30
    assert set(context.widths) == {1, *WIDTHS, *(w % ENOUGH_ROWS for w in WIDTHS if w > ENOUGH_ROWS)}
    assert (measured.equal_up_to, measured.unlike, measured.reach) == (WIDTHS[-1], None, 200)
    assert context.cells[0] == ids, "the cache is as it was"


def test_rounding_differences_of_batches_are_measured():
    context = TimedContext(rounding=0.01)
    measured = measure(context, 0, filled(context, 200), 5.0, context.clock)
    # The logits of two ids of the same parity move together, of different parity apart by twice the rounding.
    assert measured.epsilon == pytest.approx(0.02, rel=0.01)
    assert (measured.equal_up_to, measured.unlike) == (0, 2)


@pytest.mark.parametrize(("unlike", "alike"), [(3, 2), (8, 4), (18, 17), (64, 63)])
def test_the_batch_size_from_which_rows_differ_is_found(unlike, alike):
    """llama.cpp chooses kernels by the number of rows."""
    context = TimedContext(rounding=0.01, unlike=unlike, n_ctx=2048)
    measured = measure(context, 0, filled(context, 1000), 60.0, context.clock)
    assert measured.equal_up_to == alike
    assert measured.unlike == next((w for w in WIDTHS if w >= unlike), None)


def test_rows_that_differ_only_outside_the_two_best_ids_are_not_equal():
    class OffAtTheWorst(TimedContext):
        def decode(self, batch, *filled):
            rows = super().decode(batch, *filled).copy()
            if len(batch) > 1:
                rows[np.arange(len(rows)), rows.argmin(axis=1)] -= 1
            return rows

    context = OffAtTheWorst()
    measured = measure(context, 0, filled(context, 100), 5.0, context.clock)
    assert (measured.epsilon, measured.equal_up_to, measured.unlike) == (0, 0, 2)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 1.0])
def test_measuring_takes_about_the_given_seconds(seconds):
    context = TimedContext(t1=0.01, n_ctx=2048)
    ids = filled(context, 2000)
    begin = context.now
    measure(context, 0, ids, seconds, context.clock)
    assert context.now - begin <= seconds * 1.1 + 0.1


def test_on_a_slow_machine_measuring_stops_after_the_first_batch():
    """The first batch shows how slow it is: two batched rows and two single ones."""
    context = TimedContext(t1=3.0)
    ids = filled(context, 200)
    begin = context.now
    measured = measure(context, 0, ids, 1.0, context.clock)
    assert context.now - begin < 12
    assert measured.n_rows == 2


def test_short_texts_can_be_measured_on():
    for n in (1, 2, 3, 5):
        context = TimedContext()
        ids = filled(context, n)
        measured = measure(context, 0, ids, 1.0, context.clock)
        assert measured.t1 == pytest.approx(context.t1)
        assert measured.n_rows > 10
        assert (measured.reach, context.cells[0]) == (n, ids)


@pytest.mark.parametrize("left", [0, 1, 2, 5, 20])
def test_an_almost_full_context_limits_the_widths(left):
    context = TimedContext(n_ctx=100)
    ids = filled(context, 100 - left)
    measured = measure(context, 0, ids, 1.0, context.clock)
    assert max(measured.widths, default=0) == max((w for w in WIDTHS if w <= left), default=0)
    assert context.cells[0] == ids


def test_a_lack_of_cells_ends_the_measurement():
    class Full(TimedContext):
        def decode(self, batch, *filled):
            if len(batch) > 4 and len(self.cells[0]) >= 50:
                raise NoRoomError
            return super().decode(batch, *filled)

    context = Full()
    ids = filled(context, 50)
    measured = measure(context, 0, ids, 1.0, context.clock)
    assert measured.widths == {2: True, 4: True}
    assert context.cells[0] == ids


def test_nothing_is_measured_if_the_cache_holds_another_text():
    context = TimedContext()
    ids = filled(context, 50)
    assert measure(context, 0, [*ids, 1], 1.0, context.clock) == Calibration()
    assert len(context.cells[0]) == 50


@pytest.mark.parametrize("memory", ["checkpoint", "rollback", "window"])
def test_memories_with_limited_rollback_give_no_wrong_figures(memory):
    """Whatever the memory refuses, no wrong figure is reported and the cache holds a prefix of the text."""
    context = TimedContext(memory=memory, rounding=0.0)
    ids = filled(context, 100)
    measured = measure(context, 0, ids, 1.0, context.clock)
    assert measured.epsilon in (None, 0)
    assert context.cells[0] == ids[: len(context.cells[0])]
    if memory == "checkpoint":
        assert measured == Calibration()
        assert len(context.cells[0]) == 100


def test_batches_stay_within_the_limits_of_the_context():
    context = TimedContext(n_batch=4)
    measured = measure(context, 0, filled(context, 100), 1.0, context.clock)
    assert max(context.widths) <= 4
    assert measured.n_rows > 0


def test_margin_change():
    alone = np.array([0.0, 5.0, 4.0, 1.0], np.float32)
    assert margin_change(alone, alone) == 0
    assert margin_change(alone, np.array([9.0, 5.0, 4.5, 1.0], np.float32)) == pytest.approx(0.5)
    assert margin_change(alone, np.array([0.0, 4.0, 5.0, 1.0], np.float32)) == pytest.approx(2.0)
    assert margin_change(alone, alone + 3) == pytest.approx(0)


def test_to_dict_gives_plain_data():
    calibration = Calibration([0.01, 0.03, 0.01], [0.02] * 3, {2: True, 4: True, 8: False, 16: True}, 300)
    expected = {"t1": 0.01, "epsilon": 0.02, "n_rows": 3, "alike": 4, "unlike": 8, "reach": 300}
    assert json.loads(json.dumps(calibration.to_dict())) == expected
    nothing = {"t1": None, "epsilon": None, "n_rows": 0, "alike": 0, "unlike": None, "reach": 0}
    assert Calibration().to_dict() == nothing


def test_a_measurement_extends_an_earlier_one():
    context, ids = TimedContext(rounding=0.01), [i * 7 % N_VOCAB for i in range(200)]
    earlier = Calibration()
    for _ in range(3):
        context.truncate(0, 0)
        filled(context, 200)
        assert measure(context, 0, ids, 0.5, context.clock, earlier) is earlier
    assert earlier.n_rows > 60
    assert earlier.epsilon == pytest.approx(0.02, rel=0.01)


# Decodes of several rows


def timed(context: TimedContext, curve: CostCurve, seconds: float = 9.0, n: int = 60) -> int:
    ids = filled(context, n)
    context.widths.clear()
    n_timed = time_widths(context, 0, ids, curve, seconds, context.clock)
    assert n_timed == len(context.widths)
    assert context.cells[0] == ids, "the cache is as it was"
    return n_timed


def test_missing_widths_are_timed_in_turn():
    context, curve = TimedContext(), CostCurve()
    timed(context, curve)
    assert set(context.widths) == set(TIMED)
    assert context.widths[: len(TIMED)] == list(TIMED)
    for n in TIMED:
        assert curve.count(n) >= DEFAULT.min_samples
        assert curve.predict(n) == pytest.approx(context.t1 * (1 + (n - 1) / 4))
    context.truncate(0, 0)
    assert timed(context, curve) == 0


def test_only_what_is_missing_is_timed():
    context, curve = TimedContext(), CostCurve()
    for n in (1, 2, 3, 4, 5, 6, 8, 12, 24, 32):
        for _ in range(DEFAULT.min_samples):
            curve.observe(n, context.t1 * (1 + (n - 1) / 4))
    timed(context, curve)
    assert context.widths == [16] * DEFAULT.min_samples


def test_where_a_change_of_the_width_takes_time_the_third_decode_of_a_width_counts():
    class Changing(TimedContext):
        def decode(self, batch, *filled):
            self.now += 1.0 if self.widths[-CHANGING:] != [len(batch)] * CHANGING else 0.0
            return super().decode(batch, *filled)

    context, curve = Changing(), CostCurve()
    ids = filled(context, 60)
    context.widths.clear()
    n_timed = time_widths(context, 0, ids, curve, 999.0, context.clock, changing=True)
    assert n_timed == len(context.widths) == (CHANGING + 1) * DEFAULT.min_samples * len(TIMED)
    for n in TIMED:
        assert curve.count(n) == DEFAULT.min_samples
        assert curve.predict(n) == pytest.approx(context.t1 * (1 + (n - 1) / 4))


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.25, 1.0])
def test_timing_widths_keeps_to_the_given_seconds(seconds):
    context, curve = TimedContext(), CostCurve()
    ids = filled(context, 60)
    begun = context.now
    time_widths(context, 0, ids, curve, seconds, context.clock)
    assert context.now - begun <= 1.2 * seconds


def test_widths_that_the_context_cannot_decode_are_left_out():
    for context, widest in (
        (TimedContext(n_batch=8), 8),
        (TimedContext(n_ctx=70), 8),  # after 60 ids
        (TimedContext(n_ctx=61), 1),
        (TimedContext(n_ctx=60), 0),
    ):
        timed(context, CostCurve())
        assert max(context.widths, default=0) == widest


def test_a_lack_of_cells_is_not_an_error():
    context = TimedContext(n_ctx=256, n_seq_max=2)
    ids = filled(context, 60)
    for i in range(190):
        context.decode([BatchRow(1, i, 1, False)])
    time_widths(context, 0, ids, CostCurve(), 9.0, context.clock)
    assert context.cells[0] == ids


@pytest.mark.parametrize("memory", ["checkpoint", "rollback"])
def test_widths_are_timed_only_on_memories_that_can_be_rolled_back(memory):
    context = TimedContext(memory=memory)
    assert timed(context, CostCurve()) == 0


def test_nothing_is_timed_if_the_cache_holds_another_text():
    context = TimedContext()
    ids = filled(context, 50)
    assert time_widths(context, 0, ids[:-1], CostCurve(), 9.0, context.clock) == 0
    assert time_widths(context, 0, [], CostCurve(), 9.0, context.clock) == 0
