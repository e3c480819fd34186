"""Means and medians. Numbers in, numbers out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SHARE, ALLOWANCE = 0.01, 4.0  # of the time of plain decoding, and t(1) on top, that may be lost


class Losses(NamedTuple):
    """What drafting comes to where it does not pay. ratio, worst: its time over plain decoding's, of all
    texts and of the worst one. pairs: the same of each pair of runs, the geometric mean; error: half of its
    95 % interval, as a share (infinite for a single pair). t1: seconds of a plain decode of one token; in
    t1: each, what a request loses; lost, what all of them lost; may, what they were promised to lose at most.
    """

    ratio: float
    worst: float
    pairs: float
    error: float
    t1: float
    each: float
    lost: float
    may: float

    @property
    def kept(self) -> bool:
        return self.lost <= self.may


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.mean(map(math.log, ratios)))


def ranged(ratios: Iterable[float]) -> str:
    """`1.42 (1.10 to 1.93)`: geometric mean, smallest and largest."""
    found = list(ratios)
    return f"{mean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def losses(found: Sequence[Sequence[tuple[float, float]]], n: int) -> Losses:
    """The losses, from the seconds of plain decoding and of drafting, run after run of each text of n tokens.

    Of each text the medians count, for the promise every run.
    """
    pairs = [tuple(statistics.median(run[i] for run in runs) for i in (0, 1)) for runs in found]
    plain, drafting = (sum(pair[i] for pair in pairs) for i in (0, 1))
    t1 = plain / (len(pairs) * (n - 1))  # the prompt gives the first token
    whole, spent = (sum(run[i] for runs in found for run in runs) for i in (0, 1))
    logs = [math.log(run[1] / run[0]) for runs in found for run in runs]
    return Losses(
        ratio=drafting / plain,
        worst=max(pair[1] / pair[0] for pair in pairs),
        pairs=math.exp(statistics.mean(logs)),
        error=1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf,
        t1=t1,
        each=(drafting - plain) / t1 / len(pairs),
        lost=(spent - whole) / t1,
        may=SHARE * whole / t1 + ALLOWANCE,
    )
