"""Means, quantiles and intervals of measurements. Numbers in, numbers out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specllama.bench.intervals import Estimate, estimate

OVERHEAD_SHARE = 0.01  # of plain decoding's time, which drafting may cost
OVERHEAD_TOKENS = 4.0  # plain decodes, which it may cost in addition


class Overhead(NamedTuple):
    """The overhead of drafting where it does not pay.

    ratio, worst: its time over plain decoding's, of all texts and of the worst text. pairs: the geometric
    mean of that ratio over pairs of runs; error: half of its 95 % interval (infinite for a single pair). t1:
    seconds of a plain decode of one token; in units of t1: each, the loss of a request; lost, the loss of all
    runs; allowed, the loss that is promised at most.
    """

    ratio: float
    worst: float
    pairs: float
    error: float
    t1: float
    each: float
    lost: float
    allowed: float

    @property
    def kept(self) -> bool:
        return self.lost <= self.allowed


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.mean(map(math.log, ratios)))


def ranged(ratios: Iterable[float]) -> str:
    """`1.42 (1.10 to 1.93)`: geometric mean, smallest and largest."""
    found = list(ratios)
    return f"{mean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def median_interval(values: Sequence[float]) -> Estimate:
    """The median of positive values with its 95 % bootstrap interval, which is the median itself for fewer
    than 3 values.
    """
    found = estimate([[[value] for value in values]])
    assert found is not None
    low, high = found.low or found.value, found.high or found.value
    return Estimate(found.value, low, high, found.n)


def overhead(runs: Sequence[Sequence[tuple[float, float]]], n: int) -> Overhead:
    """The overhead, from (seconds of plain decoding, seconds of drafting) for each run of each text of n
    tokens.

    A text counts by its medians; the allowance is checked over all runs.
    """
    pairs = [tuple(statistics.median(run[i] for run in of_text) for i in (0, 1)) for of_text in runs]
    plain, drafting = (sum(pair[i] for pair in pairs) for i in (0, 1))
    t1 = plain / (len(pairs) * (n - 1))  # the prompt gives the first token
    all_plain, all_drafting = (sum(run[i] for of_text in runs for run in of_text) for i in (0, 1))
    logs = [math.log(run[1] / run[0]) for of_text in runs for run in of_text]
    return Overhead(
        ratio=drafting / plain,
        worst=max(pair[1] / pair[0] for pair in pairs),
        pairs=math.exp(statistics.mean(logs)),
        error=1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf,
        t1=t1,
        each=(drafting - plain) / t1 / len(pairs),
        lost=(all_drafting - all_plain) / t1,
        allowed=OVERHEAD_SHARE * all_plain / t1 + OVERHEAD_TOKENS,
    )
