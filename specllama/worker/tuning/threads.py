"""Finds the fastest number of threads from decodes that were timed in turn. Knows no clock and no context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import median

WIDE = 8  # rows of the wide decode
MIN_GAIN = 1.05  # speed-up in the median round
MIN_SHARE = 0.8  # of the rounds in which it must be faster
_ALL_UP_TO = 8  # every number of threads up to here is tried
_STEPS = (1.25, 1.5, 1.75, 2.0)  # above that, these multiples of powers of two


@dataclass(slots=True)
class ThreadTimes:
    """Seconds of decodes with some number of threads: of one row and of WIDE rows, one each per round."""

    one: list[float] = field(default_factory=list)
    wide: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The fastest number of threads over both widths. gain: speed-up over the number in use, in the median
    round. clear: whether the gain exceeds the noise.
    """

    n_threads: int
    gain: float
    clear: bool


def candidates(cores: int, used: Iterable[int]) -> list[int]:
    """Numbers of threads to time, the largest first: up to the physical cores, and those in use."""
    numbers = {*used, *range(1, min(cores, _ALL_UP_TO) + 1), cores, max(1, cores - 1)}
    power = _ALL_UP_TO
    while power < cores:
        numbers.update(n for step in _STEPS if (n := int(power * step)) < cores)
        power *= 2
    return sorted(numbers, reverse=True)


def fastest(times: Mapping[int, ThreadTimes], n_threads: int, n_threads_batch: int) -> ThreadChoice | None:
    """The fastest number of threads compared with those in use; None if those were not timed.

    n_threads, n_threads_batch: in use for one row and for several. Times are compared within a round, so that
    a temporary slowdown of the machine affects all numbers alike.
    """
    nothing = ThreadTimes()
    ours = zip(times.get(n_threads, nothing).one, times.get(n_threads_batch, nothing).wide, strict=False)
    used = [sqrt(one * wide) for one, wide in ours]
    best = ThreadChoice(n_threads, 1.0, False)
    if not used:
        return None
    for n, samples in sorted(times.items()):
        if n == n_threads == n_threads_batch:
            continue
        ratios = [u / sqrt(one * wide) for u, one, wide in zip(used, samples.one, samples.wide, strict=False)]
        if ratios and (gain := median(ratios)) > best.gain:
            often = sum(ratio > 1 for ratio in ratios) >= MIN_SHARE * len(ratios) and len(ratios) >= len(used)
            best = ThreadChoice(n, gain, often and gain >= MIN_GAIN)
    return best
