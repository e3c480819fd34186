"""Waiting for processes, with deadlines."""

from __future__ import annotations

import time

import psutil

SOON = 30.0  # seconds: a deadline for operations that take hundredths of a second


def is_gone(process: psutil.Process, seconds: float = SOON) -> bool:
    """Whether the process ends within that time; a zombie counts as ended."""
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
    """The first child process, as soon as there is one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if children := psutil.Process(pid).children():
            return children[0]
        time.sleep(0.005)
    raise AssertionError(f"process {pid} starts none")


def use_cpu(process: psutil.Process, seconds: float, within: float = SOON) -> None:
    """Return when the process has used this many more seconds of CPU time, however busy the machine is."""
    deadline, done = time.monotonic() + within, cpu_seconds(process) + seconds
    while time.monotonic() < deadline:
        if cpu_seconds(process) >= done:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {process.pid} is almost idle")


def cpu_seconds(process: psutil.Process) -> float:
    """Seconds of CPU time that the process has used, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)
