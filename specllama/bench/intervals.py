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
    kept = _without_empty(groups)
    if not kept:
        return None
    n = sum(len(unit) for units in kept for unit in units)
    if n < 3:
        return Estimate(_typical(kept), None, None, n)
    low, high = np.exp(np.quantile(_resampled_logs(kept, n), (0.025, 0.975)))
    return Estimate(_typical(kept), float(low), float(high), n)


def quotient(groups: Sequence[Units], others: Sequence[Units]) -> Estimate | None:
    """The typical value of `groups` over that of `others`, which have the same form: values of the same
    answers. Its interval is that of the quotient over the same resamples of both, so that what makes a unit
    slow for both does not widen it. None without any value.
    """
    above, below = _without_empty(groups), _without_empty(others)
    if not above or not below:
        return None
    value, n = _typical(above) / _typical(below), sum(len(unit) for units in above for unit in units)
    if n < 3:
        return Estimate(value, None, None, n)
    logs = _resampled_logs(above, n) - _resampled_logs(below, n)
    low, high = np.exp(np.quantile(logs, (0.025, 0.975)))
    return Estimate(value, min(float(low), value), max(float(high), value), n)


def _without_empty(groups: Sequence[Units]) -> list[Units]:
    kept = [[unit for unit in units if unit] for units in groups]
    return [units for units in kept if units]


def _typical(groups: Sequence[Units]) -> float:
    return float(np.exp(np.mean([np.log(np.median([np.median(u) for u in units])) for units in groups])))


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
        values = np.where(np.arange(most) < counts[chosen], values, np.nan)
        medians[begin : begin + n] = np.median(np.nanmedian(values, axis=2), axis=1)
    return medians
