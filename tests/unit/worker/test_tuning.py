"""Parts of `tune`: times of decodes on table models with a simulated clock, for every kind of memory; the
fastest number of threads; the prompts that fit the time limit.
"""

from __future__ import annotations

import random

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
from specllama.testing import N_FEATURES, TableContext
from specllama.worker.tuning.target import (
    MAX_ROUNDS,
    MIN_GAIN,
    STEP_WIDTHS,
    WIDE,
    ThreadTimes,
    Times,
    TimingPosition,
    candidates,
    curve_of,
    fastest,
    points,
    repeated,
    time_rows,
    time_step,
    time_steps,
    time_threads,
)
from specllama.worker.tuning.tuner import MIN_TOKENS, TuningText, select_prompts
from tests.support.scripted import TableHead

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
    position, times = position_in(context), ThreadTimes()
    context.widths.clear()
    context.used.clear()
    list(time_threads(position, [8, 6, 4, 1], context.use, DEFAULT.min_samples, 0.0, times))
    assert context.widths[:3] == [1, 1, WIDE]
    assert context.used[::3] == [8, 6, 4, 1, 8, 6, 8, 6]
    assert {n: len(t) for n, t in times.items()} == {8: 3, 6: 3, 4: 1, 1: 1}
    assert times[4][0][0] == pytest.approx(context.t1 / 4)
    assert times[8][0][1] == pytest.approx(context.seconds(WIDE) / 8)
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


# The fastest number of threads, from made-up times


def thread_times(medians: dict[int, tuple[float, float]], rounds: int = 5) -> ThreadTimes:
    return {n: [seconds] * rounds for n, seconds in medians.items()}


def test_candidates_cover_small_numbers_and_the_cores():
    assert candidates(1, (1, 1)) == [1]
    assert candidates(2, (2, 2)) == [2, 1]
    assert candidates(2, (6, 3)) == [6, 3, 2, 1]
    assert candidates(16, (16,)) == [16, 15, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1]
    many = candidates(96, (96, 96))
    assert many[:3] == [96, 95, 80]
    assert {64, 48, 32} < set(many)
    assert len(many) < 25


def test_the_fastest_over_both_widths_is_found():
    best = fastest(thread_times({1: (4, 9), 2: (2, 5), 4: (2.2, 3), 8: (3, 3)}), 8, 8)
    assert best is not None
    assert (best[0], best[2]) == (4, True)
    assert best[1] == pytest.approx((3 * 3 / (2.2 * 3)) ** 0.5)


def test_a_small_gain_is_not_clear():
    fewer = fastest(thread_times({1: (2, 2), 2: (1, 1), 4: (0.98, 0.98)}), 2, 2)
    assert fewer is not None
    assert not fewer[2]
    assert fewer[1] < MIN_GAIN
    best = fastest(thread_times({1: (2, 2), 2: (1, 1)}), 2, 2)
    assert best is not None
    assert best == (2, 1.0, False)


def test_different_numbers_in_use_for_one_row_and_for_more():
    """1 thread for one row and 2 for more take sqrt(3) s, the geometric mean; 4 take 2 s, then 1.5 s."""
    measured = thread_times({1: (1, 9), 2: (3, 3), 4: (2, 2)})
    best = fastest(measured, 1, 2)
    assert best is not None
    assert best == (1, 1.0, False)
    best = fastest(measured | thread_times({4: (1.5, 1.5)}), 1, 2)
    assert best is not None
    assert (best[0], best[2]) == (4, True)


def test_slow_rounds_do_not_change_the_result():
    """All numbers are slow in the same rounds: only ratios within a round count."""
    rng = random.Random(1)
    slow = [1 + 9 * rng.random() for _ in range(9)]
    measured = {n: [(s * f, s * f) for s in slow] for n, f in ((1, 1.0), (2, 0.8))}
    best = fastest(measured, 1, 1)
    assert best is not None
    assert (best[0], best[2]) == (2, True)
    assert best[1] == pytest.approx(1.25)


def test_a_gain_within_the_noise_is_not_clear():
    """Faster in the median, but slower in four rounds of ten."""
    ours, theirs = [1.0] * 10, [0.5] * 6 + [3.0] * 4
    best = fastest({2: [(s, s) for s in ours], 4: [(s, s) for s in theirs]}, 2, 2)
    assert best is not None
    assert best[1] > 1.5
    assert not best[2]


def test_a_number_timed_only_once_is_not_clear():
    measured = thread_times({2: (1, 1)}, 5) | thread_times({1: (0.5, 0.5)}, 1)
    best = fastest(measured, 2, 2)
    assert best is not None
    assert not best[2]


def test_without_times_of_the_number_in_use_there_is_no_result():
    assert fastest({}, 2, 2) is None
    assert fastest({2: []}, 2, 2) is None
    assert fastest(thread_times({2: (1, 1)}), 4, 4) is None


# Prompts


def texts(**prompts: int) -> list[TuningText]:
    return [TuningText(name, i, [1] * 10) for name, n in prompts.items() for i in range(1, n + 1)]


@pytest.mark.parametrize(
    ("prompts", "how", "names", "n_tokens"),
    [
        ({"a": 2, "b": 3}, (64, True, 0.001, 0.0001), "a 1, b 1, a 2, b 2, b 3", 64),
        ({"a": 4, "b": 4}, (64, True, 0.2, 0.01), "a 1, b 1, a 2, b 2", 64),  # fewer of each workload first
        ({"a": 2, "b": 2, "c": 2}, (64, True, 5, 0.01), "a 1, b 1, c 1", MIN_TOKENS),
        ({"a": 2, "b": 2}, (100, False, 5, 0.01), "a 1, b 1", 100),  # as many as were asked for
        ({}, (64, True, 0.1, 0.1), "", 64),
    ],
)
def test_prompts_are_selected_by_the_time_there_is(prompts, how, names, n_tokens):
    selected, n = select_prompts(texts(**prompts), *how, 60)
    assert ", ".join(text.name for text in selected) == names
    assert n == n_tokens


def test_then_the_tokens_per_text_are_reduced():
    selected, n = select_prompts(texts(a=2, b=2, c=2), 64, True, 0.5, 0.01, 60)
    assert [text.name for text in selected] == ["a 1", "b 1", "c 1"]
    assert MIN_TOKENS < n < 64
