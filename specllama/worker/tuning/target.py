"""Times the target: decodes by number of rows and by number of threads, as far as there is time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from specllama.client.tune_messages import ThreadsComparison, TimedCurve, TimedThreads
from specllama.config.load import MAX_THREADS
from specllama.core.policy.config import DEFAULT
from specllama.llama.context import LlamaContext
from specllama.models.memory.available import physical_cores
from specllama.other_work import OtherWork, is_disturbed, median_ratio
from specllama.worker.calibrate import TIMED
from specllama.worker.profile import ModelProfile
from specllama.worker.tuning.threads import WIDE, ThreadTimes, candidates, fastest
from specllama.worker.tuning.timing import (
    MAX_ROUNDS,
    Times,
    TimingPosition,
    curve_of,
    points,
    time_rows,
    time_threads,
)

WIDTHS = (*TIMED[1:], 48, 64)  # rows of the decodes that are timed, besides single rows
_THREAD_ROUNDS = 5  # at least; fewer are not conclusive
_CURVE_LIMIT = 120.0  # seconds; the widest decodes are left out if the curve would take longer
_THREAD_SLOWDOWN = 2.5  # average over the numbers of threads, relative to all threads


def affordable_widths(position: TimingPosition, t1: float) -> tuple[list[int], list[int]]:
    """(widths for which there is room and time, the other widths). t1: seconds."""
    widths = [n for n in WIDTHS if n <= position.max_rows]
    while len(widths) > 1 and curve_seconds(widths, t1, 0.0) > _CURVE_LIMIT:
        widths.pop()
    return widths, [n for n in WIDTHS if n not in widths]


def curve_seconds(widths: Sequence[int], t1: float, seconds: float) -> float:
    """Predicted seconds of timing these widths when `seconds` are requested for it."""
    return _rounds_seconds(sum(DEFAULT.prior(n) + 1 for n in widths) * t1, DEFAULT.min_samples, seconds)


def thread_seconds(numbers: Sequence[int], t1: float, seconds: float) -> float:
    """Predicted seconds of timing these numbers of threads when `seconds` are requested for it."""
    return _rounds_seconds(
        len(numbers) * (2 + DEFAULT.prior(WIDE)) * t1 * _THREAD_SLOWDOWN, _THREAD_ROUNDS, seconds
    )


def _rounds_seconds(round_seconds: float, min_rounds: int, seconds: float) -> float:
    return max(min_rounds * round_seconds, min(seconds, MAX_ROUNDS * round_seconds))


def thread_numbers(context: LlamaContext) -> list[int]:
    """The numbers of threads to time."""
    return candidates(min(physical_cores(), MAX_THREADS), (context.n_threads, context.n_threads_batch))


def _set_threads(context: LlamaContext, n_threads: int) -> None:
    context.set_threads(n_threads, n_threads)


class CurveTimes:
    """Measures t(n) at one context length, and stores it where every width was timed often enough, and no
    other program changed the times.

    t1: seconds, measured before. ignore_load: whether it is stored whatever else runs.
    """

    def __init__(
        self, position: TimingPosition, profile: ModelProfile, t1: float, ignore_load: bool = False
    ) -> None:
        self._ignore_load = ignore_load
        self.position, self.profile = position, profile
        self.widths, self.left_out = affordable_widths(position, t1)
        self.times: Times = {}
        self.disturbed = False

    def run(self, seconds: float, n_threads: int) -> Iterator[float]:
        """Measure for so many seconds. n_threads: that a decode uses. Yields the share that is done."""
        others = OtherWork(n_threads)
        try:
            yield from time_rows(self.position, self.widths, DEFAULT.min_samples, seconds, self.times)
        finally:
            disturbed = others.disturbs or is_disturbed(self.times)
            self.disturbed = disturbed and not self._ignore_load
            if self.complete and not self.disturbed:
                self.profile.store_curve(len(self.position.ids), curve_of(self.times))

    @property
    def complete(self) -> bool:
        return all(len(self.times.get(n, ())) >= DEFAULT.min_samples for n in (1, *self.widths))

    @property
    def report(self) -> TimedCurve:
        return TimedCurve(
            n_ids=len(self.position.ids),
            points=points(self.times),
            left_out=self.left_out,
            complete=self.complete,
            spread=median_ratio(self.times[1]) if self.times.get(1) else None,
            disturbed=self.disturbed,
        )


class ThreadTrial:
    """Times decodes with other numbers of threads; restores the context's own numbers afterwards."""

    def __init__(self, position: TimingPosition, context: LlamaContext) -> None:
        self.position, self.context = position, context
        self.used = context.n_threads, context.n_threads_batch
        self.times: dict[int, ThreadTimes] = {}
        self.disturbed = False

    def run(self, seconds: float) -> Iterator[float]:
        numbers, others = thread_numbers(self.context), OtherWork(max(self.used))
        try:
            use = partial(_set_threads, self.context)
            yield from time_threads(self.position, numbers, use, _THREAD_ROUNDS, seconds, self.times)
        finally:
            self.context.set_threads(*self.used)
            # A trial of one thread leaves the others idle, whatever else runs: this finds less than all.
            self.disturbed = others.disturbs

    @property
    def report(self) -> ThreadsComparison:
        best = fastest(self.times, *self.used)
        return ThreadsComparison(
            used=self.used[0],
            used_batch=self.used[1],
            rows=min(WIDE, self.position.max_rows),
            points=[
                TimedThreads(n, median(t.one), median(t.wide))
                for n, t in sorted(self.times.items())
                if t.wide
            ],
            fastest=best.n_threads if best else None,
            gain=best.gain if best else None,
            clear=best.clear if best else False,
            disturbed=self.disturbed,
        )
