"""Medians and their bootstrap intervals. Numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_DRAWS, MIN_DRAWS = 2000, 100
_MAX_NUMBERS = 500_000  # drawn for an interval; medians of many values vary little and need fewer draws
_BATCH = 1 << 20  # numbers drawn at once
Units = Sequence[Sequence[float]]  # values of each unit, at least one


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure from n values and its 95 % interval, None for fewer than 3 values."""

    value: float
    low: float | None
    high: float | None
    n: int


def estimate(groups: Sequence[Units]) -> Estimate | None:
    """The typical value of positive numbers that come in groups (workloads) of units (prompts).

    The geometric mean over groups of the median over units of the median over values: a workload does not
    count more for having more prompts. The interval is the percentile bootstrap (Efron, "Bootstrap methods",
    Annals of Statistics 1979): units are resampled in each group, and values in each unit. None without
    any value.
    """
    kept = [[list(unit) for unit in units if unit] for units in groups]
    kept = [units for units in kept if units]
    if not kept:
        return None
    value = float(np.exp(np.mean([np.log(np.median([np.median(u) for u in units])) for units in kept])))
    n = sum(len(unit) for units in kept for unit in units)
    if n < 3:
        return Estimate(value, None, None, n)
    low, high = np.exp(np.quantile(_resampled_logs(kept, n), (0.025, 0.975)))
    return Estimate(value, float(low), float(high), n)


def quotient(groups: Sequence[Units], others: Sequence[Units]) -> Estimate | None:
    """The typical value of `groups` over that of `others`, which have the same form: values of the same
    answers. Its interval is that of the quotient over the same resamples of both, so that what makes a unit
    slow for both does not widen it. None without any value.
    """
    above, below = estimate(groups), estimate(others)
    if above is None or below is None:
        return None
    value = above.value / below.value
    if above.n < 3:
        return Estimate(value, None, None, above.n)
    kept = [[[list(unit) for unit in units if unit] for units in some] for some in (groups, others)]
    one, other = (_resampled_logs([units for units in some if units], above.n) for some in kept)
    low, high = np.exp(np.quantile(one - other, (0.025, 0.975)))
    return Estimate(value, min(float(low), value), max(float(high), value), above.n)


def _resampled_logs(groups: Sequence[Units], n: int) -> NDArray[np.float64]:
    """Logarithms of the typical value of resamples, shape (draws,); n: values in all groups."""
    rng, draws = np.random.default_rng(0), max(MIN_DRAWS, min(MAX_DRAWS, _MAX_NUMBERS // n))
    logs: NDArray[np.float64] = np.mean([np.log(_resampled_medians(g, draws, rng)) for g in groups], axis=0)
    return logs


def _resampled_medians(units: Units, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians of resampled groups, shape (draws,)."""
    counts = np.array([len(unit) for unit in units])
    starts = np.cumsum(counts) - counts
    flat = np.concatenate([np.asarray(unit, dtype=np.float64) for unit in units])
    most, medians = int(counts.max()), np.empty(draws)
    step = max(1, _BATCH // (len(units) * most))
    for begin in range(0, draws, step):
        n = min(step, draws - begin)
        chosen = rng.integers(0, len(units), (n, len(units), 1))
        inside = rng.random((n, len(units), most)) * counts[chosen]
        values = flat[starts[chosen] + inside.astype(np.int64)]
        values = np.sort(np.where(np.arange(most) < counts[chosen], values, np.inf), axis=2)
        low, high = (
            np.take_along_axis(values, i, 2) for i in ((counts[chosen] - 1) // 2, counts[chosen] // 2)
        )
        medians[begin : begin + n] = np.median((low + high)[..., 0] / 2, axis=1)
    return medians
