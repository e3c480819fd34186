"""Measures what later runs need: t(1), by how much the logits of batched rows differ from those of single
rows, and the times of decodes of several rows.

epsilon is the 99.9 % quantile of the change of the margin between the two highest logits when a row is
decoded in a batch instead of alone; 0 if the backend is bit-equal. llama.cpp chooses kernels by the number of
rows and by the number of cache cells in use, so both are recorded: the batch sizes that differ, and the
length of the text before them. Memories that cannot be rolled back by any number of tokens are not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from math import exp, log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from specllama.config.store import ENOUGH_ROWS
from specllama.core.interfaces import BatchRow, Context, NoRoomError
from specllama.core.policy.cost_curve import WIDTHS as TEXT_WIDTHS
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.posterior import StepCosts

WIDTHS = (2, 4, 8, 17, 32, 63)  # of the batches that are compared with single rows
CHANGING = 2  # decodes after a change of the width that may take longer
TIMED = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)  # rows of the decodes that are timed
LOAD_SECONDS = 0.5  # most that timing them may take
FAST_SECONDS = 0.05  # of one row; where it takes longer, a change of some milliseconds does not count
_CHECKED = 2, 4, 8, 16, 32  # widths of a stored curve that are tried; measured again where far off
_LOAD_SAMPLES = 2  # of a width in a load: the next one has a second look before they count as reliable
_OVERHEAD = 1e-3  # seconds of a step of a draft beyond its decode, at most
_ALIKE = log(1.25)  # decodes in an empty context can be so much faster than those of texts
_CHANGES = 6  # changes of the width that are timed
_CHANGE_SHARE, _CHANGE_SECONDS = 0.1, 3e-4  # a change that costs less, in t(1) and in seconds, counts as free


@dataclass(slots=True)
class Calibration:
    """A comparison of batched with single rows.

    singles: seconds of decodes of one row. changes: of the margin in logits, one per compared row. widths:
    batch size to whether all its rows were bit-equal. reach: length in tokens of the longest text after which
    rows were compared.
    """

    singles: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    widths: dict[int, bool] = field(default_factory=dict)
    reach: int = 0

    @property
    def t1(self) -> float | None:
        """Median seconds of a decode of one row."""
        return float(np.median(self.singles)) if self.singles else None

    @property
    def epsilon(self) -> float | None:
        """The 99.9 % quantile of the changes of the margin, in logits."""
        return float(np.quantile(self.changes, 0.999)) if self.changes else None

    @property
    def n_rows(self) -> int:
        return len(self.changes)

    @property
    def unlike(self) -> int | None:
        """The smallest batch size whose rows were not all bit-equal; None if all were."""
        return min((w for w, equal in self.widths.items() if not equal), default=None)

    @property
    def equal_up_to(self) -> int:
        """The largest batch size up to which all rows were bit-equal; 0 if there is none."""
        limit = self.unlike or max(WIDTHS) + 1
        return max((w for w in self.widths if w < limit), default=0)

    def to_dict(self) -> dict[str, float | None]:
        """The figures under their store keys; None for those that were not measured."""
        figures = {"t1": self.t1, "epsilon": self.epsilon, "n_rows": self.n_rows}
        return figures | {"alike": self.equal_up_to, "unlike": self.unlike, "reach": self.reach}


def can_roll_back(context: Context) -> bool:
    """Whether the context's memory can be rolled back by any number of tokens."""
    return not context.cuts_need_checkpoint and context.max_rollback >= context.n_ctx


def measure(
    context: Context,
    seq_id: int,
    ids: Sequence[int],
    seconds: float,
    clock: Callable[[], float],
    into: Calibration | None = None,
    known: int = 0,
    t1: float | None = None,
) -> Calibration:
    """Compare batched with single rows: decode pieces of `ids` after `ids`, which the cache holds, in batches
    and one by one, and remove them again.

    Takes about `seconds` and leaves the cache as it was, or empty if the memory refuses to be rolled back.
    into: an earlier comparison to extend. known: batches of up to so many rows need not be compared, and
    wider ones once.
    t1: seconds of a decode of one row, if that is known.
    """
    calibration, n, started, at = into if into is not None else Calibration(), len(ids), clock(), 0
    compared = [w for w in WIDTHS if w > known]
    if not can_roll_back(context) or n < 1 or context.n_past(seq_id) != n:
        return calibration
    max_rows = min(context.n_outputs_max, context.n_batch, context.n_ctx - n)
    for width in compared if known else cycle(compared):
        left, equal_up_to = seconds - (clock() - started), max(known, calibration.equal_up_to)
        # Once batches of ENOUGH_ROWS equal single rows, wider ones are compared with those.
        step = ENOUGH_ROWS if width > ENOUGH_ROWS and equal_up_to >= ENOUGH_ROWS else 1
        cost = comparing_seconds(width, equal_up_to, min(calibration.singles, default=t1 or 0.0))
        fits = width <= max_rows and cost <= left
        if left <= 0 or (not fits and width == compared[0]):
            break
        if not fits:
            continue
        rows = _batch([ids[(at + i) % n] for i in range(width)], n, seq_id)
        at += width
        if not _compare(context, rows, step, clock, calibration):
            break
    return calibration


def comparing_seconds(width: int, equal_up_to: int, t1: float) -> float:
    """About what comparing a batch takes: with single rows, or with batches of ENOUGH_ROWS known equal."""
    together = width > ENOUGH_ROWS and equal_up_to >= ENOUGH_ROWS
    return (1 if together else 3) * width * t1


def _compare(
    context: Context,
    rows: Sequence[BatchRow],
    step: int,
    clock: Callable[[], float],
    calibration: Calibration,
) -> bool:
    """Decode the rows together and `step` at a time; False without room, or if the rollback fails."""
    n, seq_id, width, ok = rows[0].pos, rows[0].seq_id, len(rows), True
    try:
        together = context.decode(rows).copy()
        if context.truncate(seq_id, n) != n:
            return False
        for i in range(0, width, step):
            t = clock()
            alone = context.decode(rows[i : i + step])
            if step == 1:
                calibration.singles.append(clock() - t)
            batched = together[i : i + step]
            calibration.changes += [margin_change(a, b) for a, b in zip(alone, batched, strict=True)]
            calibration.widths[width] = calibration.widths.get(width, True) and np.array_equal(alone, batched)
        calibration.reach = max(calibration.reach, n)
    except NoRoomError:
        ok = False
    return context.truncate(seq_id, n) == n and ok


def unmeasured(curve: CostCurve, widths: Iterable[int]) -> list[int]:
    """The widths that were not measured often enough."""
    return [n for n in widths if curve.count(n) < curve.config.min_samples]


def missing_widths(context: Context, n_ids: int, curve: CostCurve, seconds: float) -> list[int]:
    """The widths without a time in the curve that can be timed after `n_ids` ids, each within `seconds`."""
    max_rows = min(context.n_outputs_max, context.n_batch, context.n_ctx - n_ids)
    if n_ids < 1 or not can_roll_back(context):
        return []
    t1 = curve.predict(1)
    return [n for n in unmeasured(curve, TIMED) if n <= max_rows and curve.upper_bound(n) + t1 < seconds]


def time_widths(
    context: Context,
    seq_id: int,
    ids: Sequence[int],
    curve: CostCurve,
    seconds: float,
    clock: Callable[[], float],
    changing: bool = False,
) -> int:
    """Time decodes of the widths without a time in the curve, in turn; where a change of the width costs
    something, after two others of the same width.

    Pieces of `ids`, which the cache holds, are decoded after them and removed again. Takes about `seconds` at
    most. Returns the number of decodes.
    """
    n, started, at, n_timed = len(ids), clock(), 0, 0
    if context.n_past(seq_id) != n:
        return 0
    before = -1
    while n_timed > before and (widths := missing_widths(context, n, curve, seconds)):
        before = n_timed
        for width in widths:
            once = curve.upper_bound(width)
            if once * (CHANGING + 1 if changing else 1) >= seconds - (clock() - started):
                continue
            for left in range(CHANGING if changing else 0, -1, -1):
                piece = [ids[(at + i) % n] for i in range(width)]
                at += width
                began = clock()
                try:
                    context.decode(_batch(piece, n, seq_id))
                except NoRoomError:
                    return n_timed
                elapsed = clock() - began
                if context.truncate(seq_id, n) != n:
                    return n_timed
                if not left:
                    curve.observe(width, elapsed)
                n_timed += 1
    return n_timed


def seconds_of(context: Context, rows: Sequence[BatchRow], clock: Callable[[], float]) -> float:
    """Seconds of a decode in an empty context, which is empty again afterwards."""
    began = clock()
    context.decode(rows)
    seconds = clock() - began
    context.truncate(0, 0)
    return seconds


def _batch(ids: Sequence[int], first_pos: int, seq_id: int) -> list[BatchRow]:
    return [BatchRow(token, first_pos + i, seq_id, True) for i, token in enumerate(ids)]


def margin_change(alone: NDArray[np.float32], batched: NDArray[np.float32]) -> float:
    """By how much the margin between the two best tokens of `alone` changes in `batched`, in logits."""
    first, second = np.argsort(alone)[-1], np.argsort(alone)[-2]
    return float(abs((batched[first] - batched[second]) - (alone[first] - alone[second])))


def measure_load(
    curve: CostCurve, decode: Callable[[int], float], max_rows: int, changes_known: bool = False
) -> float | None:
    """Time the decodes of a context that was just loaded: of one row for the scale of a stored curve, of
    further widths that were not measured often enough, as far as that takes about half a second in all.
    Returns the seconds that a change of the width costs, 0 where that is nothing that counts, None where that
    is known or one row takes too long to find out. decode: decodes so many rows and removes them again;
    returns the seconds.
    """
    decode(1)  # the first decode takes longer than any other
    singles = [decode(1)]
    while singles[0] <= FAST_SECONDS and len(singles) < (CHANGING + 1):
        singles.append(decode(1))
    t1 = median(singles)
    if curve.known and abs(log(t1 / curve.predict(1))) > _ALIKE:
        curve.set_scale(1, t1)
    if not curve.known:
        curve.observe(1, t1)
    curve.leave_out_impossible([1])
    if t1 > FAST_SECONDS or max_rows < 2:
        return None
    _check_stored(curve, decode, t1, max_rows)
    wanted = unmeasured(curve, (n for n in TEXT_WIDTHS if n <= max_rows))
    finds_change = not changes_known and _CHANGES * (CHANGING + 1) * t1 < LOAD_SECONDS
    spent = min(LOAD_SECONDS / 2, _CHANGES * (CHANGING + 1) * t1) if finds_change else 0.0
    for n in wanted:
        expected = max(curve.predict(n), t1)
        n_decodes = CHANGING + (_LOAD_SAMPLES if spent + (CHANGING + 1) * expected < LOAD_SECONDS / 2 else 1)
        if spent + n_decodes * expected > LOAD_SECONDS:
            break
        seconds = [decode(n) for _ in range(n_decodes)]
        spent += sum(seconds)
        for took in seconds[CHANGING:]:
            curve.observe(n, took)
    return measure_change(decode, t1) if finds_change else None


def measure_steps(steps: StepCosts, decode: Callable[[int], float], max_rows: int) -> None:
    """As `measure_load`, for the decodes of a draft. Stored times are those of its steps, which take up to a
    millisecond longer, and are kept where they can be right.
    """
    curve = steps.curve
    if curve.known:
        t1 = min(decode(1), decode(1), decode(1))
        if t1 / 2 <= curve.predict(1) <= 2 * t1 + _OVERHEAD:
            curve.set_scale(1, curve.predict(1))
            _check_stored(curve, decode, t1, max_rows, _OVERHEAD)
            return
        steps.curve = CostCurve(steps.config)
    measure_load(steps.curve, decode, max_rows, changes_known=True)


def _check_stored(
    curve: CostCurve, decode: Callable[[int], float], t1: float, max_rows: int, overhead: float = 0.0
) -> None:
    """Replace widths of a stored curve that are far off. overhead: seconds that stored ones may be longer."""
    spent, factor, sure = 0.0, exp(curve.config.most_off), [1]
    for n in _CHECKED:
        if n > max_rows or not curve.count(n):
            continue
        if spent + min(curve.predict(n), n * t1) > LOAD_SECONDS / 2:
            break
        seconds = list[float]()
        while len(seconds) <= CHANGING:  # where a change costs something, the first two take longer
            seconds.append(decode(n))
            if min(seconds) / factor <= curve.predict(n) <= min(seconds) * factor + overhead:
                break
        else:
            curve.leave_out(n)
            for took in seconds:
                curve.observe(n, took)
        spent += sum(seconds)
        sure.append(n)
        curve.leave_out_impossible(sure)


def measure_change(decode: Callable[[int], float], t1: float) -> float:
    """Seconds that a change of the width costs: those that the first two decodes after it take longer than
    the third, 0 where these are noise or less than counts.
    """
    excesses = []
    for n in (2, 1) * (_CHANGES // 2):
        first, second, steady = decode(n), decode(n), decode(n)
        excesses.append(first + second - 2 * steady)
    later = excesses[2:]  # the first ones of a width may load something
    counts = min(later) > 0 and median(later) > max(_CHANGE_SHARE * t1, _CHANGE_SECONDS)
    return median(later) if counts else 0.0
