"""Memory that a thread prepares."""

from __future__ import annotations

import threading
import time

import pytest

from specllama.large_memory import SMALL, MemoryReserve, map_memory


def until(condition) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_small_memory_is_there_at_once():
    reserve = MemoryReserve()
    assert reserve.prepare(SMALL)
    memory = reserve.take(SMALL)
    memory[:3] = b"abc"
    assert len(memory) == SMALL
    assert memory[:4] == b"abc\0"


def test_large_memory_is_prepared_once_and_taken_once():
    reserve, size = MemoryReserve(), SMALL + 1
    until(lambda: reserve.prepare(size))
    assert len(reserve.take(size)) == size
    assert len(reserve.take(size)) == size, "without waiting for it too"


def test_what_nobody_takes_is_freed():
    reserve = MemoryReserve(unused_seconds=0.05)
    until(lambda: reserve.prepare(SMALL + 1))
    until(lambda: not any(thread.name == "specllama_memory" for thread in threading.enumerate()))
    assert not reserve._ready


def test_more_than_there_is_waits_for_nobody():
    reserve = MemoryReserve()
    until(lambda: reserve.prepare(1 << 60))
    with pytest.raises((OSError, ValueError)):
        reserve.take(1 << 60)
    with pytest.raises((OSError, ValueError)):
        map_memory(1 << 60)
