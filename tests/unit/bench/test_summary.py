"""The figures of a bench, compared with figures computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.runner import LLAMA_CPP
from specllama.bench.summary import (
    break_even,
    costs_of,
    estimate,
    sample_figures,
    speedup,
    summarise,
    t1_of,
)
from specllama.bench.words import notes, verdict
from specllama.json_types import JsonObject
from tests.support.bench_samples import ABOUT, sample

NAMES = ["plain", "1", "4", "auto"]


def bench() -> JsonObject:
    """Two prompts of edit, one of free; length 4 is the best on edit, plain decoding on free."""
    speeds = {  # plain, 1, 4, auto
        ("edit", 1): (10, 15, 30, 25),
        ("edit", 2): (20, 22, 40, 40),
        ("free", 1): (10, 8, 4, 9),
    }
    samples = [
        sample(name, tps, *key) for key, row in speeds.items() for name, tps in zip(NAMES, row, strict=True)
    ]
    return summarise(samples, NAMES)


def test_speeds_are_compared_prompt_by_prompt() -> None:
    s = bench()
    edit, free = s["rows"]
    assert (edit["workload"], edit["temperature"], free["workload"]) == ("edit", 0.0, "free")
    speedups = {name: e.value for name in NAMES if (e := speedup(edit, name))}
    assert speedups == {  # medians of two ratios
        "1": pytest.approx((1.5 + 1.1) / 2),
        "4": pytest.approx((3.0 + 2.0) / 2),
        "auto": pytest.approx((2.5 + 2.0) / 2),
    }
    assert speedup(edit, "plain") is None
    assert edit["configurations"]["plain"]["decode_tps"] is not None
    assert edit["configurations"]["plain"]["decode_tps"].value == pytest.approx(15)
    ttft = edit["configurations"]["auto"]["ttft_ms"]
    assert ttft is not None
    assert ttft.value == pytest.approx(500)


def test_decoding_without_kernels_is_neither_a_length_nor_a_cost() -> None:
    samples = [
        sample("plain", 10, round_seconds={1: (5, 0.5)}),
        sample(LLAMA_CPP, 20, round_seconds={1: (5, 0.25)}, tokens=(1, 9)),
        sample("auto", 15, round_seconds={1: (5, 0.5), 3: (5, 0.6)}),
    ]
    s = summarise(samples, ["plain", LLAMA_CPP, "auto"])
    (row,) = s["rows"]
    without = speedup(row, LLAMA_CPP)
    assert without is not None
    assert (without.value, row["best_fixed"], s["texts_compared"], s["texts_different"]) == (
        2.0,
        "plain",
        1,
        [],
    )
    assert t1_of(s) == pytest.approx(0.1)
    (note, _) = notes({**ABOUT, **s})
    assert note == "With llama.cpp's own kernels plain decoding runs at 2.00 x of this speed."
    assert verdict(s).startswith("With auto, decoding ran at 1.50 x the speed of plain decoding and")


def test_auto_is_compared_with_the_best_fixed_length() -> None:
    edit, free = bench()["rows"]
    assert (edit["best_fixed"], free["best_fixed"]) == ("4", "plain")
    assert edit["auto_against_best"] is not None
    assert edit["auto_against_best"].value == pytest.approx(2.25 / 2.5)  # of the speed-ups that are shown
    assert edit["regret"] == pytest.approx(1 - 2.25 / 2.5)
    assert free["regret"] == pytest.approx(0.1)  # plain is the best: 10 against 9


def test_without_drafts_there_is_no_best_length_and_nothing_that_auto_misses() -> None:
    undrafted = [sample(name, tps, n_drafted=0) for name, tps in (("plain", 10), ("4", 12), ("auto", 8))]
    (row,) = summarise([*undrafted, sample("copies", 9, n_drafted=0)], [*NAMES, "copies"])["rows"]
    assert (row["best_fixed"], row["auto_against_best"], row["regret"]) == ("plain", None, None)
    assert row["auto_over_copies"] is None


def test_the_total_row_is_the_geometric_mean_of_the_workloads() -> None:
    s = bench()
    total = speedup(s["total"], "4")
    assert total is not None
    assert total.value == pytest.approx(math.sqrt(2.5 * 0.4))
    assert s["total"]["best_fixed"] == "1"  # sqrt(1.3 * 0.8) is the largest of the fixed lengths'
    assert (s["answers"], s["texts_compared"], s["texts_different"]) == (12, 9, [])


def test_rows_for_each_temperature_where_there_are_several() -> None:
    samples = [
        sample(name, 10, workload, temperature=t)
        for name in ("plain", "auto")
        for workload in ("edit", "free")
        for t in (0.0, 0.8)
    ]
    rows = [(row["workload"], row["temperature"]) for row in summarise(samples, NAMES)["rows"]]
    assert rows == [
        ("edit", 0.0), ("edit", 0.8), ("free", 0.0), ("free", 0.8), (None, 0.0), (None, 0.8),
    ]  # fmt: skip
    assert summarise(samples, NAMES)["configurations"] == ["plain", "auto"]


def test_runs_are_paired_so_that_drift_cancels() -> None:
    samples = [
        sample(name, tps * slow, run=run)
        for run, slow in ((1, 1.0), (2, 0.5), (3, 0.25))
        for name, tps in (("plain", 16), ("auto", 32))
    ]
    auto = speedup(summarise(samples, NAMES)["total"], "auto")
    assert auto is not None
    assert (auto.value, auto.low, auto.high) == (2.0, pytest.approx(2.0), pytest.approx(2.0))


def test_an_interrupted_bench_is_summarised_without_what_is_missing() -> None:
    assert summarise([], NAMES)["answers"] == 0
    assert verdict(summarise([], NAMES)).startswith("Too little")
    s = summarise([sample("auto", 10), sample("4", 10)], NAMES)
    assert (s["total"]["best_fixed"], s["total"]["regret"], s["texts_compared"]) == (None, None, 0)
    assert speedup(s["total"], "auto") is None
    assert verdict(s).startswith("Too little")
    only = summarise([sample("plain", 10)], NAMES)
    assert (only["total"]["best_fixed"], only["total"]["regret"]) == ("plain", None)


def test_answers_of_one_token_have_no_speed() -> None:
    s = summarise([sample("plain", 10, n_predict=1), sample("auto", 10, n_predict=1)], NAMES)
    assert s["too_short"] == 2
    assert speedup(s["total"], "auto") is None
    assert "2 answers ended with the first token" in notes({**ABOUT, **s})[0]


def test_answers_that_differ_from_plain_decoding_are_named() -> None:
    tokens = {"plain": (1, 2, 3), "1": (1, 2, 3), "4": (1, 9, 3), "auto": (1, 2)}
    s = summarise([sample(name, 10, tokens=ids) for name, ids in tokens.items()], NAMES)
    assert [(d["configuration"], d["token"]) for d in s["texts_different"]] == [("4", 1), ("auto", 2)]
    text = notes({**ABOUT, **s})[-1]
    assert text.startswith("Texts: 2 of 3 differ from plain decoding's")
    assert "edit 1 at 0, length 4, token 2" in text
    assert "please report it" in notes({**ABOUT, "exact": True, **s})[-1]
    same = summarise([sample(name, 10) for name in NAMES], NAMES)
    assert notes({**ABOUT, **same}) == ["Texts: all 3 equal plain decoding's, token for token."]
    forced = {"settings": {"text": "edited.py", "n_tokens": None}}
    assert [note[:18] for note in notes({**ABOUT, **forced, **same})] == ["The text was given"]


def test_a_sample_has_its_figures() -> None:
    written = sample_figures(sample("plain", 10))
    assert (written["configuration"], written["decode_tps"], written["ttft_ms"]) == ("plain", 10, 500)


def test_auto_against_the_best_agrees_with_their_speed_ups() -> None:
    """Medians of quotients are not quotients of medians, and the figures of a sentence have to agree."""
    speeds = {"plain": (10, 10, 10), "4": (20.4, 20.4, 5), "auto": (18.1, 5, 18.1)}
    samples = [sample(name, tps, number=i) for name, all_ in speeds.items() for i, tps in enumerate(all_, 1)]
    (row,) = summarise(samples, ["plain", "4", "auto"])["rows"]
    auto, best, against = speedup(row, "auto"), speedup(row, "4"), row["auto_against_best"]
    assert auto is not None
    assert best is not None
    assert against is not None
    assert (row["best_fixed"], auto.value) == ("4", pytest.approx(1.81, abs=0.03))
    assert against.value == pytest.approx(auto.value / best.value)
    assert against.value < 1
    assert against.low is not None
    assert against.high is not None
    assert against.low <= against.value <= against.high
    assert row["regret"] == pytest.approx(1 - against.value)


def test_auto_against_the_best_of_answers_that_both_wrote() -> None:
    samples = [
        sample(name, 10 * k, number=i) for k, name in ((1, "plain"), (3, "4"), (2, "auto")) for i in (1, 2, 3)
    ]
    against = summarise(samples[:-1], ["plain", "4", "auto"])["rows"][0]["auto_against_best"]
    assert against is not None
    assert (against.value, against.n) == (pytest.approx(2 / 3), 2)


def test_costs_of_decodes_by_their_rows() -> None:
    drafts = {"reached": [6], "accepted_at": [3], "n_drafted": 6, "drafted_by": {"model": 6}, "n_modelled": 6}
    samples = [
        sample("plain", 10, round_seconds={1: (10, 1.0)}),
        sample("1", 10, round_seconds={1: (2, 0.2), 2: (6, 0.9)}, draft_seconds=0.3, n_discarded=4, **drafts),
        sample("auto", 10, round_seconds={1: (1, 0.1), 9: (1, 7.0)}),
    ]  # fmt: skip
    costs = costs_of(samples)
    assert [(p["rows"], p["seconds"], p["rounds"]) for p in costs["t_n"]] == [
        (1, pytest.approx(0.1), 13), (2, pytest.approx(0.15), 6),
    ]  # fmt: skip
    assert costs["t_n_exact"]  # nine rows were timed only once, which is not enough
    assert costs["draft_token_seconds"] == pytest.approx(0.03)  # 0.3 s for 6 tokens and 4 that were discarded
    assert costs["first_accepted"] == pytest.approx(0.5)
    # (1 + a) tokens in 1.5 + 0.3 of t(1) against 1 in 1: a has to be 0.8
    assert break_even(costs) == pytest.approx(0.8)


def test_costs_are_estimated_where_no_decode_was_timed_by_its_rows() -> None:
    samples = [sample(name, 10) for name in ("plain", "4", "auto")]
    for one, rounds, drafted, verify in zip(samples, (10, 5, 5), (0, 10, 3), (1.0, 1.5, 9.0), strict=True):
        one.stats.rounds, one.stats.n_drafted, one.stats.verify_seconds = rounds, drafted, verify
    costs = costs_of(samples)
    assert not costs["t_n_exact"]
    assert [(p["rows"], p["seconds"]) for p in costs["t_n"]] == [
        (1, pytest.approx(0.1)), (3, pytest.approx(0.3)),
    ]  # fmt: skip
    assert t1_of(costs) == pytest.approx(0.1)
    assert costs["draft_token_seconds"] is None
    assert break_even(costs) == pytest.approx((3 - 1) / 2)  # two copied tokens, which cost nothing
    assert break_even(costs_of([])) is None


def test_an_estimate_is_the_median_of_the_medians_of_its_units() -> None:
    e = estimate([[[1.0, 9.0, 2.0], [4.0], [8.0, 16.0]]])  # medians 2, 4, 12
    assert e is not None
    assert (e.value, e.n) == (4.0, 6)
    assert e.low is not None
    assert e.high is not None
    assert 1.0 <= e.low < 4 < e.high <= 16.0


def test_all_workloads_have_equal_weight_however_many_prompts_they_have() -> None:
    e = estimate([[[4.0]], [[1.0]] * 50])
    assert e is not None
    assert e.value == pytest.approx(2.0)  # the geometric mean of 4 and 1
    assert (e.low, e.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_too_few_values_have_no_interval() -> None:
    assert estimate([]) is None
    assert estimate([[[]], []]) is None
    one = estimate([[[3.0], []]])
    assert one is not None
    assert (one.value, one.low, one.high, one.n) == (pytest.approx(3.0), None, None, 1)


def test_an_interval_narrows_with_the_number_of_prompts() -> None:
    few, many = (estimate([[[1 + 0.1 * (i % 10)] for i in range(n)]]) for n in (10, 1000))
    assert few is not None
    assert many is not None
    width_few, width_many = (e.high - e.low for e in (few, many) if e.high and e.low)
    assert 0 < width_many < width_few / 3


@given(st.lists(st.lists(st.lists(st.floats(0.1, 10), max_size=3), max_size=4), max_size=3))
def test_an_estimate_lies_within_its_values_and_its_interval(groups: list[list[list[float]]]) -> None:
    values = [x for units in groups for unit in units for x in unit]
    e = estimate(groups)
    assert (e is None) == (not values)
    if e is not None:
        assert min(values) * 0.999 <= e.value <= max(values) * 1.001
        assert e.n == len(values)
        if e.low is not None and e.high is not None:
            assert min(values) * 0.999 <= e.low <= e.high <= max(values) * 1.001
