"""Which number of threads is told to be fastest, from made-up times."""

from __future__ import annotations

import random

import pytest

from specllama.worker.tuning.threads import CLEAR, ThreadTimes, candidates, choice


def times(found: dict[int, tuple[float, float]], rounds: int = 5) -> dict[int, ThreadTimes]:
    return {n: ThreadTimes([one] * rounds, [wide] * rounds) for n, (one, wide) in found.items()}


def test_numbers_worth_timing():
    assert candidates(1, (1, 1)) == [1]
    assert candidates(2, (2, 2)) == [2, 1]
    assert candidates(2, (6, 3)) == [6, 3, 2, 1]
    assert candidates(16, (16,)) == [16, 15, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1]
    many = candidates(96, (96, 96))
    assert many[:3] == [96, 95, 80]
    assert {64, 48, 32} < set(many)
    assert len(many) < 25


def test_the_fastest_over_both_widths():
    found = choice(times({1: (4, 9), 2: (2, 5), 4: (2.2, 3), 8: (3, 3)}), 8, 8)
    assert found is not None
    assert (found.n_threads, found.clear) == (4, True)
    assert found.gain == pytest.approx((3 * 3 / (2.2 * 3)) ** 0.5)


def test_what_is_used_stays_where_nothing_is_clearly_faster():
    found = choice(times({1: (2, 2), 2: (1, 1), 4: (0.98, 0.98)}), 2, 2)
    assert found is not None
    assert not found.clear
    assert found.gain < CLEAR
    best = choice(times({1: (2, 2), 2: (1, 1)}), 2, 2)
    assert best is not None
    assert (best.n_threads, best.gain, best.clear) == (2, 1.0, False)


def test_two_numbers_in_use():
    """1 for one row and 2 for more take sqrt(3) together, 4 takes 2, then 1.5."""
    found = times({1: (1, 9), 2: (3, 3), 4: (2, 2)})
    best = choice(found, 1, 2)
    assert best is not None
    assert (best.n_threads, best.gain, best.clear) == (1, 1.0, False)
    best = choice(found | times({4: (1.5, 1.5)}), 1, 2)
    assert best is not None
    assert (best.n_threads, best.clear) == (4, True)


def test_rounds_in_which_the_machine_was_slow_decide_nothing():
    """All are slow in the same rounds: the ratio of each round is what counts."""
    rng = random.Random(1)
    slow = [1 + 9 * rng.random() for _ in range(9)]
    found = {n: ThreadTimes([s * f for s in slow], [s * f for s in slow]) for n, f in ((1, 1.0), (2, 0.8))}
    best = choice(found, 1, 1)
    assert best is not None
    assert (best.n_threads, best.clear) == (2, True)
    assert best.gain == pytest.approx(1.25)


def test_chance_is_not_clear():
    """Faster in the median, slower in four rounds of ten."""
    ours, theirs = [1.0] * 10, [0.5] * 6 + [3.0] * 4
    best = choice({2: ThreadTimes(ours, ours), 4: ThreadTimes(theirs, theirs)}, 2, 2)
    assert best is not None
    assert best.gain > 1.5
    assert not best.clear


def test_what_was_timed_once_is_not_clear():
    found = times({2: (1, 1)}, 5) | times({1: (0.5, 0.5)}, 1)
    best = choice(found, 2, 2)
    assert best is not None
    assert not best.clear


def test_nothing_is_said_of_what_was_not_timed():
    assert choice({}, 2, 2) is None
    assert choice({2: ThreadTimes([1.0], [])}, 2, 2) is None
    assert choice(times({2: (1, 1)}), 4, 4) is None
