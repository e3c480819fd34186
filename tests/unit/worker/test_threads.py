"""The fastest number of threads, found from made-up times."""

from __future__ import annotations

import random

import pytest

from specllama.worker.tuning.target import MIN_GAIN, ThreadTimes, candidates, fastest


def times(medians: dict[int, tuple[float, float]], rounds: int = 5) -> dict[int, ThreadTimes]:
    return {n: ThreadTimes([one] * rounds, [wide] * rounds) for n, (one, wide) in medians.items()}


def test_candidates_cover_small_numbers_and_the_cores():
    assert candidates(1, (1, 1)) == [1]
    assert candidates(2, (2, 2)) == [2, 1]
    assert candidates(2, (6, 3)) == [6, 3, 2, 1]
    assert candidates(16, (16,)) == [16, 15, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1]
    many = candidates(96, (96, 96))
    assert many[:3] == [96, 95, 80]
    assert {64, 48, 32} < set(many)
    assert len(many) < 25


def test_the_fastest_over_both_widths_is_found():
    best = fastest(times({1: (4, 9), 2: (2, 5), 4: (2.2, 3), 8: (3, 3)}), 8, 8)
    assert best is not None
    assert (best.n_threads, best.clear) == (4, True)
    assert best.gain == pytest.approx((3 * 3 / (2.2 * 3)) ** 0.5)


def test_a_small_gain_is_not_clear():
    fewer = fastest(times({1: (2, 2), 2: (1, 1), 4: (0.98, 0.98)}), 2, 2)
    assert fewer is not None
    assert not fewer.clear
    assert fewer.gain < MIN_GAIN
    best = fastest(times({1: (2, 2), 2: (1, 1)}), 2, 2)
    assert best is not None
    assert (best.n_threads, best.gain, best.clear) == (2, 1.0, False)


def test_different_numbers_in_use_for_one_row_and_for_more():
    """1 thread for one row and 2 for more take sqrt(3) s, the geometric mean; 4 take 2 s, then 1.5 s."""
    measured = times({1: (1, 9), 2: (3, 3), 4: (2, 2)})
    best = fastest(measured, 1, 2)
    assert best is not None
    assert (best.n_threads, best.gain, best.clear) == (1, 1.0, False)
    best = fastest(measured | times({4: (1.5, 1.5)}), 1, 2)
    assert best is not None
    assert (best.n_threads, best.clear) == (4, True)


def test_slow_rounds_do_not_change_the_result():
    """All numbers are slow in the same rounds: only ratios within a round count."""
    rng = random.Random(1)
    slow = [1 + 9 * rng.random() for _ in range(9)]
    measured = {n: ThreadTimes([s * f for s in slow], [s * f for s in slow]) for n, f in ((1, 1.0), (2, 0.8))}
    best = fastest(measured, 1, 1)
    assert best is not None
    assert (best.n_threads, best.clear) == (2, True)
    assert best.gain == pytest.approx(1.25)


def test_a_gain_within_the_noise_is_not_clear():
    """Faster in the median, but slower in four rounds of ten."""
    ours, theirs = [1.0] * 10, [0.5] * 6 + [3.0] * 4
    best = fastest({2: ThreadTimes(ours, ours), 4: ThreadTimes(theirs, theirs)}, 2, 2)
    assert best is not None
    assert best.gain > 1.5
    assert not best.clear


def test_a_number_timed_only_once_is_not_clear():
    measured = times({2: (1, 1)}, 5) | times({1: (0.5, 0.5)}, 1)
    best = fastest(measured, 2, 2)
    assert best is not None
    assert not best.clear


def test_without_times_of_the_number_in_use_there_is_no_result():
    assert fastest({}, 2, 2) is None
    assert fastest({2: ThreadTimes([1.0], [])}, 2, 2) is None
    assert fastest(times({2: (1, 1)}), 4, 4) is None
