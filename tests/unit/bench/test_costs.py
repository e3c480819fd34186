"""The costs of decodes and draft tokens, compared with costs computed by hand."""

from __future__ import annotations

import pytest

from specllama.bench.summary import break_even, costs_of, t1_of
from tests.support.bench_samples import sample


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
