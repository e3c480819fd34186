"""The attribution of losses, on statistics that are made up."""

from __future__ import annotations

import pytest

from scripts.bench.losses import CAUSES, PROMPTS, loss, ratio, report, shares
from scripts.bench.measuring.engine import PlainAndAuto
from specllama.core.stats import RunStats


def stats(
    n: int, rounds: dict[int, tuple[int, float]], draft: float, sampling: float, other: float
) -> RunStats:
    verify = sum(seconds for _, seconds in rounds.values())
    return RunStats(
        n_predict=n, verify_seconds=verify, draft_seconds=draft, sampling_seconds=sampling,
        decode_seconds=verify + draft + sampling + other, round_seconds=rounds, n_drafted=4, n_accept=2,
    )  # fmt: skip


PLAIN = stats(11, {1: (10, 1.0)}, 0.0, 0.1, 0.1)  # ten decodes of 0.1 s
AUTO = stats(9, {1: (4, 0.44), 3: (2, 0.5)}, 0.08, 0.16, 0.24)  # eight tokens, four of them in wide decodes


def test_the_causes_add_up_to_the_loss() -> None:
    found = loss(PLAIN, AUTO)
    assert found is not None
    assert found.t1 == pytest.approx(0.1)
    assert found.ratio == pytest.approx((1.42 / 8) / (1.2 / 10))
    assert list(found.causes) == list(CAUSES)
    assert found.causes == {
        "planner": pytest.approx(0.32 / 8 - 0.1 / 10),
        "sampling": pytest.approx(0.16 / 8 - 0.1 / 10),
        "wide": pytest.approx((0.5 - 4 * 0.1) / 8),
        "narrow": pytest.approx((0.44 - 4 * 0.1) / 8),
    }
    assert sum(found.causes.values()) == pytest.approx(1.42 / 8 - 1.2 / 10)
    assert sum(shares([found]).values()) == pytest.approx(found.ratio - 1)


def test_answers_of_one_token_have_no_loss() -> None:
    assert loss(PLAIN, stats(1, {}, 0.0, 0.0, 0.0)) is None
    assert ratio([]) is None


def test_the_report_has_a_line_for_each_kind_and_the_total() -> None:
    found = {kind: {p: [PlainAndAuto(PLAIN, AUTO)] * 2 for p in prompts} for kind, prompts in PROMPTS.items()}
    header, *kinds, total, budget = report(found)
    assert header.split()[-2:] == ["drafted", "accepted"]
    assert [line.split()[0] for line in kinds] == list(PROMPTS)
    assert total.split()[:3] == ["all", "100.00", "1.479"]
    assert budget.startswith("lost 184.0 t(1) of 7.8 that are allowed for 40 answers")
    empty = {kind: {p: [] for p in prompts} for kind, prompts in PROMPTS.items()}
    assert "nothing was measured" in report(empty)[-1]


def test_the_prompts_are_twenty_different_ones() -> None:
    every = [prompt for prompts in PROMPTS.values() for prompt in prompts]
    assert len(set(every)) == len(every) == 20
