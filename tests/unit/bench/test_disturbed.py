"""A bench on a busy machine gives no advice, by the rule of `tune`, and its table adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specllama.bench.runner import row_times
from specllama.bench.summary import summarise
from specllama.bench.words import advice
from specllama.cli.bench.command import BenchResults
from specllama.cli.bench.text import _by_config
from tests.support.bench_samples import sample

NAMES = ["plain", "4", "auto"]


def results(*seconds: float) -> BenchResults:
    """Answers in which length 4 was twice as fast, with decodes of a row of these mean seconds."""
    samples = [
        sample(name, 10 * (1 + (name == "4")), number=i, steady_by_rows={1: (9, 9 * t), 5: (3, 1.0)})
        for i, t in enumerate(seconds)
        for name in NAMES
    ]
    return BenchResults(samples=samples)


def test_times_that_differ_as_on_a_busy_machine_give_no_advice() -> None:
    quiet, busy = results(0.1, 0.1, 0.11, 0.1), results(0.1, 0.16, 0.17, 0.16, 0.1, 0.16)
    assert row_times(quiet.samples) == {1: pytest.approx([0.1] * 6 + [0.11] * 3 + [0.1] * 3)}
    assert (quiet.are_off, busy.are_off) == (False, True)
    assert replace(quiet, disturbed=True).are_off
    told = advice(summarise(quiet.samples, NAMES), "", quiet.are_off)
    assert told.startswith("Advice: --draft-max 4 was faster")
    assert "idle machine" in advice(summarise(busy.samples, NAMES), "", busy.are_off)


def test_speeds_follow_from_plain_decodings_and_the_speed_up() -> None:
    """The medians of the rates are 100 and 58, that of the speed-ups of each answer is 1.16."""
    speeds = [(100.0, 90.0), (50.0, 58.0), (100.0, 116.0), (40.0, 58.0), (100.0, 58.0)]
    samples = [
        sample(name, tps, number=i)
        for i, pair in enumerate(speeds)
        for name, tps in zip(("plain", "4"), pair, strict=True)
    ]
    (plain, four) = [line.split() for line in _by_config(summarise(samples, NAMES), None)][-2:]
    assert plain[:2] == ["plain", "100.0"]
    assert four[:3] == ["4", "116.0", "1.16"]
