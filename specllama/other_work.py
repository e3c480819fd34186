"""Whether other programs disturbed a measurement: by the kernel's counters, and by its times.

Counted over the whole machine (/proc/stat): what is idle or was used by this process was there for it.
Elsewhere, or inside sandboxes that hide the counters, nothing is known, and nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

_LEFT = 0.85  # share of the processor time of its threads that a measurement has to be left with
_MIN_TICKS = 20  # of the machine; fewer say nothing
_BUSY = 1.3  # times the typical decode of one row; more means that other programs keep the machine busy


class ProcessorTime(NamedTuple):
    """Processor time since the start of the machine, in ticks. total: of all processors. idle: of these.
    own: used by the processes that measure, all threads.
    """

    total: float
    idle: float
    own: float


def usage(path: str = "/proc/stat", processes: Sequence[int] = ()) -> ProcessorTime | None:
    """The counters now, None where they cannot be read. processes: others than this one that measure."""
    try:
        with open(path, encoding="ascii") as file:
            name, *fields = file.readline().split()
        ticks = [float(x) for x in fields[:8]]  # user nice system idle iowait irq softirq steal
        per_second = os.sysconf("SC_CLK_TCK")
        others = sum(map(_ticks_of, processes))
    except (OSError, ValueError, AttributeError):
        return None
    if name != "cpu" or len(ticks) < 4:
        return None
    times = os.times()
    own = (times.user + times.system) * per_second + others
    return ProcessorTime(sum(ticks), sum(ticks[3:5]), own)


def _ticks_of(process: int) -> int:
    """Processor time of a process. Raises OSError, ValueError."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()  # those after its name, from the third one on
    return int(fields[11]) + int(fields[12])


class OtherWork:
    """Compares the counters at the start of a measurement with those at its end. n_threads: of the
    measurement. n_cpus: processors of the machine, which /proc/stat counts.
    """

    def __init__(
        self,
        n_threads: int,
        n_cpus: int | None = None,
        read: Callable[[], ProcessorTime | None] = usage,
    ) -> None:
        self._n_threads, self._read = n_threads, read
        self._n_cpus = n_cpus or os.cpu_count() or 1
        self._began = read()

    @property
    def disturbs(self) -> bool:
        """Whether other programs left less than the measurement needs; False where it is unknown."""
        began, now = self._began, self._read()
        if began is None or now is None:
            return False
        passed = (now.total - began.total) / self._n_cpus
        if passed * self._n_cpus < _MIN_TICKS:
            return False
        left = now.idle - began.idle + now.own - began.own
        return left < _LEFT * min(self._n_threads, self._n_cpus) * passed


def lower_quartile(times: Sequence[float]) -> float:
    """The lower quartile of times, which other load on the machine affects least."""
    return sorted(times)[(len(times) - 1) // 4]


def median_ratio(times: Sequence[float]) -> float:
    """The median over the lower quartile: near 1 on a machine that does nothing else."""
    return median(times) / lower_quartile(times)


def is_disturbed(times: Mapping[int, Sequence[float]]) -> bool:
    """Whether decodes of one row differ as on a busy machine, or take longer than wider ones."""
    ones = times.get(1)
    if not ones:
        return False
    first = lower_quartile(ones)
    wider = (lower_quartile(samples) for n, samples in times.items() if n > 1 and samples)
    return median_ratio(ones) > _BUSY or any(took < first / _BUSY for took in wider)
