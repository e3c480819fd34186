"""Limits of work: by processor time and standing still, never by the time on the wall alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from specllama import processor_time
from specllama.processor_time import (
    Process,
    WorkMeter,
    exits,
    kill_tree,
    of_thread,
    of_tree,
    output_of,
    processes,
    tree,
    wait_while_working,
)

BUSY = "while :; do :; done"


class Machine:
    """A clock, and what something has used by then: `share` of a processor."""

    def __init__(self) -> None:
        self.now, self.used, self.share = 100.0, 7.0, 0.0

    def clock(self) -> float:
        return self.now

    def source(self) -> float | None:
        return self.used

    def run(
        self, meter: WorkMeter, seconds: float, share: float, most: float, idle: float | None = None
    ) -> str:
        """Let so many seconds pass; returns the first limit that is over."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.used += 0.5 * share
            if over := meter.over(most, idle):
                return over
        return ""


def test_work_counts_by_what_it_uses_however_long_that_takes() -> None:
    machine = Machine()
    meter = WorkMeter(machine.source, machine.clock)
    assert machine.run(meter, 11_000, 0.02, 300) == "", "four busy processes a core, and a low priority"
    assert meter.seconds == pytest.approx(220)
    assert machine.run(meter, 200, 0.5, 300) == "used more than 300 s of processor time"


def test_what_stands_still_is_over_even_if_it_wakes_up_now_and_then() -> None:
    machine = Machine()
    meter = WorkMeter(machine.source, machine.clock)
    assert machine.run(meter, 59, 0.002, 300, idle=60) == ""
    assert machine.run(meter, 2, 0.002, 300, idle=60) == "used no processor time for 60 s"
    assert machine.run(meter, 1, 1.0, 300, idle=60) == "", "it goes on"


def test_several_threads_at_once_have_no_less_time_than_one() -> None:
    machine = Machine()
    meter = WorkMeter(machine.source, machine.clock)
    assert machine.run(meter, 29, 16.0, 30) == ""
    assert machine.run(meter, 2, 16.0, 30) == "used more than 30 s of processor time"


def test_without_knowledge_of_what_is_used_time_counts() -> None:
    machine = Machine()
    meter = WorkMeter(lambda: None, machine.clock)
    assert machine.run(meter, 29, 0.0, 30) == ""
    assert machine.run(meter, 2, 0.0, 30) != ""


def test_the_tables_of_processes() -> None:
    """What /proc and `ps` say; a table is followed from a process down."""
    table = {
        1: Process(0, 1.0),
        5: Process(1, 2.0),
        6: Process(5, 4.0),
        7: Process(6, 8.0),
        8: Process(1, 16.0),
    }
    assert tree(5, table) == [5, 6, 7]
    assert tree(9, table) == []
    assert processes()[os.getpid()].parent == os.getppid()
    assert [
        match and match.groups() for match in map(processor_time._TIME.fullmatch, ("0:01.50", "1-02:03:04"))
    ] == [
        (None, None, "0", "01.50"),
        ("1", "02", "03", "04"),
    ]
    if shutil.which("ps"):
        assert processor_time._of_ps()[os.getpid()].parent == os.getppid()


def test_a_tree_that_works_and_one_that_stands_still() -> None:
    """The work of a child of a child counts, and ends with the tree."""
    with subprocess.Popen(["sh", "-c", f"sh -c '{BUSY}' & wait"]) as busy:
        over = wait_while_working(lambda step: time.sleep(step), of_tree(busy.pid), 0.3, 60)
        assert over == "used more than 0.3 s of processor time"
        there = tree(busy.pid, processes())
        assert len(there) == 2
        kill_tree(busy.pid)
        assert busy.wait() == -signal.SIGKILL
    assert not of_tree(busy.pid)()
    with subprocess.Popen(["sleep", "60"]) as still:
        assert not exits(still, 0.3)
        still.kill()
        assert exits(still, 60)


def test_what_a_thread_uses() -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    assert of_thread(thread)() is None
    thread.start()
    if sys.platform == "linux":
        assert of_thread(thread)() is not None
        here = of_thread(threading.current_thread())
        before = here()
        sum(range(1_000_000))
        assert before is not None
        assert (here() or 0.0) > before
    ends.set()
    thread.join()
    assert of_thread(thread)() is None


def test_output_of_a_command() -> None:
    assert output_of(["sh", "-c", "printf 'caf\\303\\251'; echo no >&2"], 5.0) == "café"
    assert output_of(["sh", "-c", "echo half; exit 3"], 5.0) is None
    assert output_of(["sleep", "60"], 0.1) is None
    assert output_of(["sh", "-c", BUSY], 0.1) is None
    assert output_of(["no-such-command-of-this-name"], 5.0) is None
    assert output_of(["sh", "-c", "printf $NAME"], 5.0, {**os.environ, "NAME": "x"}) == "x"
