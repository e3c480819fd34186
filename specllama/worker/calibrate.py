"""Measures on a context what later runs need to know: t(1), how far batched rows differ from single ones, and
the times of decodes of several rows.

epsilon is the 99.9 % quantile of the change of the margin between the two best scores when a row is decoded
in a batch instead of alone; 0 where the backend is bit-equal. Kernels are chosen by the rows of a decode and
by the cache in use, so both are recorded: from how many rows on they differ, and after how long a text.
Memories that cannot take back any number of tokens are not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.config.store import ENOUGH_ROWS
from specllama.core.interfaces import BatchRow, Context, NoRoomError
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve

WIDTHS = (2, 4, 8, 17, 32, 63)  # of the batches that are compared with single rows
TIMED = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)  # rows of the decodes that are timed


@dataclass(slots=True)
class Calibration:
    """singles: seconds of decodes of one row. changes: logits, one per compared row. widths: of the batches
    compared, and whether all rows of all of them were bit-equal. reach: ids, the longest text after which
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
        return float(np.quantile(self.changes, 0.999)) if self.changes else None

    @property
    def n_rows(self) -> int:
        return len(self.changes)

    @property
    def unlike(self) -> int | None:
        """The fewest rows of a batch that were not all bit-equal; None where all were."""
        return min((w for w, equal in self.widths.items() if not equal), default=None)

    @property
    def equal_up_to(self) -> int:
        """The most rows of a batch that were bit-equal, and in all narrower ones; 0 where none were."""
        most = self.unlike or max(WIDTHS) + 1
        return max((w for w in self.widths if w < most), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data. What was not measured is None."""
        found = {"t1": self.t1, "epsilon": self.epsilon, "n_rows": self.n_rows}
        return found | {"alike": self.equal_up_to, "unlike": self.unlike, "reach": self.reach}


def goes_back(context: Context) -> bool:
    """Whether the context's memory takes back any tokens."""
    return not context.cuts_need_checkpoint and context.max_rollback >= context.n_ctx


def measure(
    context: Context,
    seq_id: int,
    ids: Sequence[int],
    seconds: float,
    clock: Callable[[], float],
    into: Calibration | None = None,
) -> Calibration:
    """Decode stretches of `ids`, which the cache holds, after them, in batches and one by one, and take them
    out again.

    Takes about `seconds` and leaves the cache as it was; empty where its memory refuses to go back. into:
    what was found before, to be added to.
    """
    found, n, started, at = into if into is not None else Calibration(), len(ids), clock(), 0
    if not goes_back(context) or n < 1 or context.n_past(seq_id) != n:
        return found
    most = min(context.n_outputs_max, context.n_batch, context.n_ctx - n)
    for width in cycle(WIDTHS):
        left = seconds - (clock() - started)
        # Once batches of ENOUGH_ROWS equal single rows, wider ones are compared with those.
        step = ENOUGH_ROWS if width > ENOUGH_ROWS and found.equal_up_to >= ENOUGH_ROWS else 1
        cost = (3 if step == 1 else 1) * width * min(found.singles) if found.singles else 0.0
        fits = width <= most and cost <= left
        if left <= 0 or (not fits and width == WIDTHS[0]):
            break
        if not fits:
            continue
        rows = _stretch([ids[(at + i) % n] for i in range(width)], n, seq_id)
        at += width
        if not _compare(context, rows, step, clock, found):
            break
    return found


def _compare(
    context: Context, rows: Sequence[BatchRow], step: int, clock: Callable[[], float], found: Calibration
) -> bool:
    """Decode the rows together and `step` at a time; False where there is no room or the cache does not go
    back.
    """
    n, seq_id, width, back = rows[0].pos, rows[0].seq_id, len(rows), True
    try:
        together = context.decode(rows).copy()
        if context.truncate(seq_id, n) != n:
            return False
        for i in range(0, width, step):
            t = clock()
            alone = context.decode(rows[i : i + step])
            if step == 1:
                found.singles.append(clock() - t)
            batched = together[i : i + step]
            found.changes += [margin_change(a, b) for a, b in zip(alone, batched, strict=True)]
            found.widths[width] = found.widths.get(width, True) and np.array_equal(alone, batched)
        found.reach = max(found.reach, n)
    except NoRoomError:
        back = False
    return context.truncate(seq_id, n) == n and back


def missing_widths(context: Context, n_ids: int, curve: CostCurve, seconds: float) -> list[int]:
    """The widths that the curve misses and that can be timed after so many ids, each within `seconds`."""
    most = min(context.n_outputs_max, context.n_batch, context.n_ctx - n_ids)
    if n_ids < 1 or not goes_back(context):
        return []
    t1 = curve.predict(1)
    return [n for n in curve.unmeasured(TIMED) if n <= most and curve.upper_bound(n) + t1 < seconds]


def time_widths(
    context: Context,
    seq_id: int,
    ids: Sequence[int],
    curve: CostCurve,
    seconds: float,
    clock: Callable[[], float],
) -> int:
    """Time decodes of the widths that the curve misses, in turn, each after one of one row.

    Stretches of `ids`, which the cache holds, are decoded after them and taken out again. Takes about
    `seconds` at most; the number of decodes.
    """
    n, started, at, n_timed = len(ids), clock(), 0, 0
    if context.n_past(seq_id) != n:
        return 0
    before = -1
    while n_timed > before and (widths := missing_widths(context, n, curve, seconds)):
        before = n_timed
        for width in widths:
            if curve.count(width) >= DEFAULT.min_samples:
                curve.forget(width)
            if curve.predict(1) + curve.upper_bound(width) >= seconds - (clock() - started):
                continue
            for rows in (1, width) if width > 1 else (1,):
                stretch = [ids[(at + i) % n] for i in range(rows)]
                at += rows
                took = _timed(context, _stretch(stretch, n, seq_id), clock)
                if took is None or context.truncate(seq_id, n) != n:
                    return n_timed
                curve.observe(rows, took, plain=rows == 1)
                n_timed += 1
    return n_timed


def _timed(context: Context, rows: Sequence[BatchRow], clock: Callable[[], float]) -> float | None:
    """Seconds of a decode; None without room for it."""
    started = clock()
    try:
        context.decode(rows)
    except NoRoomError:
        return None
    return clock() - started


def _stretch(ids: Sequence[int], begin: int, seq_id: int) -> list[BatchRow]:
    return [BatchRow(token, begin + i, seq_id, True) for i, token in enumerate(ids)]


def margin_change(alone: NDArray[np.float32], batched: NDArray[np.float32]) -> float:
    """How far the distance between the two best ids of `alone` is another in `batched`, in logits."""
    first, second = np.argsort(alone)[-1], np.argsort(alone)[-2]
    return float(abs((batched[first] - batched[second]) - (alone[first] - alone[second])))
