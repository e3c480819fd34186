"""Processes that tests start and look for, with deadlines."""

from __future__ import annotations

import time

import psutil

SOON = 10.0  # seconds; what waits so long for it takes some hundredths


def is_gone(process: psutil.Process, seconds: float = SOON) -> bool:
    """Soon, at least; an orphan may wait as a zombie for the system to take note."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def child_of(pid: int, seconds: float = SOON) -> psutil.Process:
    """The first process that this one has started, as soon as there is one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if children := psutil.Process(pid).children():
            return children[0]
        time.sleep(0.005)
    raise AssertionError(f"process {pid} starts none")


def works(process: psutil.Process, seconds: float, within: float = SOON) -> None:
    """Return when the process has used so much more time of a processor, however busy the machine is."""
    deadline, done = time.monotonic() + within, spent(process) + seconds
    while time.monotonic() < deadline:
        if spent(process) >= done:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {process.pid} hardly works")


def spent(process: psutil.Process) -> float:
    """Seconds of a processor that the process itself has used."""
    times = process.cpu_times()
    return float(times.user + times.system)
