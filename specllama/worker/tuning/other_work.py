"""Whether other programs used the processors that a measurement needed, by the kernel's counters.

Counted over the whole machine (/proc/stat): what is idle or was used by this process was there for it.
Elsewhere, or inside sandboxes that hide the counters, nothing is known, and nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

_LEFT = 0.85  # share of the processor time of its threads that a measurement has to be left with
_MIN_TICKS = 20  # of the machine; fewer say nothing


class ProcessorTime(NamedTuple):
    """Processor time since the start of the machine, in ticks. total: of all processors. idle: of these.
    own: used by this process, all threads.
    """

    total: float
    idle: float
    own: float


def usage(path: str = "/proc/stat") -> ProcessorTime | None:
    """The counters now, None where they cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            name, *fields = file.readline().split()
        ticks = [float(x) for x in fields[:8]]  # user nice system idle iowait irq softirq steal
        per_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    if name != "cpu" or len(ticks) < 4:
        return None
    times = os.times()
    return ProcessorTime(sum(ticks), sum(ticks[3:5]), (times.user + times.system) * per_second)


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
