"""Work of other programs during a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.other_work import OtherWork, ProcessorTime, is_disturbed, usage


def during(idle: float, own: float, total: float, n_threads: int, n_cpus: int) -> bool:
    """Whether work disturbs that left so many ticks idle and let this process have so many."""
    began, ended = ProcessorTime(1e6, 5e5, 70.0), ProcessorTime(1e6 + total, 5e5 + idle, 70.0 + own)
    counters: Iterator[ProcessorTime] = iter([began, ended])
    return OtherWork(n_threads, n_cpus, lambda: next(counters)).disturbs


@pytest.mark.parametrize(
    ("idle", "own", "n_threads", "disturbs"),
    [
        (0, 200, 2, False),  # all of two processors
        (98, 100, 1, False),
        (0, 100, 1, False),  # one is left for one thread
        (0, 100, 2, True),
        (0, 60, 1, True),
        (60, 60, 2, True),
        (90, 90, 2, False),  # spinning less than the whole time
    ],
)
def test_other_work_disturbs_where_less_is_left_than_the_threads_need(idle, own, n_threads, disturbs) -> None:
    assert during(idle, own, 200, n_threads, 2) is disturbs


def test_many_processors_have_room_for_others() -> None:
    assert not during(5000, 400, 6400, 4, 64)


def test_too_short_measurements_and_unknown_counters_say_nothing(tmp_path: Path) -> None:
    assert not during(0, 0, 10, 2, 2)
    assert not OtherWork(2, 2, lambda: None).disturbs
    for text in ("", "cpu\n", "cpu a b c d e\n", "intr 1 2 3 4 5 6\n"):
        (tmp_path / "stat").write_text(text)
        assert usage(str(tmp_path / "stat")) is None
    assert usage(str(tmp_path / "missing")) is None


def test_the_counters_of_this_machine_grow() -> None:
    first = usage()
    if first is None:
        pytest.skip("no /proc/stat here")
    sum(i * i for i in range(2_000_000))
    now = usage()
    assert now is not None
    assert now.total >= first.total
    assert now.own > first.own


def test_times_of_one_row_that_differ_or_exceed_wider_ones_are_disturbed() -> None:
    assert not is_disturbed({})
    assert not is_disturbed({1: [1.0, 1.01, 1.02], 2: [1.4], 64: []})
    assert is_disturbed({1: [1.0, 1.0, 3.0, 3.0, 3.0], 2: [4.0]})
    assert is_disturbed({1: [1.0, 1.0, 1.0], 2: [0.5]})
