"""Which number of threads is fastest, from decodes that were timed in turn. Knows no clock, no contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import median

WIDE = 8  # rows of the wide decode
CLEAR, CERTAIN = 1.05, 0.8  # times as fast in the median round, and share of rounds in which it was faster
_EACH = 8  # numbers up to here are all tried
_PARTS = (1.25, 1.5, 1.75, 2.0)  # beyond, these times a power of two


@dataclass(slots=True)
class ThreadTimes:
    """Seconds of decodes of one row and of WIDE rows with a number of threads, one each per round."""

    one: list[float] = field(default_factory=list)
    wide: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The fastest number of threads over both widths; gain: times as fast as the one in use, in the median
    round; clear: whether by more than chance.
    """

    n_threads: int
    gain: float
    clear: bool


def candidates(cores: int, used: Iterable[int]) -> list[int]:
    """Numbers of threads worth timing, the largest first: from 1 to the physical cores, and those in use."""
    found = {*used, *range(1, min(cores, _EACH) + 1), cores, max(1, cores - 1)}
    power = _EACH
    while power < cores:
        found.update(n for part in _PARTS if (n := int(power * part)) < cores)
        power *= 2
    return sorted(found, reverse=True)


def choice(times: Mapping[int, ThreadTimes], n_threads: int, n_threads_batch: int) -> ThreadChoice | None:
    """The fastest of them against those in use for one row and for more; None where too little was timed.

    A round counts as one comparison, so that what slows the machine down for a while slows all of them.
    """
    nothing = ThreadTimes()
    ours = zip(times.get(n_threads, nothing).one, times.get(n_threads_batch, nothing).wide, strict=False)
    used = [sqrt(one * wide) for one, wide in ours]
    best = ThreadChoice(n_threads, 1.0, False)
    if not used:
        return None
    for n, found in sorted(times.items()):
        if n == n_threads == n_threads_batch:
            continue
        ratios = [u / sqrt(one * wide) for u, one, wide in zip(used, found.one, found.wide, strict=False)]
        if ratios and (gain := median(ratios)) > best.gain:
            sure = sum(ratio > 1 for ratio in ratios) >= CERTAIN * len(ratios) and len(ratios) >= len(used)
            best = ThreadChoice(n, gain, sure and gain >= CLEAR)
    return best
