"""What the verdict of a bench claims; on a busy machine it gives no advice, by the rule of `tune`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specllama.bench.runner import row_times
from specllama.bench.summary import summarise
from specllama.bench.words import advice, draft_answer, nothing_pays, verdict
from specllama.cli.bench.command import BenchResults
from specllama.cli.bench.text import _by_config
from specllama.json_types import JsonObject
from tests.support.bench_samples import sample

NAMES = ["plain", "1", "4", "auto"]


def test_the_verdict_says_what_auto_gains_and_where_it_loses() -> None:
    def speeds(workload: str, ratios: tuple[float, ...]) -> list[tuple[str, float, str, int, int]]:
        return [
            (name, 100 * ratio, workload, number, run)
            for name, ratio in zip(NAMES, ratios, strict=True)
            for number in (1, 2)
            for run in (1, 2)
        ]

    rows = [
        *speeds("edit", (1, 1.2, 2, 1.9)),
        *speeds("free", (1, 0.9, 0.5, 0.9)),
        *speeds("json", (1, 1, 2, 1.5)),
    ]
    s = summarise([sample(name, tps, w, number, 0.0, run) for name, tps, w, number, run in rows], NAMES)
    text = verdict(s)
    assert text.startswith(
        "With auto, decoding ran at 1.37 x (1.37 - 1.37) the speed of plain decoding and at 1.09 x"
    )
    assert "the best fixed length in hindsight, 4 (1.26 x)" in text
    assert "it loses on free at temperature 0 (0.90 x)" in text
    assert (
        "a fixed length is faster on edit at temperature 0 (length 4: 2.00 x), json at temperature 0" in text
    )
    assert not nothing_pays(s)
    assert advice(s) == "Advice: keep the default; for texts like edit alone try --draft-max 4."


def test_the_verdict_says_why_nothing_can_pay() -> None:
    stats = {"reached": [6], "accepted_at": [3], "n_drafted": 6, "rounds": 6, "draft_seconds": 0.6}
    samples = [
        sample("plain", 10, round_seconds={1: (10, 1.0)}),
        sample("1", 6, round_seconds={2: (6, 1.2)}, drafted_by={"model": 6}, n_modelled=6, **stats),
        sample("auto", 9),
    ]
    s = summarise(samples, NAMES)
    assert nothing_pays(s)
    assert verdict(s) == (
        "With auto, decoding ran at 0.90 x the speed of plain decoding. Speculation does not pay here over "
        "all workloads: a decode of 2 rows takes 2.00 x the time of one row, a draft token 1.00 x, so such "
        "drafts cannot pay even if all of them are accepted; 50 % of first draft tokens were accepted."
    )
    cheap = [
        sample("plain", 10, round_seconds={1: (10, 1.0)}),
        sample("1", 9, round_seconds={2: (6, 0.66)}, **{**stats, "draft_seconds": 0.0}),
        sample("auto", 9),
    ]
    text = verdict(summarise(cheap, NAMES))
    assert "pays from an acceptance of 10 %; 50 % of first draft tokens were accepted" in text
    assert text.endswith(", but later ones less often, and a round takes more time than its decode.")
    for one in cheap[1:]:
        one.stats.rounds = 60
    assert verdict(summarise(cheap, NAMES)).endswith("but only 10 % of rounds had a draft.")
    assert verdict(s, "no drafter") == "Only plain decoding was measured: no drafter."
    assert advice(s).startswith("Advice: keep the default, which drafts where that pays")
    assert advice(s, "no drafter").startswith("Advice: name a draft with -md")


def test_the_verdict_claims_no_more_than_the_intervals_say() -> None:
    speeds = {"plain": (10, 10, 10), "4": (10, 9, 8), "auto": (8, 14, 15)}
    samples = [sample(name, tps, number=i) for name, row in speeds.items() for i, tps in enumerate(row)]
    text = verdict(summarise(samples, NAMES))
    assert text.startswith(
        "With auto, decoding ran at 1.40 x (0.80 - 1.50) the speed of plain decoding and no fixed length"
    )
    assert "No gain is certain yet" in text
    assert advice(summarise(samples, NAMES)).startswith(
        "Advice: keep the default; measure again with more --runs"
    )


def test_the_advice_names_a_fixed_length_only_where_it_is_certainly_faster() -> None:
    def summary(**speeds: float) -> str:
        names = ["plain", "4", "auto"]
        rows = [(name, tps) for name, tps in zip(names, speeds.values(), strict=True)]
        samples = [sample(name, tps, number=i, run=r) for name, tps in rows for i in (1, 2) for r in (1, 2)]
        return advice(summarise(samples, names))

    assert summary(plain=100, four=200, auto=150) == (
        "Advice: --draft-max 4 was faster here than the default; try it for such texts."
    )
    assert summary(plain=100, four=150, auto=200) == "Advice: keep the default, --draft-max auto."
    assert advice(summarise([sample("plain", 10)], NAMES)).startswith("Advice: let it run to the end")


def test_one_line_says_whether_the_draft_helps() -> None:
    def summary(copies: tuple[float, ...], auto: tuple[float, ...]) -> JsonObject:
        rows = {"plain": (10.0,) * len(auto), "4": (9.0,) * len(auto), "copy": copies, "auto": auto}
        samples = [sample(name, tps, number=i) for name, all_ in rows.items() for i, tps in enumerate(all_)]
        return summarise(samples, ["plain", "4", "copy", "auto"])

    helps = summary((20.0,) * 4, (25.0, 25.0, 26.0, 25.0))
    told = draft_answer(helps, "draft model")
    assert re.fullmatch(r"Your draft model: \+2\d % over copying alone \(\+2\d % to \+\d\d %\)\.", told)
    told = verdict(helps, busy=True)
    assert re.fullmatch(r"No verdict: something else kept the machine busy\. With auto, .+ meanwhile\.", told)
    assert advice(helps, busy=True) == ("Advice: measure again on an idle machine before changing anything.")
    chance = summary((20.0,) * 3, (15.0, 20.5, 25.0))
    told = draft_answer(chance, "head")
    assert re.fullmatch(r"Your head: \+\d % .+\(-\d+ % to \+\d+ %\), which may be chance\.", told)
    hurts = summary((20.0,) * 4, (15.0,) * 4)
    assert draft_answer(hurts, "head") == "Your head: -25 % over copying alone (-25 % to -25 %)."
    assert advice(hurts) == "Advice: -md none was faster here: the draft costs more than it gains."
    assert draft_answer(summary((20.0,), (30.0,)), "head").endswith("by too few answers for an interval.")
    assert draft_answer(summarise([sample("plain", 10)], NAMES), "head") == ""


FEW = ["plain", "4", "auto"]


def results(*seconds: float) -> BenchResults:
    """Answers in which length 4 was twice as fast, with decodes of a row of these mean seconds."""
    samples = [
        sample(name, 10 * (1 + (name == "4")), number=i, steady_by_rows={1: (9, 9 * t), 5: (3, 1.0)})
        for i, t in enumerate(seconds)
        for name in FEW
    ]
    return BenchResults(samples=samples)


def test_times_that_differ_as_on_a_busy_machine_give_no_advice() -> None:
    quiet, busy = results(0.1, 0.1, 0.11, 0.1), results(0.1, 0.16, 0.17, 0.16, 0.1, 0.16)
    assert row_times(quiet.samples) == {1: pytest.approx([0.1] * 6 + [0.11] * 3 + [0.1] * 3)}
    assert (quiet.are_off, busy.are_off) == (False, True)
    assert replace(quiet, disturbed=True).are_off
    told = advice(summarise(quiet.samples, FEW), "", quiet.are_off)
    assert told.startswith("Advice: --draft-max 4 was faster")
    assert "idle machine" in advice(summarise(busy.samples, FEW), "", busy.are_off)


def test_speeds_follow_from_plain_decodings_and_the_speed_up() -> None:
    """The medians of the rates are 100 and 58, that of the speed-ups of each answer is 1.16."""
    speeds = [(100.0, 90.0), (50.0, 58.0), (100.0, 116.0), (40.0, 58.0), (100.0, 58.0)]
    samples = [
        sample(name, tps, number=i)
        for i, pair in enumerate(speeds)
        for name, tps in zip(("plain", "4"), pair, strict=True)
    ]
    (plain, four) = [line.split() for line in _by_config(summarise(samples, FEW), None)][-2:]
    assert plain[:2] == ["plain", "100.0"]
    assert four[:3] == ["4", "116.0", "1.16"]
