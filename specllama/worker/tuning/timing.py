"""Times decodes on a context that nothing else uses, by rows and by threads, and steps of drafts.

Decodes start at a fixed position in a text, to which the cache returns, so that every kind of memory can be
timed. Long-running functions are iterators that yield the share that is done after each decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice

from specllama.client.tune_messages import TimedWidth
from specllama.core.interfaces import BatchRow, CachingDrafter, Context, Sampler
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.other_work import lower_quartile
from specllama.worker.calibrate import CHANGING
from specllama.worker.tuning.threads import WIDE, ThreadTimes

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
    """Time decodes of all widths in turn, each after a decode of one row: at least `min_rounds` rounds, more
    until `seconds` have passed.
    """
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
    into: dict[int, ThreadTimes],
) -> Iterator[float]:
    """Time one row and WIDE rows with each number of threads in turn. use: sets the number. Numbers that are
    much slower in the first round are left out of the others.
    """
    wide = min(WIDE, position.max_rows)
    kept = list(numbers)
    for share, n in _rounds(kept, min_rounds, seconds, position.clock):
        samples = into.setdefault(n, ThreadTimes())
        use(n)
        position.time(1)  # starts or ends threads
        samples.one.append(position.time(1))
        samples.wide.append(position.time(wide))
        if n == numbers[-1] and len(samples.one) == 1:
            best, best_wide = min(t.one[0] for t in into.values()), min(t.wide[0] for t in into.values())
            kept[:] = [k for k in kept if _is_close(into[k], best, best_wide)]
        yield share


def _is_close(times: ThreadTimes, best: float, best_wide: float) -> bool:
    return times.one[0] < _MUCH_SLOWER * best or times.wide[0] < _MUCH_SLOWER * best_wide


def _rounds(items: list[int], min_rounds: int, seconds: float, clock: Clock) -> Iterator[tuple[float, int]]:
    """(share that is done, item): all items in turn, round after round. Items that the caller removes from
    the list are left out of the next rounds.
    """
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
    """Time steps of a head that reads the target's cache, which holds `ids` but for the last: each evaluates
    one id, whatever it did before.
    """
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


def points(times: Mapping[int, Sequence[float]]) -> list[TimedWidth]:
    """The lower quartile of the times of each width, by rows."""
    return [TimedWidth(n, lower_quartile(t), len(t)) for n, t in sorted(times.items()) if t]


def repeated(ids: Sequence[int], n: int) -> list[int]:
    """The ids repeated to a length of n."""
    return list(islice(cycle(ids), n))
