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
