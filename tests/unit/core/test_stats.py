"""Counters of a generation and the figures derived from them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.stats import RunStats, plain_rate, speedup


def test_unmeasured_figures_are_none():
    stats = RunStats()
    assert stats.acceptance_rate is None
    assert stats.accept_by_position == []
    assert (stats.encode_tps, stats.decode_tps, stats.plain_tps) == (None, None, None)
    assert sum(stats.time_shares.values()) == 0
    assert RunStats(n_predict=1, decode_seconds=1.0).decode_tps is None


def test_rates_are_tokens_per_second():
    stats = RunStats(
        n_prompt=90, n_reused=30, n_evaluated=60, encode_seconds=2.0, n_predict=101, decode_seconds=4.0
    )
    assert stats.encode_tps == 30
    assert stats.decode_tps == 25
    stats.steady_rounds, stats.steady_seconds = 10, 2.0
    assert stats.plain_tps == 5


@pytest.mark.parametrize(
    ("plain_rounds", "stored_t1", "source", "tps"),
    [
        (8, None, "run", 100),
        (8, 0.02, "run", 100),
        (7, None, "none", None),  # too few to be called a rate
        (0, None, "none", None),
        (4, 0.02, "stored", 8 / (4 * 0.01 + 4 * 0.02)),
        (0, 0.02, "stored", 50),
    ],
)
def test_the_plain_rate_needs_eight_plain_rounds_or_a_stored_time(plain_rounds, stored_t1, source, tps):
    seconds = plain_rounds / 100
    stats = RunStats(n_predict=41, rounds=20, steady_rounds=plain_rounds, steady_seconds=seconds)
    stats.decode_seconds = stats.verify_seconds = 0.2
    rate = plain_rate(stats, stored_t1)
    assert (rate.source, rate.rounds) == (source, plain_rounds)
    assert rate.tps == (None if tps is None else pytest.approx(tps))
    gain = speedup(stats, rate)
    assert gain == (None if tps is None else pytest.approx(200 / tps))


def test_acceptance_by_position_counts_rounds_with_such_a_position():
    stats = RunStats()
    stats.drafted(["copy", "copy", "copy"], 2, 0)
    stats.drafted(["model"], 1, 3)
    stats.drafted(["model", "model"], 0, 0)
    assert (stats.n_drafted, stats.n_accept, stats.n_discarded) == (6, 3, 3)
    assert stats.accept_by_position == pytest.approx([2 / 3, 1 / 2, 0])
    assert stats.drafted_by == {"copy": 3, "model": 3}
    assert stats.acceptance_rate == 0.5


def test_acceptance_by_source_counts_each_position_for_its_drafter():
    stats = RunStats()
    stats.drafted(["head", "copy"], 2, 0)
    stats.drafted(["head", "head", "copy"], 1, 0)
    stats.drafted(["grammar", "copy"], 1, 0, forced={"grammar"})
    assert stats.reached_by == {"head": [2, 1], "copy": [1, 1, 1]}
    assert stats.accept_by_source == {"head": [1, 0], "copy": [0, 1, 0]}
    stats.drafted(["copy", "copy", "head"], 3, 0)
    assert stats.accept_by_source["head"] == [1, 0, 1]
    lone = RunStats()
    lone.drafted(["copy", "head"], 2, 0)
    assert lone.accept_by_source == {"copy": [1], "head": [None, 1]}


drafts = st.lists(
    st.tuples(st.lists(st.sampled_from(["model", "copy"]), max_size=6), st.integers(0, 6), st.integers(0, 3))
)


@given(drafts)
def test_counters_are_consistent(rounds):
    stats = RunStats()
    for sources, n_accept, n_discarded in rounds:
        stats.drafted(sources, min(n_accept, len(sources)), n_discarded)
    assert sum(stats.reached) == stats.n_drafted == sum(stats.drafted_by.values())
    assert sum(stats.accepted_at) == stats.n_accept <= stats.n_drafted
    assert stats.reached == sorted(stats.reached, reverse=True)
    for by, counts in ((stats.reached_by, stats.reached), (stats.accepted_by, stats.accepted_at)):
        assert [sum(n[j] for n in by.values() if j < len(n)) for j in range(len(counts))] == counts
    assert RunStats.from_dict(json.loads(json.dumps(stats.to_dict()))) == stats


def test_time_shares_add_up():
    stats = RunStats(decode_seconds=10.0, verify_seconds=6.0, draft_seconds=2.0, sampling_seconds=0.5)
    assert stats.time_shares == {"verify": 6.0, "draft": 2.0, "sampling": 0.5, "other": 1.5}
    assert RunStats(decode_seconds=1.0, verify_seconds=1.1).time_shares["other"] == 0
