"""The figures of a bench against figures computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.costs import costs_of
from specllama.bench.intervals import estimate
from specllama.bench.notes import notes
from specllama.bench.record import record
from specllama.bench.samples import configs
from specllama.bench.summary import BenchSummary, summarise, with_sums
from specllama.bench.verdict import nothing_pays, verdict
from specllama.core.stats import RunStats
from tests.support.bench_samples import sample

NAMES = ["plain", "1", "4", "auto"]
ABOUT = {
    "settings": {"text": None, "n_tokens": 8}, "interrupted": False, "skipped": {}, "planned": 8,
    "exact": False,
}  # fmt: skip


def test_configurations() -> None:
    assert [c.name for c in configs([4, 1, 4])] == NAMES
    assert [c.draft_max for c in configs([4, 1])] == [0, 1, 4, None]
    assert [c.name for c in configs([4, 1], speculation=False)] == ["plain"]


def test_of_a_unit_the_median_counts_and_of_the_units_too() -> None:
    e = estimate([[[1.0, 9.0, 2.0], [4.0], [8.0, 16.0]]])  # medians 2, 4, 12
    assert e is not None
    assert (e.value, e.n) == (4.0, 6)
    assert e.low is not None
    assert e.high is not None
    assert 1.0 <= e.low < 4 < e.high <= 16.0


def test_workloads_weigh_the_same_however_many_prompts_they_have() -> None:
    e = estimate([[[4.0]], [[1.0]] * 50])
    assert e is not None
    assert e.value == pytest.approx(2.0)  # the geometric mean of 4 and 1
    assert (e.low, e.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_few_values_have_no_interval() -> None:
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
def test_an_estimate_lies_among_its_values_and_in_its_interval(groups: list[list[list[float]]]) -> None:
    values = [x for units in groups for unit in units for x in unit]
    e = estimate(groups)
    assert (e is None) == (not values)
    if e is not None:
        assert min(values) * 0.999 <= e.value <= max(values) * 1.001
        assert e.n == len(values)
        if e.low is not None and e.high is not None:
            assert min(values) * 0.999 <= e.low <= e.high <= max(values) * 1.001


def bench() -> BenchSummary:
    """Two prompts of edit, one of free: 4 is best on edit, plain on free."""
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
    edit, free = s.rows
    assert (edit.workload, edit.temperature, free.workload) == ("edit", 0.0, "free")
    speedups = {name: c.speedup.value for name, c in edit.cells.items() if c.speedup}
    assert speedups == {  # medians of two ratios
        "1": pytest.approx((1.5 + 1.1) / 2),
        "4": pytest.approx((3.0 + 2.0) / 2),
        "auto": pytest.approx((2.5 + 2.0) / 2),
    }
    assert edit.cells["plain"].speedup is None
    assert edit.cells["plain"].rate is not None
    assert edit.cells["plain"].rate.value == pytest.approx(15)
    ttft = edit.cells["auto"].ttft
    assert ttft is not None
    assert ttft.value == pytest.approx(0.5)


def test_the_best_fixed_length_and_what_auto_leaves_of_it() -> None:
    edit, free = bench().rows
    assert (edit.best, free.best) == ("4", "plain")
    assert edit.auto_against_best is not None
    assert edit.auto_against_best.value == pytest.approx((25 / 30 + 1.0) / 2)
    assert edit.regret == pytest.approx(1 - (25 / 30 + 1.0) / 2)
    assert free.regret == pytest.approx(0.1)  # plain is the best: 10 against 9


def test_the_total_row_is_the_geometric_mean_of_the_workloads() -> None:
    s = bench()
    total = s.total.cells["4"].speedup
    assert total is not None
    assert total.value == pytest.approx(math.sqrt(2.5 * 0.4))
    assert s.total.best == "1"  # sqrt(1.3 * 0.8) is the largest of the fixed lengths'
    assert (s.answers, s.compared, s.differences) == (12, 9, [])


def test_rows_for_each_temperature_where_there_are_several() -> None:
    samples = [
        sample(name, 10, workload, temperature=t)
        for name in ("plain", "auto")
        for workload in ("edit", "free")
        for t in (0.0, 0.8)
    ]
    rows = [(row.workload, row.temperature) for row in summarise(samples, NAMES).rows]
    assert rows == [
        ("edit", 0.0), ("edit", 0.8), ("free", 0.0), ("free", 0.8), (None, 0.0), (None, 0.8),
    ]  # fmt: skip
    assert summarise(samples, NAMES).configs == ["plain", "auto"]


def test_runs_are_paired_so_that_drift_cancels() -> None:
    samples = [
        sample(name, tps * slow, run=run)
        for run, slow in ((1, 1.0), (2, 0.5), (3, 0.25))
        for name, tps in (("plain", 16), ("auto", 32))
    ]
    auto = summarise(samples, NAMES).total.cells["auto"].speedup
    assert auto is not None
    assert (auto.value, auto.low, auto.high) == (2.0, pytest.approx(2.0), pytest.approx(2.0))


def test_an_interrupted_bench_has_what_it_has() -> None:
    assert summarise([], NAMES).answers == 0
    assert verdict(summarise([], NAMES)).startswith("Too little")
    s = summarise([sample("auto", 10), sample("4", 10)], NAMES)
    assert (s.total.best, s.total.regret, s.compared) == (None, None, 0)
    assert s.total.cells["auto"].speedup is None
    assert verdict(s).startswith("Too little")
    only = summarise([sample("plain", 10)], NAMES)
    assert (only.total.best, only.total.regret) == ("plain", None)


def test_answers_of_one_token_have_no_speed() -> None:
    s = summarise([sample("plain", 10, n_predict=1), sample("auto", 10, n_predict=1)], NAMES)
    assert s.too_short == 2
    assert s.total.cells["auto"].speedup is None
    assert "2 answers ended with their first token" in notes(s, ABOUT)[0]


def test_other_texts_are_found_and_named() -> None:
    tokens = {"plain": (1, 2, 3), "1": (1, 2, 3), "4": (1, 9, 3), "auto": (1, 2)}
    s = summarise([sample(name, 10, tokens=ids) for name, ids in tokens.items()], NAMES)
    assert [(d.config, d.token) for d in s.differences] == [("4", 1), ("auto", 2)]
    text = notes(s, ABOUT)[-1]
    assert text.startswith("Texts: 2 of 3 are not plain decoding's")
    assert "edit 1 at 0, length 4, token 2" in text
    assert "please report it" in notes(s, {**ABOUT, "exact": True})[-1]
    same = summarise([sample(name, 10) for name in NAMES], NAMES)
    assert notes(same, ABOUT) == ["Texts: all 3 are plain decoding's, token for token."]
    given = {"settings": {"text": "edited.py", "n_tokens": None}}
    assert [note[:18] for note in notes(same, ABOUT | given)] == ["The text was given"]


def test_counters_are_added() -> None:
    one = RunStats(n_drafted=3, n_accept=2, reached=[2, 1], accepted_at=[2, 0], verify_seconds=1.5)
    two = RunStats(n_drafted=1, n_accept=1, reached=[1], accepted_at=[1], verify_seconds=0.5)
    one.drafted_by["copy"], two.drafted_by["model"] = 3, 1
    total = with_sums([one, two])
    assert (total.n_drafted, total.n_accept, total.verify_seconds) == (4, 3, 2.0)
    assert (total.reached, total.accepted_at) == ([3, 1], [3, 0])
    assert total.drafted_by == {"copy": 3, "model": 1}
    assert one.reached == [2, 1]


def test_costs_of_decodes_by_their_rows() -> None:
    drafts = {"reached": [6], "accepted_at": [3], "n_drafted": 6, "drafted_by": {"model": 6}}
    samples = [
        sample("plain", 10, round_seconds={1: (10, 1.0)}),
        sample("1", 10, round_seconds={1: (2, 0.2), 2: (6, 0.9)}, draft_seconds=0.3, n_discarded=4, **drafts),
        sample("auto", 10, round_seconds={1: (1, 0.1), 9: (1, 7.0)}),
    ]  # fmt: skip
    costs = costs_of(samples)
    assert [(p.rows, p.seconds, p.rounds) for p in costs.points] == [
        (1, pytest.approx(0.1), 13), (2, pytest.approx(0.15), 6),
    ]  # fmt: skip
    assert costs.exact  # nine rows were seen only once, which is not enough
    assert costs.draft_token == pytest.approx(0.03)  # 0.3 s for 6 tokens and 4 that were discarded
    assert costs.first_accepted == pytest.approx(0.5)
    # (1 + a) tokens in 1.5 + 0.3 of t(1) against 1 in 1: a has to be 0.8
    assert costs.break_even == pytest.approx(0.8)


def test_costs_where_the_engine_tells_no_rows() -> None:
    samples = [sample(name, 10) for name in ("plain", "4", "auto")]
    for one, rounds, drafted, verify in zip(samples, (10, 5, 5), (0, 10, 3), (1.0, 1.5, 9.0), strict=True):
        one.stats.rounds, one.stats.n_drafted, one.stats.verify_seconds = rounds, drafted, verify
    costs = costs_of(samples)
    assert not costs.exact
    assert [(p.rows, p.seconds) for p in costs.points] == [
        (1, pytest.approx(0.1)), (3, pytest.approx(0.3)),
    ]  # fmt: skip
    assert costs.t1 == pytest.approx(0.1)
    assert costs.draft_token is None
    assert costs.break_even == pytest.approx((3 - 1) / 2)  # two tokens of a copy, which costs nothing
    assert costs_of([]).break_even is None


def test_the_verdict_says_what_was_gained_and_where_it_was_not() -> None:
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
    assert text.startswith("Auto decoded at 1.37 x (1.37 - 1.37) plain decoding's speed and at 1.09 x")
    assert "the best fixed length in hindsight, 4 (1.26 x)" in text
    assert "it loses on free at temperature 0 (0.90 x)" in text
    assert "more was to be had on edit at temperature 0 (length 4: 2.00 x), json at temperature 0" in text
    assert not nothing_pays(s)


def test_the_verdict_says_why_nothing_can_pay() -> None:
    stats = {"reached": [6], "accepted_at": [3], "n_drafted": 6, "rounds": 6, "draft_seconds": 0.6}
    samples = [
        sample("plain", 10, round_seconds={1: (10, 1.0)}),
        sample("1", 6, round_seconds={2: (6, 1.2)}, drafted_by={"model": 6}, **stats),
        sample("auto", 9),
    ]
    s = summarise(samples, NAMES)
    assert nothing_pays(s)
    assert verdict(s) == (
        "Auto decoded at 0.90 x plain decoding's speed. Speculation does not pay here over all workloads: a "
        "decode of 2 rows takes 2.00 x one row's time, a draft token 1.00 x, so that such drafts cannot pay "
        "even where all of them are accepted; 50 % of first draft tokens were accepted."
    )
    cheap = [
        sample("plain", 10, round_seconds={1: (10, 1.0)}),
        sample("1", 9, round_seconds={2: (6, 0.66)}, **{**stats, "draft_seconds": 0.0}),
        sample("auto", 9),
    ]
    text = verdict(summarise(cheap, NAMES))
    assert "pays from an acceptance of 10 %; 50 % of first draft tokens were accepted" in text
    assert text.endswith(", but later ones less often, and a round takes time beside its decode.")
    for one in cheap[1:]:
        one.stats.rounds = 60
    assert verdict(summarise(cheap, NAMES)).endswith("but only 10 % of rounds had a draft.")
    assert verdict(s, "no drafter") == "Only plain decoding was measured: no drafter."


def test_the_verdict_claims_no_more_than_the_intervals_say() -> None:
    speeds = {"plain": (10, 10, 10), "4": (10, 9, 8), "auto": (8, 14, 15)}
    samples = [sample(name, tps, number=i) for name, row in speeds.items() for i, tps in enumerate(row)]
    text = verdict(summarise(samples, NAMES))
    assert text.startswith("Auto decoded at 1.40 x (0.80 - 1.50) plain decoding's speed and no fixed length")
    assert "for sure" in text


def test_the_record_has_every_figure() -> None:
    s = bench()
    found = record(s, [sample("plain", 10)], {"interrupted": False}, "so")
    assert found["schema"] == "specllama.bench/1"
    assert found["rows"][0]["best_fixed"] == "4"
    assert found["rows"][0]["configurations"]["4"]["speedup"]["value"] == pytest.approx(2.5)
    assert found["total"]["workload"] is None
    assert found["samples"][0]["decode_tps"] == 10
