"""The clock of a process: it stands still while the process does, and never goes back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.clock import (
    MOST_SECONDS,
    TICK_SECONDS,
    RunningClock,
    ended,
    exited,
    running_time,
    wait_until,
)


class Source:
    """A clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_it_goes_on_between_two_ticks_as_long_as_the_process_runs() -> None:
    source = Source()
    clock = RunningClock(source)
    began = clock()
    for _ in range(40):
        source.now += TICK_SECONDS
        clock.tick()
    assert clock() - began == pytest.approx(10.0)


def test_a_pause_counts_as_a_second_at_most() -> None:
    """Whoever reads first after it, the thread that ticks or another one."""
    source = Source()
    clock = RunningClock(source)
    began = clock()
    source.now += 3600
    assert clock() - began == pytest.approx(MOST_SECONDS)
    clock.tick()
    assert clock() - began == pytest.approx(MOST_SECONDS)
    source.now += 0.5
    assert clock() - began == pytest.approx(MOST_SECONDS + 0.5)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30))
def test_it_never_goes_back_nor_faster_than_its_source(steps: list[tuple[float, bool]]) -> None:
    source = Source()
    clock = RunningClock(source)
    last, last_source = clock(), source()
    for seconds, ticks in steps:
        source.now += seconds
        if ticks:
            clock.tick()
        now = clock()
        assert last <= now <= last + (source() - last_source) + 1e-6
        last, last_source = now, source()


def test_wait_until_tries_at_least_once_and_leaves_pauses_out() -> None:
    source = Source()
    clock = RunningClock(source)
    assert wait_until(lambda _: True, 0.0, clock)
    assert not wait_until(lambda _: False, -1.0, clock)
    tried = 0

    def late(seconds: float) -> bool:
        """Comes after half an hour of pauses and three seconds of running."""
        nonlocal tried
        assert seconds <= TICK_SECONDS
        tried += 1
        source.now += 600 if tried <= 3 else 0.25
        clock.tick()
        return tried == 6

    assert wait_until(late, 4.0, clock)
    tried = 0
    assert not wait_until(late, 2.0, clock)


def test_threads_and_processes_are_waited_for() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    assert not wait_until(ended(thread), 0.05)
    gate.set()
    assert wait_until(ended(thread), 5.0)
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not wait_until(exited(process), 0.05)
        process.kill()
        assert wait_until(exited(process), 5.0)


def test_the_clock_of_this_process_is_that_of_the_system_while_it_runs() -> None:
    began, by_system = running_time(), time.perf_counter()
    time.sleep(0.6)
    assert running_time() - began <= time.perf_counter() - by_system
    assert running_time() - began > 0.5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_it_goes_on_in_a_forked_child() -> None:
    code = (
        "import os, time\nfrom specllama.clock import running_time\nbegan = running_time()\n"
        "pid = os.fork()\nbegan = running_time()\ntime.sleep(1.6)\n"
        "assert 1.4 < running_time() - began < 5, running_time() - began\n"
        "if pid: assert os.waitpid(pid, 0)[1] == 0\n"
    )
    assert (
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, timeout=30).returncode == 0
    )
