"""Times the target: decodes by number of rows and by number of threads, as far as there is time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import sqrt
from statistics import median

from specllama.client import tune_messages
from specllama.config.load import MAX_THREADS
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, CachingDrafter, Context, Sampler
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.models.memory.available import physical_cores
from specllama.other_work import OtherWork, is_disturbed, lower_quartile, median_ratio
from specllama.worker.calibrate import CHANGING, TIMED
from specllama.worker.loader import Loaded
from specllama.worker.profile import bucket_of

# Finds the fastest number of threads from decodes that were timed in turn.


WIDE = 8  # rows of the wide decode
MIN_GAIN = 1.05  # speed-up in the median round
MIN_SHARE = 0.8  # of the rounds in which it must be faster
_ALL_UP_TO = 8  # every number of threads up to here is tried
_STEPS = (1.25, 1.5, 1.75, 2.0)  # above that, these multiples of powers of two

# Number of threads to rounds: the seconds of a decode of one row and of one of WIDE rows in each.
ThreadTimes = dict[int, list[tuple[float, float]]]


def candidates(cores: int, used: Iterable[int]) -> list[int]:
    """Numbers of threads to time, the largest first: up to the physical cores, and those in use."""
    numbers = {*used, *range(1, min(cores, _ALL_UP_TO) + 1), cores, max(1, cores - 1)}
    power = _ALL_UP_TO
    while power < cores:
        numbers.update(n for step in _STEPS if (n := int(power * step)) < cores)
        power *= 2
    return sorted(numbers, reverse=True)


def fastest(times: ThreadTimes, n_threads: int, n_threads_batch: int) -> tuple[int, float, bool] | None:
    """(the fastest number of threads over both widths; its speed-up over the number in use, in the median
    round; whether that exceeds the noise). None if those in use were not timed.

    n_threads, n_threads_batch: in use for one row and for several. Times are compared within a round, so that
    a temporary slowdown of the machine affects all numbers alike.
    """
    ours = zip(times.get(n_threads, ()), times.get(n_threads_batch, ()), strict=False)
    used = [sqrt(one * wide) for (one, _), (_, wide) in ours]
    best = n_threads, 1.0, False
    if not used:
        return None
    for n, samples in sorted(times.items()):
        if n == n_threads == n_threads_batch:
            continue
        ratios = [u / sqrt(one * wide) for u, (one, wide) in zip(used, samples, strict=False)]
        if ratios and (gain := median(ratios)) > best[1]:
            often = sum(ratio > 1 for ratio in ratios) >= MIN_SHARE * len(ratios) and len(ratios) >= len(used)
            best = n, gain, often and gain >= MIN_GAIN
    return best


# Times decodes on a context that nothing else uses, by rows and by threads, and steps of drafts.
#
# Decodes start at a fixed position in a text, to which the cache returns, so that every kind of memory can be
# timed. Long-running functions are iterators that yield the share that is done after each decode.


Clock = Callable[[], float]
Times = dict[int, list[float]]  # rows of a decode, or ids of a step, to seconds
MAX_ROUNDS = 50
STEP_WIDTHS = (1, 2, 3, 4, 6, 8, 16, 32, 64)  # ids that a step of the draft model evaluates
_CHUNK_SECONDS = 0.25  # limit of one prefill chunk
_MUCH_SLOWER = 2.0  # relative to the fastest: such numbers of threads are timed only once


class TimingPosition:
    """A position in a text to which the cache of sequence 0 returns after every decode.

    ids: the text before it. max_rows: of a decode there. row_seconds: prefill seconds per token. changing:
    whether a change of the number of rows costs something; steady decodes are timed then.
    """

    def __init__(self, context: Context, ids: Sequence[int], clock: Clock, changing: bool = False) -> None:
        self.changing, self._last_rows = changing, 0
        self.context, self.ids, self.clock = context, list(ids), clock
        self.max_rows = min(context.n_outputs_max, context.n_batch, context.n_ctx - len(self.ids))
        self.row_seconds = 0.0
        self._next = 0  # index of the next id to decode

    def fill(self) -> Iterator[float]:
        """Clear the cache and evaluate the text, a chunk at a time."""
        context, n, done = self.context, min(64, self.context.n_batch), 0
        context.truncate(0, 0)
        while done < len(self.ids):
            chunk = self.ids[done : done + n]
            began = self.clock()
            context.decode([BatchRow(t, done + i, 0, False) for i, t in enumerate(chunk)])
            self.row_seconds = (self.clock() - began) / len(chunk)
            done += len(chunk)
            if 2 * n * self.row_seconds < _CHUNK_SECONDS:
                n = min(2 * n, context.n_batch)
            yield done / len(self.ids)
        context.checkpoint(0)

    def time(self, rows: int) -> float:
        """Seconds of a decode of this many rows at the position. Raises DecodeError, NoRoomError."""
        if self.changing and rows != self._last_rows:
            self._last_rows = rows
            for _ in range(CHANGING):
                self.time(rows)
        n = len(self.ids)
        batch = [BatchRow(self.ids[(self._next + i) % n], n + i, 0, True) for i in range(rows)]
        self._next += rows
        began = self.clock()
        self.context.decode(batch)
        seconds = self.clock() - began
        if self.context.truncate(0, n) != n:
            for _ in self.fill():
                pass
        return seconds


def time_rows(
    position: TimingPosition, widths: Sequence[int], min_rounds: int, seconds: float, into: Times
) -> Iterator[float]:
    """Time all widths in turn, each after one row: at least `min_rounds` rounds, more within `seconds`."""
    for share, n in _rounds([n for n in widths if n > 1] or [1], min_rounds, seconds, position.clock):
        for rows in (1, n) if n > 1 else (1,):
            into.setdefault(rows, []).append(position.time(rows))
        yield share


def time_threads(
    position: TimingPosition,
    numbers: Sequence[int],
    use: Callable[[int], None],
    min_rounds: int,
    seconds: float,
    into: ThreadTimes,
) -> Iterator[float]:
    """Time one row and WIDE rows with each number of threads in turn. use: sets the number. Numbers that are
    much slower in the first round are left out of the others.
    """
    wide = min(WIDE, position.max_rows)
    kept = list(numbers)
    for share, n in _rounds(kept, min_rounds, seconds, position.clock):
        samples = into.setdefault(n, [])
        use(n)
        position.time(1)  # starts or ends threads
        samples.append((position.time(1), position.time(wide)))
        if n == numbers[-1] and len(samples) == 1:
            best, best_wide = (_MUCH_SLOWER * min(t[0][i] for t in into.values()) for i in (0, 1))
            kept[:] = [k for k in kept if into[k][0][0] < best or into[k][0][1] < best_wide]
        yield share


def _rounds(items: list[int], min_rounds: int, seconds: float, clock: Clock) -> Iterator[tuple[float, int]]:
    """(share that is done, item) in rounds; items that the caller removes are left out of the next ones."""
    began, n_rounds = clock(), 0
    while items and n_rounds < MAX_ROUNDS:
        left = seconds - (clock() - began)
        if n_rounds >= min_rounds and left <= 0:
            return
        for i, item in enumerate(list(items)):
            spent = (clock() - began) / seconds if seconds else 1.0
            yield min((n_rounds + i / len(items)) / min_rounds, max(spent, n_rounds / MAX_ROUNDS), 1.0), item
        n_rounds += 1


def time_steps(
    drafter: CachingDrafter,
    ids: Sequence[int],
    min_rounds: int,
    seconds: float,
    sampler: Sampler,
    clock: Clock,
    into: Times,
) -> Iterator[float]:
    """Time steps of a draft model or a head that evaluate 1, 2, 3 … ids, moving along a text as generation
    does. ids: the text, which fits into its cache.
    """
    at, widths = len(ids), [w for w in STEP_WIDTHS if 2 * w < len(ids)]
    for share, width in _rounds(widths, min_rounds, seconds, clock):
        for n in (1, width):
            if at + n > len(ids):
                at = 2
                drafter.start(0, ids[:at], sampler)
                drafter.step({0: []})
            at += n
            drafter.start(0, ids[:at], sampler)
            if drafter.cache_state(0).n_pending == n + 1:  # a block drafter evaluates the last id every time
                at -= 1
                drafter.start(0, ids[:at], sampler)
            fits = drafter.cache_state(0).n_pending == n
            began = clock()
            proposals = drafter.step({0: []})
            if proposals and fits:
                into.setdefault(n, []).append(clock() - began)
        yield share


def time_step(
    drafter: CachingDrafter,
    ids: Sequence[int],
    min_rounds: int,
    seconds: float,
    sampler: Sampler,
    clock: Clock,
    into: Times,
) -> Iterator[float]:
    """Time steps of one id of a head that reads the target's cache, which holds `ids` but for the last."""
    for share, n in _rounds([1], min_rounds, seconds, clock):
        drafter.start(0, ids, sampler)
        began = clock()
        if drafter.step({0: []}):
            into.setdefault(n, []).append(clock() - began)
        yield share


def curve_of(times: Mapping[int, Sequence[float]]) -> CostCurve:
    """A cost curve of the lower quartiles, over widths that were timed often enough."""
    widths = [
        [n, lower_quartile(samples), len(samples)]
        for n, samples in sorted(times.items())
        if len(samples) >= DEFAULT.min_samples
    ]
    curve = CostCurve.from_dict({"widths": widths})
    for n, seconds in curve.times[:1]:
        curve.set_scale(n, seconds)  # they are of this process
    return curve


def points(times: Mapping[int, Sequence[float]]) -> list[tune_messages.TimedWidth]:
    """The lower quartile of the times of each width, by rows."""
    return [tune_messages.TimedWidth(n, lower_quartile(t), len(t)) for n, t in sorted(times.items()) if t]


def repeated(ids: Sequence[int], n: int) -> list[int]:
    return list(islice(cycle(ids), n))


# The stages of a Tune that time the target.


WIDTHS = (*TIMED[1:], 48, 64)  # rows of the decodes that are timed, besides single rows
_THREAD_ROUNDS = 5  # at least; fewer are not conclusive
_CURVE_LIMIT = 120.0  # seconds; the widest decodes are left out if the curve would take longer


@dataclass(slots=True)
class TuneRun:
    """A Tune in progress, and what it knows so far.

    report: sends a part of the results. t1: seconds of a decode of one row; row_seconds: of prefill per
    token. costs: of the target's decodes. disturbed: whether other programs changed the times.
    """

    order: tune_messages.Tune
    engine: Engine
    loaded: Loaded
    report: Callable[[tune_messages.TunePart], None]
    t1: float = 0.0
    row_seconds: float = 0.0
    costs: CostCurve = field(default_factory=CostCurve)
    disturbed: bool = False


def affordable_widths(position: TimingPosition, t1: float) -> tuple[list[int], list[int]]:
    """(widths for which there is room and time, the other widths). t1: seconds."""
    widths = [n for n in WIDTHS if n <= position.max_rows]
    most = _CURVE_LIMIT / (DEFAULT.min_samples * t1) if t1 else float("inf")
    while len(widths) > 1 and sum(DEFAULT.prior(n) + 1 for n in widths) > most:
        widths.pop()
    return widths, [n for n in WIDTHS if n not in widths]


def measure_curve(run: TuneRun, position: TimingPosition, seconds: float) -> Iterator[float]:
    """Measure t(n) at a position for so many seconds, and store it where every width was timed often enough,
    and no other program changed the times. Yields the share that is done.
    """
    if not position.row_seconds:
        yield from (0.0 for _ in position.fill())
    times, others = Times(), OtherWork(run.loaded.n_working)
    widths, left_out = affordable_widths(position, run.t1)
    try:
        yield from time_rows(position, widths, DEFAULT.min_samples, seconds, times)
    finally:
        disturbed = (others.disturbs or is_disturbed(times)) and not run.order.ignore_load
        run.disturbed |= disturbed
        complete = all(len(times.get(n, ())) >= DEFAULT.min_samples for n in (1, *widths))
        curve, n_ids = curve_of(times), len(position.ids)
        if complete and not disturbed:
            run.loaded.profile.store_curve(n_ids, curve)
        spread = median_ratio(times[1]) if times.get(1) else None
        run.report(tune_messages.TimedCurve(n_ids, points(times), left_out, complete, spread, disturbed))
    if bucket_of(n_ids) == 0:
        run.costs = curve


def measure_threads(run: TuneRun, position: TimingPosition, seconds: float) -> Iterator[float]:
    """Time other numbers of threads for so many seconds; then those in use are set again. Yields shares."""
    context, times = run.loaded.context, ThreadTimes()
    used = context.n_threads, context.n_threads_batch
    numbers, others = candidates(min(physical_cores(), MAX_THREADS), used), OtherWork(max(used))
    try:
        use = lambda n: context.set_threads(n, n)  # noqa: E731
        yield from time_threads(position, numbers, use, _THREAD_ROUNDS, seconds, times)
    finally:
        context.set_threads(*used)
        # A trial of one thread leaves the others idle, whatever else runs: this finds less than all.
        run.disturbed |= others.disturbs and not run.order.ignore_load
        timed = [
            tune_messages.TimedThreads(n, *map(median, zip(*t, strict=True)))
            for n, t in sorted(times.items())
            if t
        ]
        best, gain, clear = fastest(times, *used) or (None, None, False)
        rows = min(WIDE, position.max_rows)
        run.report(tune_messages.ThreadsComparison(*used, rows, timed, best, gain, clear, run.disturbed))
