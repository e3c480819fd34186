"""Timing the target: decodes by rows and by threads, and how many widths there is time for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from specllama.client import protocol
from specllama.config.load import MAX_THREADS
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import decode_prior
from specllama.llama.context import LlamaContext
from specllama.models.memory.available import physical_cores
from specllama.worker.calibrate import TIMED
from specllama.worker.profile import ModelProfile
from specllama.worker.tuning.threads import WIDE, ThreadTimes, candidates, choice
from specllama.worker.tuning.timing import (
    MOST_ROUNDS,
    Times,
    TimingPosition,
    curve_of,
    points,
    spread,
    time_rows,
    time_threads,
)

WIDTHS = (*TIMED[1:], 48, 64)  # rows, beside one
_THREAD_ROUNDS = 5  # at least; fewer decide nothing
_CURVE_LIMIT = 120.0  # seconds; wider decodes are left out where fewer rounds than needed fit into it
_THREAD_SHARE = 2.5  # a decode with few threads, in those with all


def affordable(track: TimingPosition, t1: float) -> tuple[list[int], list[int]]:
    """(widths that there is room and time for, the others)."""
    widths = [n for n in WIDTHS if n <= track.most]
    while len(widths) > 1 and curve_seconds(widths, t1, 0.0) > _CURVE_LIMIT:
        widths.pop()
    return widths, [n for n in WIDTHS if n not in widths]


def curve_seconds(widths: Sequence[int], t1: float, seconds: float) -> float:
    """What timing them is predicted to take, where `seconds` are wanted for it."""
    return _rounds_seconds(sum(decode_prior(n) + 1 for n in widths) * t1, DEFAULT.min_samples, seconds)


def thread_seconds(numbers: Sequence[int], t1: float, seconds: float) -> float:
    """The same of timing numbers of threads."""
    return _rounds_seconds(
        len(numbers) * (2 + decode_prior(WIDE)) * t1 * _THREAD_SHARE, _THREAD_ROUNDS, seconds
    )


def _rounds_seconds(one: float, least: int, seconds: float) -> float:
    return max(least * one, min(seconds, MOST_ROUNDS * one))


def thread_numbers(context: LlamaContext) -> list[int]:
    """The numbers of threads to be timed."""
    return candidates(min(physical_cores(), MAX_THREADS), (context.n_threads, context.n_threads_batch))


def _use(context: LlamaContext, n_threads: int) -> None:
    context.set_threads(n_threads, n_threads)


class CurveTimes:
    """t(n) at one place, measured anew and stored once every width was timed often enough."""

    def __init__(self, track: TimingPosition, profile: ModelProfile, t1: float) -> None:
        self.track, self.profile = track, profile
        self.widths, self.left_out = affordable(track, t1)
        self.times: Times = {}

    def work(self, seconds: float) -> Iterator[float]:
        try:
            yield from time_rows(self.track, self.widths, DEFAULT.min_samples, seconds, self.times)
        finally:
            if self.complete:
                self.profile.measured(len(self.track.ids), curve_of(self.times))

    @property
    def complete(self) -> bool:
        return all(len(self.times.get(n, ())) >= DEFAULT.min_samples for n in (1, *self.widths))

    @property
    def found(self) -> protocol.TimedCurve:
        return protocol.TimedCurve(
            n_ids=len(self.track.ids),
            points=points(self.times),
            left_out=self.left_out,
            complete=self.complete,
            spread=spread(self.times[1]) if self.times.get(1) else None,
        )


class ThreadsTried:
    """Decodes with other numbers of threads; the context has its own again afterwards."""

    def __init__(self, track: TimingPosition, context: LlamaContext) -> None:
        self.track, self.context = track, context
        self.used = context.n_threads, context.n_threads_batch
        self.times: dict[int, ThreadTimes] = {}

    def work(self, seconds: float) -> Iterator[float]:
        numbers = thread_numbers(self.context)
        try:
            use = partial(_use, self.context)
            yield from time_threads(self.track, numbers, use, _THREAD_ROUNDS, seconds, self.times)
        finally:
            self.context.set_threads(*self.used)

    @property
    def found(self) -> protocol.ThreadsComparison:
        best = choice(self.times, *self.used)
        return protocol.ThreadsComparison(
            used=self.used[0],
            used_batch=self.used[1],
            rows=min(WIDE, self.track.most),
            points=[
                protocol.TimedThreads(n, median(t.one), median(t.wide))
                for n, t in sorted(self.times.items())
                if t.wide
            ],
            fastest=best.n_threads if best else None,
            gain=best.gain if best else None,
            clear=best.clear if best else False,
        )
