"""Counters of a generation and the figures derived from them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.gain import PlainRate, compared_rate, gain, plain_rate, was_busy
from specllama.core.policy.base import Draft, Round, VerifyResult
from specllama.core.stats import RunStats, summed


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
        (4, 0.011, "stored", 8 / (4 * 0.01 + 4 * 0.011)),
        (0, 0.02, "stored", 50),
    ],
)
def test_the_plain_rate_needs_eight_plain_rounds_or_a_stored_time(plain_rounds, stored_t1, source, tps):
    seconds = plain_rounds / 100
    stats = RunStats(n_predict=41, rounds=10, steady_rounds=plain_rounds, steady_seconds=seconds)
    stats.decode_seconds = stats.verify_seconds = 0.2
    rate = plain_rate(stats, stored_t1)
    assert (rate.source, rate.rounds) == (source, plain_rounds)
    assert rate.tps == (None if tps is None else pytest.approx(tps))
    assert gain(stats, rate).speedup == (None if tps is None else pytest.approx(200 / tps))


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


def test_a_few_rounds_do_not_tell_how_much_slower_or_faster_they_were():
    """Two rounds that waited for another program, of an answer of nine tokens."""
    stats = RunStats(n_predict=9, rounds=4, decode_seconds=0.13, verify_seconds=0.13, n_drafted=12)
    found = gain(stats, plain_rate(stats, 0.01))
    assert found.low < 0.5
    assert found.high > 0.8
    assert not found.is_clear
    assert not found.in_words().startswith("slower: 0")


def test_a_stored_time_does_not_count_where_decodes_take_longer_now():
    stats = RunStats(n_predict=41, rounds=20, decode_seconds=0.3, verify_seconds=0.3)
    assert plain_rate(stats, 0.01, 1.1).error == pytest.approx(0.1)
    slow, fast = plain_rate(stats, 0.01, 1.3), plain_rate(stats, 0.01, 0.7)
    assert (slow.tps, fast.tps) == (pytest.approx(100 / 1.3**0.5), pytest.approx(100 / 0.7**0.5))
    assert slow.reason == "decodes were slower than at other times"
    assert fast.reason == "decodes were faster than at other times"
    assert slow.error == pytest.approx(1.1 * 1.3 - 1)  # half of what they differ beyond both, and that of any
    gained = gain(stats, slow)
    assert gained.speedup == pytest.approx(40 / 0.3 / slow.tps)
    assert (gained.low, gained.high) == (pytest.approx(40 / 0.3 / 100 * 1.3**-0.5 / 1.1), pytest.approx(2))
    assert (gained.verdict, gained.reason) == ("faster", slow.reason)


def test_a_stored_time_that_the_plain_rounds_of_a_run_contradict_is_uncertain():
    stats = RunStats(n_predict=41, rounds=10, steady_rounds=4, steady_seconds=0.04)
    stats.decode_seconds = stats.verify_seconds = 0.1
    rate = plain_rate(stats, 0.02)
    assert rate.reason == "decodes were faster than at other times"
    assert rate.tps / (1 + rate.error) < 50 < 100 < rate.tps * (1 + rate.error)
    assert gain(stats, rate).in_words().startswith("faster, by how much is unclear: between ")


def test_what_is_known_does_not_depend_on_how_much_was_gained():
    """A clear gain in few rounds that do not fit the stored time has a verdict, as a small one has."""
    stats = RunStats(n_predict=101, rounds=3, n_drafted=99, decode_seconds=100 / 415)
    rate = plain_rate(stats, 1 / 5, 0.5)
    assert gain(stats, rate).verdict == "faster"
    assert re.fullmatch(
        r"faster, by how much is unclear: between \d+\.\d\dx and 33\.33x plain; decodes were .+",
        gain(stats, rate).in_words(),
    )


@pytest.mark.parametrize(
    ("t1", "reason"),
    [
        (0.011, "decodes were faster than at other times"),  # 36 decodes in 37 ms
        (0.0002, "decodes were slower than at other times"),  # four rows in the time of five single ones
    ],
)
def test_a_stored_time_that_the_decodes_of_a_run_rule_out_does_not_count(t1, reason):
    stats = RunStats(n_predict=40, rounds=36, plain_rounds=32, n_drafted=5)
    stats.round_seconds, stats.decode_seconds = {4: (36, 0.037)}, 0.042
    rate = plain_rate(stats, t1)
    assert (rate.source, rate.reason) == ("stored", reason)
    assert rate.error > 0.3
    assert plain_rate(stats, 0.001).source == "stored"


@pytest.mark.parametrize("source", ["run", "stored", "compared"])
def test_no_answer_is_faster_than_its_tokens_per_decode(source):
    """A decode with a draft takes no less than one without."""
    stats = RunStats(n_predict=41, rounds=20, plain_rounds=10, decode_seconds=0.2)
    assert gain(stats, PlainRate(105, source, 10)).verdict == "faster"
    gained = gain(stats, PlainRate(20, source, 10))
    assert (gained.speedup, gained.high, gained.limited) == (pytest.approx(2), pytest.approx(2), True)
    assert gained.low < 2 / 5, "the interval is wider by as much as cannot be"
    assert (gained.is_clear, gained.reason) == (False, "plain decodes took unusually long")


def rounds_of(*seconds: float, width: int = 1) -> RunStats:
    """Plain rounds of these lengths, and one with a draft."""
    stats = RunStats(n_predict=len(seconds) + 4)
    for n, took in enumerate(seconds, 1):
        done = Round(width, took, 0.0, took, [VerifyResult(0, Draft(), 0, 1)], 0, n)
        stats.add_round(done, done.outcomes[0], 0.0)
    took = 0.01
    done = Round(4, took, 0.0, took, [VerifyResult(0, Draft([1, 2, 3], ["copy"] * 3), 2, 3)])
    stats.add_round(done, done.outcomes[0], 0.0)
    return stats


def test_the_interval_is_that_of_the_plain_rounds():
    even, uneven = rounds_of(*[0.01] * 40), rounds_of(*[0.002, 0.018] * 20)
    assert plain_rate(even, None).error == 0.02
    assert plain_rate(uneven, None).error == pytest.approx(2 * 0.008 / 38**0.5 / 0.01, rel=0.05)
    few = rounds_of(0.01, 0.01, *[0.0001] * 7, 0.013)  # one long round among few: as wide as itself
    gained = gain(few, plain_rate(few, None))
    assert gained.reason == "the plain rounds took too different times"
    assert gained.low < 1 < gained.high
    assert not gained.is_clear


def test_rounds_that_stall_do_not_count():
    stats = rounds_of(*[0.01] * 60, 0.05)
    assert stats.stalled_seconds == pytest.approx(0.04)
    assert plain_rate(stats, None).tps == pytest.approx(100)
    gained = gain(stats, plain_rate(stats, None))
    assert gained.speedup == pytest.approx((len(range(61)) + 3) / 0.62 / 100)
    assert gained.verdict == "faster"
    busy = rounds_of(*[0.01] * 20, 0.2)
    gained = gain(busy, plain_rate(busy, None))
    assert gained.reason == "the machine was busy with something else"
    assert gained.low < busy.decode_tps / 100 < 1 < gained.high, "with the stalls and without"
    assert was_busy([stats, busy])
    assert not was_busy([stats])
    assert not was_busy([])


def test_stalls_of_the_answer_that_is_compared_with_do_not_count_either():
    plain, busy = rounds_of(*[0.01] * 60, 0.05), rounds_of(*[0.01] * 20, 0.2)
    quiet = compared_rate(plain)
    assert quiet.tps == pytest.approx((plain.n_predict - 1) / (plain.decode_seconds - 0.04))
    assert (quiet.error, quiet.reason) == (0.02, "")
    rate = compared_rate(busy)
    assert rate.reason == "the machine was busy with something else"
    low, high = rate.tps / (1 + rate.error), rate.tps * (1 + rate.error)
    assert low < busy.decode_tps < (busy.n_predict - 1) / 0.22 < high


def test_an_answer_of_one_token_has_nothing_to_compare_with():
    rate = compared_rate(RunStats(n_predict=1))
    assert (rate.tps, rate.source) == (None, "none")


def test_a_first_round_that_stalled_is_found_out_later():
    assert rounds_of(0.1, *[0.01] * 5).stalled_seconds == pytest.approx(0.09)
    assert rounds_of(0.003, *[0.0005] * 5).stalled_seconds == 0  # too short to tell


def test_stats_survive_the_way_to_a_front():
    stats = rounds_of(*[0.01] * 9, 0.08)
    assert RunStats.from_dict(json.loads(json.dumps(stats.to_dict()))) == stats


@pytest.mark.parametrize(
    ("seconds", "speedup", "verdict"), [(9.5, 1.0, "alike"), (10.5, 100 / 105, "slower")]
)
def test_without_an_accepted_token_there_is_no_gain(seconds, speedup, verdict):
    """A hundred rounds with a draft each wrote a hundred tokens: what is above 1 is noise."""
    stats = RunStats(n_predict=101, rounds=100, n_drafted=200, decode_seconds=seconds)
    gained = gain(stats, PlainRate(10, "run", 50))
    assert gained.speedup == pytest.approx(speedup)
    assert gained.verdict == verdict
    assert gained.high <= 1


def test_a_speed_up_is_at_most_the_tokens_a_round():
    stats = RunStats(n_predict=101, rounds=65, n_drafted=80, decode_seconds=10 / 1.62)
    gained = gain(stats, PlainRate(10, "stored", 0, 0.1))
    assert gained.speedup == gained.high == pytest.approx(100 / 65)


def test_counters_of_answers_are_added() -> None:
    one = RunStats(n_drafted=3, n_accept=2, reached=[2, 1], accepted_at=[2, 0], verify_seconds=1.5)
    two = RunStats(n_drafted=1, n_accept=1, reached=[1], accepted_at=[1], verify_seconds=0.5)
    one.exact_width = two.exact_width = 8  # of texts whose decodes have one width
    one.drafted_by["copy"], two.drafted_by["model"] = 3, 1
    total = summed([one, two])
    assert (total.n_drafted, total.n_accept, total.verify_seconds) == (4, 3, 2.0)
    assert (total.reached, total.accepted_at) == ([3, 1], [3, 0])
    assert total.drafted_by == {"copy": 3, "model": 1}
    assert total.exact_width is None
    assert one.reached == [2, 1]
