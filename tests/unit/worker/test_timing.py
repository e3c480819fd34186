"""Timing of decodes over table models with a clock of their own, of every memory kind."""

from __future__ import annotations

import pytest

from specllama.client.protocol import TimedWidth
from specllama.core.policy.config import DEFAULT
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext
from specllama.worker.tuning.threads import WIDE, ThreadTimes
from specllama.worker.tuning.timing import (
    MOST_ROUNDS,
    STEP_WIDTHS,
    Times,
    TimingPosition,
    curve_of,
    cycled,
    points,
    spread,
    time_rows,
    time_steps,
    time_threads,
    typical,
)

N_VOCAB = 16
IDS = [i * 7 % N_VOCAB for i in range(40)]


class Timed(TableContext):
    """A decode of n rows takes t1 · (1 + (n - 1) / 4) seconds, over the threads in use."""

    def __init__(self, t1: float = 0.01, **kwargs) -> None:
        super().__init__(N_VOCAB, **kwargs)
        self.t1, self.now, self.n_threads = t1, 0.0, 1
        self.used: list[int] = []  # threads of each decode

    def decode(self, batch):
        self.now += self.seconds(len(batch)) / self.n_threads
        self.used.append(self.n_threads)
        return super().decode(batch)

    def seconds(self, n: int) -> float:
        return self.t1 * (1 + (n - 1) / 4)

    def clock(self) -> float:
        return self.now

    def use(self, n: int) -> None:
        self.n_threads = n


def track_in(context: Timed, ids=IDS) -> TimingPosition:
    track = TimingPosition(context, ids, context.clock)
    assert list(track.fill())[-1] == 1
    assert context.cells[0] == list(ids)
    return track


# Rows


@pytest.mark.parametrize("memory", ["full", "window", "rollback", "checkpoint"])
def test_every_memory_returns_to_the_place(memory):
    context = Timed(memory=memory)
    track, times = track_in(context), Times()
    shares = list(time_rows(track, (2, 4, 12), DEFAULT.min_samples, 0.0, times))
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


def test_single_rows_stand_before_each_wider_decode():
    context = Timed()
    track = track_in(context)
    context.widths.clear()
    list(time_rows(track, (2, 4), 2, 0.0, Times()))
    assert context.widths == [1, 2, 1, 4] * 2


def test_it_goes_on_while_there_is_time():
    context, times = Timed(), Times()
    track, began = track_in(context), context.now
    list(time_rows(track, (2, 4), DEFAULT.min_samples, 1.0, times))
    assert 1.0 <= context.now - began < 1.1
    fast, many = Timed(t1=1e-6), Times()
    list(time_rows(track_in(fast), (2,), DEFAULT.min_samples, 1.0, many))
    assert len(many[2]) == MOST_ROUNDS


def test_a_context_without_room_for_more_than_a_row():
    context, times = Timed(n_ctx=41), Times()
    track = track_in(context)
    assert track.most == 1
    list(time_rows(track, (), DEFAULT.min_samples, 0.0, times))
    assert list(times) == [1]


def test_a_long_text_is_filled_in_chunks_that_grow():
    context = Timed(n_ctx=4096, n_batch=512, t1=0.0001)
    ids = cycled(IDS, 3000)
    shares = list(TimingPosition(context, ids, context.clock).fill())
    assert shares == sorted(shares)
    assert context.widths[0] == 64
    assert max(context.widths) == 512
    assert context.cells[0] == ids
    slow = Timed(n_ctx=4096, n_batch=512, t1=0.1)
    list(TimingPosition(slow, ids, slow.clock).fill())
    assert max(slow.widths) == 64


# Threads


def test_threads_take_turns_and_what_is_far_behind_is_timed_once():
    context = Timed(n_ctx=128)
    track, times = track_in(context), dict[int, ThreadTimes]()
    context.widths.clear()
    context.used.clear()
    list(time_threads(track, [8, 6, 4, 1], context.use, DEFAULT.min_samples, 0.0, times))
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
def test_steps_are_timed_by_the_ids_that_they_evaluate(memory):
    context, times = Timed(n_ctx=256, memory=memory), Times()
    drafter = ModelDrafter(context, N_VOCAB)
    chooser = KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)
    ids = cycled(IDS, 200)
    list(time_steps(drafter, ids, DEFAULT.min_samples, 0.0, chooser, context.clock, times))
    assert set(times) == set(STEP_WIDTHS)
    for n, t in times.items():
        assert len(t) >= DEFAULT.min_samples
        assert t == pytest.approx([context.seconds(n)] * len(t))


def test_a_short_text_or_a_small_context_leaves_wide_steps_out():
    for n_ids, n_ctx in ((20, 256), (200, 20)):
        context, times = Timed(n_ctx=n_ctx), Times()
        chooser = KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)
        ids = cycled(IDS, n_ids)
        list(
            time_steps(
                ModelDrafter(context, N_VOCAB), ids, DEFAULT.min_samples, 0.0, chooser, context.clock, times
            )
        )
        assert set(times) == {1, 2, 3, 4, 6, 8}


# Figures


def test_the_lower_quartile_is_what_counts():
    assert typical([5.0]) == 5
    assert typical([9.0, 1.0, 2.0]) == 1
    assert typical([1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 70.0, 80.0]) == 2
    assert spread([1.0, 1.0, 1.0]) == 1
    assert spread([1.0, 1.0, 4.0, 4.0, 4.0, 4.0]) == 4


def test_a_curve_of_what_was_timed_often_enough():
    times = {1: [0.01] * 9, 2: [0.02, 0.015, 0.09], 4: [0.02] * (DEFAULT.min_samples - 1)}
    curve = curve_of(times)
    assert (curve.predict(1), curve.predict(2)) == (0.01, 0.015)
    assert curve.count(2) == DEFAULT.min_samples
    assert curve.count(4) == 0
    assert points(times)[1] == TimedWidth(rows=2, seconds=0.015, count=3)
    assert not curve_of({}).measured
    assert points({1: []}) == []
