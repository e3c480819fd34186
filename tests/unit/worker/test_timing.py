"""Timing of decodes on table models with a simulated clock, for every kind of memory."""

from __future__ import annotations

import numpy as np
import pytest

from specllama.client.tune_messages import TimedWidth
from specllama.core.interfaces import BatchRow, BlockRows
from specllama.core.policy.config import DEFAULT
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.feature_drafter import BlockDrafter
from specllama.drafters.head import HeadDrafter
from specllama.drafters.model import ModelDrafter
from specllama.other_work import lower_quartile, median_ratio
from specllama.testing import N_FEATURES, TableContext, TableHead
from specllama.worker.tuning.target import (
    MAX_ROUNDS,
    STEP_WIDTHS,
    WIDE,
    ThreadTimes,
    Times,
    TimingPosition,
    curve_of,
    points,
    repeated,
    time_rows,
    time_step,
    time_steps,
    time_threads,
)

N_VOCAB = 16
IDS = [i * 7 % N_VOCAB for i in range(40)]


class TimedContext(TableContext):
    """A decode of n rows takes t1 · (1 + (n - 1) / 4) seconds, divided by the number of threads."""

    def __init__(self, t1: float = 0.01, **kwargs) -> None:
        super().__init__(N_VOCAB, **kwargs)
        self.t1, self.now, self.n_threads = t1, 0.0, 1
        self.used: list[int] = []  # threads of each decode

    def decode(self, batch, *filled):
        self.now += self.seconds(len(batch)) / self.n_threads
        self.used.append(self.n_threads)
        return super().decode(batch, *filled)

    def seconds(self, n: int) -> float:
        return self.t1 * (1 + (n - 1) / 4)

    def clock(self) -> float:
        return self.now

    def use(self, n: int) -> None:
        self.n_threads = n


def position_in(context: TimedContext, ids=IDS) -> TimingPosition:
    position = TimingPosition(context, ids, context.clock)
    assert list(position.fill())[-1] == 1
    assert context.cells[0] == list(ids)
    return position


# Rows


@pytest.mark.parametrize("memory", ["full", "window", "rollback", "checkpoint"])
def test_every_memory_returns_to_the_position(memory):
    context = TimedContext(memory=memory)
    position, times = position_in(context), Times()
    shares = list(time_rows(position, (2, 4, 12), DEFAULT.min_samples, 0.0, times))
    assert context.cells[0] == IDS
    assert shares == sorted(shares)
    assert {n: len(t) for n, t in times.items()} == {
        1: 3 * DEFAULT.min_samples,
        2: DEFAULT.min_samples,
        4: DEFAULT.min_samples,
        12: DEFAULT.min_samples,
    }
    for n, t in times.items():
        assert t == pytest.approx([context.seconds(n)] * len(t))


def test_a_single_row_is_timed_before_each_wider_decode():
    context = TimedContext()
    position = position_in(context)
    context.widths.clear()
    list(time_rows(position, (2, 4), 2, 0.0, Times()))
    assert context.widths == [1, 2, 1, 4] * 2


def test_timing_continues_until_the_seconds_have_passed():
    context, times = TimedContext(), Times()
    position, began = position_in(context), context.now
    list(time_rows(position, (2, 4), DEFAULT.min_samples, 1.0, times))
    assert 1.0 <= context.now - began < 1.1
    fast, many = TimedContext(t1=1e-6), Times()
    list(time_rows(position_in(fast), (2,), DEFAULT.min_samples, 1.0, many))
    assert len(many[2]) == MAX_ROUNDS


def test_a_context_with_room_for_one_row_only():
    context, times = TimedContext(n_ctx=41), Times()
    position = position_in(context)
    assert position.max_rows == 1
    list(time_rows(position, (), DEFAULT.min_samples, 0.0, times))
    assert list(times) == [1]


def test_a_long_text_is_evaluated_in_growing_chunks():
    context = TimedContext(n_ctx=4096, n_batch=512, t1=0.0001)
    ids = repeated(IDS, 3000)
    shares = list(TimingPosition(context, ids, context.clock).fill())
    assert shares == sorted(shares)
    assert context.widths[0] == 64
    assert max(context.widths) == 512
    assert context.cells[0] == ids
    slow = TimedContext(n_ctx=4096, n_batch=512, t1=0.1)
    list(TimingPosition(slow, ids, slow.clock).fill())
    assert max(slow.widths) == 64


# Threads


def test_threads_are_timed_in_turn_and_much_slower_numbers_only_once():
    context = TimedContext(n_ctx=128)
    position, times = position_in(context), dict[int, ThreadTimes]()
    context.widths.clear()
    context.used.clear()
    list(time_threads(position, [8, 6, 4, 1], context.use, DEFAULT.min_samples, 0.0, times))
    assert context.widths[:3] == [1, 1, WIDE]
    assert context.used[::3] == [8, 6, 4, 1, 8, 6, 8, 6]
    assert {n: (len(t.one), len(t.wide)) for n, t in times.items()} == {
        8: (3, 3),
        6: (3, 3),
        4: (1, 1),
        1: (1, 1),
    }
    assert times[4].one == [pytest.approx(context.t1 / 4)]
    assert times[8].wide[0] == pytest.approx(context.seconds(WIDE) / 8)
    assert context.cells[0] == IDS


# Steps of a draft model


@pytest.mark.parametrize("memory", ["full", "checkpoint"])
def test_steps_are_timed_by_the_number_of_ids_evaluated(memory):
    context, times = TimedContext(n_ctx=256, memory=memory), Times()
    drafter = ModelDrafter(context, N_VOCAB)
    sampler = KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)
    ids = repeated(IDS, 200)
    list(time_steps(drafter, ids, DEFAULT.min_samples, 0.0, sampler, context.clock, times))
    assert set(times) == set(STEP_WIDTHS)
    for n, t in times.items():
        assert len(t) >= DEFAULT.min_samples
        assert t == pytest.approx([context.seconds(n)] * len(t))


def test_wide_steps_are_left_out_in_a_short_text():
    context, times = TimedContext(), Times()
    sampler = KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)
    drafter = ModelDrafter(context, N_VOCAB)
    list(time_steps(drafter, repeated(IDS, 20), DEFAULT.min_samples, 0.0, sampler, context.clock, times))
    assert set(times) == {1, 2, 3, 4, 6, 8}


class TimedHead(TableHead):
    """A decode of n rows takes 1 + n/10 seconds."""

    now = 0.0

    def decode(self, rows, *filled):
        self.now += 1 + len(rows) / 10
        return super().decode(rows, *filled)

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("lag", [0, 1])
def test_steps_of_a_head_by_their_rows(lag):
    ids, target, head = repeated(IDS, 30), TableContext(N_VOCAB), TimedHead(N_VOCAB, lag=lag)
    drafter = target.reader = HeadDrafter(head, N_VOCAB)
    target.decode([BatchRow(t, i, 0, i == 29) for i, t in enumerate(ids)])
    times, sampler = Times(), KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)
    list(time_steps(drafter, ids, DEFAULT.min_samples, 0.0, sampler, head.clock, times))
    assert set(times) == {1, 2, 3, 4, 6, 8}
    for n, t in times.items():
        assert len(t) >= DEFAULT.min_samples
        assert t == pytest.approx([1 + n / 10] * len(t))


def test_a_head_that_reads_the_cache_is_timed_at_one_position():
    ids, target, head = repeated(IDS, 30), TableContext(N_VOCAB), TimedHead(N_VOCAB, reads_target=True)
    drafter = target.reader = HeadDrafter(head, N_VOCAB)
    target.decode([BatchRow(t, i, 0, i == 28) for i, t in enumerate(ids[:-1])])
    times, sampler = Times(), KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)
    list(time_step(drafter, ids, DEFAULT.min_samples, 0.0, sampler, head.clock, times))
    assert times == {1: pytest.approx([1.1] * DEFAULT.min_samples)}
    assert set(head.positions[0]) == {29}


class TimedBlocks:
    """A head of blocks of three tokens; putting in n rows takes n/10 seconds, a block 1."""

    n_ctx, n_vocab, n_seq_max, n_features, n_draft = 256, N_VOCAB, 1, N_FEATURES, 3
    now = 0.0

    def inject(self, seq_id, first, features):  # noqa: ARG002
        self.now += len(features) / 10

    def draft(self, last):
        self.now += 1
        return {seq: BlockRows(np.zeros((3, N_VOCAB), np.float32)) for seq in last}

    def truncate(self, seq_id, pos):
        """Nothing is kept."""

    def clock(self) -> float:
        return self.now


def test_steps_of_a_block_drafter_count_the_last_token():
    ids, target, head = repeated(IDS, 30), TableContext(N_VOCAB), TimedBlocks()
    drafter = target.reader = BlockDrafter(head, N_VOCAB)
    target.decode([BatchRow(t, i, 0, i == 29) for i, t in enumerate(ids)])
    times, sampler = Times(), KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)
    list(time_steps(drafter, ids, DEFAULT.min_samples, 0.0, sampler, head.clock, times))
    assert set(times) == {1, 2, 3, 4, 6, 8}
    for n, t in times.items():
        assert t == pytest.approx([1 + (n - 1) / 10] * len(t))


# Figures


def test_lower_quartile_and_median_ratio():
    assert lower_quartile([5.0]) == 5
    assert lower_quartile([9.0, 1.0, 2.0]) == 1
    assert lower_quartile([1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 70.0, 80.0]) == 2
    assert median_ratio([1.0, 1.0, 1.0]) == 1
    assert median_ratio([1.0, 1.0, 4.0, 4.0, 4.0, 4.0]) == 4


def test_a_curve_has_only_widths_timed_often_enough():
    times = {1: [0.01] * 9, 2: [0.02, 0.015, 0.09], 4: [0.02] * (DEFAULT.min_samples - 1)}
    curve = curve_of(times)
    assert (curve.predict(1), curve.predict(2)) == (0.01, 0.015)
    assert curve.count(2) == DEFAULT.min_samples
    assert curve.count(4) == 0
    assert points(times)[1] == TimedWidth(rows=2, seconds=0.015, count=3)
    assert curve_of({}).times == []
    assert points({1: []}) == []
