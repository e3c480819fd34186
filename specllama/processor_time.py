"""Limits of work by the processor time that it uses: on a busy machine the same work takes many times longer.

What works goes on, however slowly the clock on the wall finds it; what has used up its time, or uses next to
none although it is waited for, is stopped. Where the system does not say what is used, the time counts in
which this process runs. Knows no particular work.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specllama.clock import TICK_SECONDS, exited, running_time

Used = Callable[[], float | None]
"""Seconds of processor time that something has used; None where that is unknown."""

_PROC = Path("/proc")
_READ_SECONDS = 0.2  # at least, between two readings of the system's table
_LEAST_SHARE = 0.01  # of one processor: what uses less stands still, even if it wakes up now and then
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")  # of ps: [[days-]hours:]minutes:seconds


class TooLongError(Exception):
    """Which limit was over, in words that follow the name of what was ended for it."""


class Process(NamedTuple):
    """A line of the system's table. seconds: of processor time, with those of its ended children."""

    parent: int
    seconds: float


def processes() -> dict[int, Process]:
    """The processes of this machine by id, as far as it shows them."""
    return _of_proc() if (_PROC / "self" / "stat").exists() else _of_ps()


def _of_proc() -> dict[int, Process]:
    table, per_second = dict[int, Process](), os.sysconf("SC_CLK_TCK")
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (_PROC / name / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                table[int(name)] = Process(int(fields[1]), sum(map(int, fields[11:15])) / per_second)
    return table


def _of_ps() -> dict[int, Process]:
    """As `ps` prints them, without the times of ended children."""
    table = dict[int, Process]()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["ps", "-A", "-o", "pid=,ppid=,time="]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            pid, parent, used = line.split()
            if match := _TIME.fullmatch(used):
                days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
                table[int(pid)] = Process(int(parent), seconds + 60 * (minutes + 60 * (hours + 24 * days)))
    return table


def tree(pid: int, table: Mapping[int, Process]) -> list[int]:
    """A process and those that it and its descendants have started, as far as they are in the table."""
    pids = [pid] if pid in table else []
    for one in pids:
        pids += (child for child, line in table.items() if line.parent == one and child not in pids)
    return pids


def of_tree(pid: int) -> Used:
    """What a process and its descendants use."""

    def used() -> float | None:
        table = processes()
        there = tree(pid, table)
        return sum(table[one].seconds for one in there) if there else None

    return used


def of_thread(thread: threading.Thread) -> Used:
    """What a thread of this process uses."""

    def used() -> float | None:
        if thread.ident is None or not hasattr(time, "pthread_getcpuclockid") or not thread.is_alive():
            return None
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))

    return used


class WorkMeter:
    """Measures from now on, at each reading, what something uses.

    clock: the seconds in which it stands still, and all of them where its processor time is unknown.
    """

    def __init__(self, used: Used, clock: Callable[[], float] = running_time) -> None:
        self._source, self._clock = used, clock
        self._began = self._moved = self._last = clock()
        first = used()
        self._known, self._first = first is not None, first or 0.0
        self._used, self._used_then = self._first, self._first  # at the last reading; when it last moved

    def _read(self) -> tuple[float, float]:
        """Seconds of processor time since the beginning, of several threads at once no more than have passed,
        and seconds since it last used a share that counts.
        """
        now = self._clock()
        if not self._known:
            return now - self._began, 0.0
        if now - self._last >= _READ_SECONDS:
            self._last = now
            self._used = max(self._used, self._source() or 0.0)
            if self._used - self._used_then >= _LEAST_SHARE * (now - self._moved):
                self._moved, self._used_then = now, self._used
        return min(self._used - self._first, now - self._began), now - self._moved

    @property
    def seconds(self) -> float:
        """What counts against a limit: the processor time, or the time for which it has stood still if that
        is more; never more than has passed.
        """
        return max(self._read())

    def over(self, seconds: float, idle: float | None = None) -> str:
        """Which limit is over, in words that follow the name of what is measured; "" while none is.

        seconds: of processor time. idle: seconds for which it may stand still, as many if None.
        """
        used, still = self._read()
        if used > seconds:
            return f"used more than {seconds:g} s of processor time"
        idle = seconds if idle is None else idle
        return f"used no processor time for {idle:g} s" if still > idle else ""


def wait_while_working(
    done: Callable[[float], object], used: Used, seconds: float, idle: float | None = None
) -> str:
    """Call `done` (see clock.wait_until) until it returns something true, or a limit of what is `used`
    meanwhile is over (see WorkMeter.over). Returns "", or which limit is.
    """
    step = min(TICK_SECONDS, seconds if idle is None else idle)
    if done(step):
        return ""
    meter = WorkMeter(used)  # only now: most waits are short, and reading the table takes milliseconds
    while not done(step):
        if over := meter.over(seconds, idle):
            return over
    return ""


def exits(process: subprocess.Popen[Any], seconds: float) -> bool:
    """Wait for a process to end while it works (see WorkMeter.over). Returns whether it has."""
    return not wait_while_working(exited(process), of_tree(process.pid), seconds)


def kill(pids: Iterable[int]) -> None:
    """Kill processes that may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process with its descendants: a compiler's driver leaves those behind that compile."""
    kill(tree(pid, processes()) or [pid])


def outputs_of(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """What a process prints to its end on stdout and stderr, "" for those that are no pipes. Raises
    TooLongError where it needs more than `seconds` (see WorkMeter.over); it is killed with its descendants.
    """
    outputs = list[tuple[str, str]]()

    def ended(step: float) -> bool:
        try:
            outputs.append(process.communicate(timeout=step))
        except subprocess.TimeoutExpired:
            return False
        return True

    if over := wait_while_working(ended, of_tree(process.pid), seconds):
        kill_tree(process.pid)
        raise TooLongError(over)
    printed, errors = outputs[0]
    return printed or "", errors or ""


def output_of(command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> str | None:
    """What a command prints, as text; None if it fails, cannot be started, or needs more than `seconds` (see
    WorkMeter.over).
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=environ,
        )
    except OSError:
        return None
    try:
        with process:
            printed, _ = outputs_of(process, seconds)
    except TooLongError:
        return None
    return printed if process.returncode == 0 else None
