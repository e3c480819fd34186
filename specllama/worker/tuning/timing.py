"""Timing of decodes on a context that nobody else uses: by rows, by threads, and steps of a draft model.

Works forward from a place in a text and returns to it, so that every memory kind can be timed. All functions
that take long are iterators: they stop at every step, with the share that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from statistics import median

from specllama.client.protocol import TimedWidth
from specllama.core.interfaces import BatchRow, Context, Sampler
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.drafters.model import ModelDrafter
from specllama.worker.tuning.threads import WIDE, ThreadTimes

Clock = Callable[[], float]
Times = dict[int, list[float]]  # rows of a decode, or ids of a step, to seconds
MOST_ROUNDS = 50
STEP_WIDTHS = (1, 2, 3, 4, 6, 8, 16, 32, 64)  # ids that a step of the draft model evaluates
_CHUNK_SECONDS = 0.25  # of filling at once
_FAR_BEHIND = 2.0  # times the fastest: such numbers of threads are timed once


class TimingPosition:
    """A place in a text that the cache of sequence 0 returns to after every decode.

    ids: the text before it. Knows nothing of what was in the cache before.
    """

    def __init__(self, context: Context, ids: Sequence[int], clock: Clock) -> None:
        self.context, self.ids, self.clock = context, list(ids), clock
        self.most = min(context.n_outputs_max, context.n_batch, context.n_ctx - len(self.ids))
        self.row_seconds = 0.0  # of a row of filling
        self._at = 0

    def fill(self) -> Iterator[float]:
        """Evaluate the text, a chunk at a time."""
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
        """Seconds of a decode of so many rows there. Raises what the context raises."""
        n = len(self.ids)
        batch = [BatchRow(self.ids[(self._at + i) % n], n + i, 0, True) for i in range(rows)]
        self._at += rows
        began = self.clock()
        self.context.decode(batch)
        took = self.clock() - began
        if self.context.truncate(0, n) != n:
            for _ in self.fill():
                pass
        return took


def time_rows(
    track: TimingPosition, widths: Sequence[int], least: int, seconds: float, into: Times
) -> Iterator[float]:
    """Decodes of all widths in turn, each behind one of one row: at least `least` rounds, more as long as
    `seconds` last.
    """
    for share, n in _rounds([n for n in widths if n > 1] or [1], least, seconds, track.clock):
        for rows in (1, n) if n > 1 else (1,):
            into.setdefault(rows, []).append(track.time(rows))
        yield share


def time_threads(
    track: TimingPosition,
    numbers: Sequence[int],
    use: Callable[[int], None],
    least: int,
    seconds: float,
    into: dict[int, ThreadTimes],
) -> Iterator[float]:
    """One row and WIDE rows with each number of threads in turn; use: sets the number. Those that are far
    behind in the first round are left out of the others.
    """
    wide = min(WIDE, track.most)
    kept = list(numbers)
    for share, n in _rounds(kept, least, seconds, track.clock):
        found = into.setdefault(n, ThreadTimes())
        use(n)
        track.time(1)  # starts or ends threads
        found.one.append(track.time(1))
        found.wide.append(track.time(wide))
        if n == numbers[-1] and len(found.one) == 1:
            one, wide_ = (min(getattr(t, name)[0] for t in into.values()) for name in ("one", "wide"))
            kept[:] = [k for k in kept if _near(into[k], one, wide_)]
        yield share


def _near(found: ThreadTimes, one: float, wide: float) -> bool:
    return found.one[0] < _FAR_BEHIND * one or found.wide[0] < _FAR_BEHIND * wide


def _rounds(items: list[int], least: int, seconds: float, clock: Clock) -> Iterator[tuple[float, int]]:
    """(share that is done, item): all items in turn, again and again. What is taken out of `items` between
    two rounds is left out.
    """
    began, n_rounds = clock(), 0
    while items and n_rounds < MOST_ROUNDS:
        left = seconds - (clock() - began)
        if n_rounds >= least and left <= 0:
            return
        for i, item in enumerate(list(items)):
            spent = (clock() - began) / seconds if seconds else 1.0
            yield min((n_rounds + i / len(items)) / least, max(spent, n_rounds / MOST_ROUNDS), 1.0), item
        n_rounds += 1


def time_steps(
    drafter: ModelDrafter, ids: Sequence[int], least: int, seconds: float, chooser: Sampler, clock: Clock,
    into: Times,
) -> Iterator[float]:  # fmt: skip
    """Steps of the draft model that evaluate 1, 2, 3 … ids, walking along a text: as a round asks them."""
    at, widths = len(ids), [w for w in STEP_WIDTHS if 2 * w < min(len(ids), drafter.context.n_ctx)]
    for share, width in _rounds(widths, least, seconds, clock):
        for n in (1, width):
            if at + n > min(len(ids), drafter.context.n_ctx):
                at = 2
                drafter.start(0, ids[:at], chooser)
                drafter.step({0: []})
            at += n
            drafter.start(0, ids[:at], chooser)
            fits = drafter.view(0).n_pending == n
            began = clock()
            found = drafter.step({0: []})
            if found and fits:
                into.setdefault(n, []).append(clock() - began)
        yield share


def typical(times: Sequence[float]) -> float:
    """The lower quartile: other load makes decodes longer, never shorter."""
    return sorted(times)[(len(times) - 1) // 4]


def spread(times: Sequence[float]) -> float:
    """How often the typical one the median is: near 1 on a machine that does nothing else."""
    return median(times) / typical(times)


def curve_of(times: Mapping[int, Sequence[float]]) -> CostCurve:
    """The typical times, of widths that were timed often enough to be sure of."""
    widths = [
        [n, typical(found), len(found)]
        for n, found in sorted(times.items())
        if len(found) >= DEFAULT.min_samples
    ]
    return CostCurve.from_dict({"widths": widths, "anew": [n for n, *_ in widths]})


def points(times: Mapping[int, Sequence[float]]) -> list[TimedWidth]:
    """The typical times, by rows."""
    return [TimedWidth(n, typical(t), len(t)) for n, t in sorted(times.items()) if t]


def cycled(ids: Sequence[int], n: int) -> list[int]:
    """The ids, again and again, up to n of them."""
    return list(islice(cycle(ids), n))
