"""Waiting for processes, with deadlines."""

from __future__ import annotations

import time

import psutil

SOON = 10.0  # seconds, a deadline for what takes hundredths of a second


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


def works(process: psutil.Process, seconds: float, within: float = SOON) -> None:
    """Return when the process has used so many more seconds of a processor, however busy the machine is."""
    deadline, done = time.monotonic() + within, spent(process) + seconds
    while time.monotonic() < deadline:
        if spent(process) >= done:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {process.pid} hardly works")


def spent(process: psutil.Process) -> float:
    """Seconds of a processor that the process has used, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)
