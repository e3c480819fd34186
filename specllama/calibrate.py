"""Measures on a context what later runs need to know: t(1), and how far batched rows differ from single ones.

epsilon is the 99.9 % quantile of the change of the margin between the two best scores when a row is decoded
in a batch instead of alone; 0 where the backend is bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.ports import BatchRow, Context

WIDTHS = (2, 4, 8, 16)


@dataclass(slots=True)
class Calibration:
    """t1: median seconds of a decode of one row. changes: logits, one per compared row."""

    t1: float | None = None
    epsilon: float | None = None
    n_rows: int = 0
    singles: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k not in ("singles", "changes")}


def measure(
    context: Context, seq_id: int, ids: Sequence[int], seconds: float, clock: Callable[[], float]
) -> Calibration:
    """Decode stretches of `ids`, which the cache holds, from their end backwards: in batches and one by one.

    Takes about `seconds` and leaves the cache shorter or empty. Memories that cannot go back freely are
    left alone.
    """
    found, n, started = Calibration(), len(ids), clock()
    if context.cuts_need_checkpoint or context.n_past(seq_id) != n:
        return found
    for width in cycle(WIDTHS):
        begin, left = n - width, seconds - (clock() - started)
        cost = 3 * width * min(found.singles) if found.singles else 0.0
        if begin < 1 or left <= 0 or (cost > left and width == WIDTHS[0]):
            break
        if cost > left or width > min(context.max_cut, context.n_outputs_max):
            continue
        rows = [BatchRow(ids[begin + i], begin + i, seq_id, True) for i in range(width)]
        if context.cut(seq_id, begin) != begin:
            break
        together = context.decode(rows).copy()
        if context.cut(seq_id, begin) != begin:
            break
        for row, batched in zip(rows, together, strict=True):
            t = clock()
            alone = context.decode([row])[0]
            found.singles.append(clock() - t)
            found.changes.append(margin_change(alone, batched))
        n = begin
    if found.singles:
        found.t1 = float(np.median(found.singles))
        found.epsilon = float(np.quantile(found.changes, 0.999))
        found.n_rows = len(found.changes)
    return found


def margin_change(alone: NDArray[np.float32], batched: NDArray[np.float32]) -> float:
    """How far the distance between the two best ids of `alone` is another in `batched`, in logits."""
    first, second = np.argsort(alone)[-1], np.argsort(alone)[-2]
    return float(abs((batched[first] - batched[second]) - (alone[first] - alone[second])))
