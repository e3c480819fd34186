"""The speculation budget: what may be lost is the allowance, 1 % of plain decoding, and earlier gains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.policy.base import SpeculationBudget
from specllama.core.policy.config import DEFAULT

NOT_NUMBERS = (None, "3", True, [3.0], float("nan"), float("inf"))


def test_the_credit_starts_as_the_allowance_and_no_round_may_lose_all_of_it():
    budget = SpeculationBudget()
    assert budget.credit == DEFAULT.allowance < 4
    assert budget.max_round_loss == pytest.approx(DEFAULT.round_share * DEFAULT.allowance)
    assert 0 < DEFAULT.round_share < 1


def test_gains_and_losses_change_the_credit():
    budget = SpeculationBudget()
    budget.drafted(worth=5, cost=2)
    assert budget.credit == pytest.approx(DEFAULT.allowance + 3)
    budget.drafted(worth=1, cost=2.5)
    assert budget.credit == pytest.approx(DEFAULT.allowance + 1.5)


def test_gains_are_kept_up_to_a_limit():
    budget = SpeculationBudget()
    for _ in range(100):
        budget.drafted(worth=5, cost=1)
    assert budget.credit == DEFAULT.max_gain + DEFAULT.allowance


def test_plain_decoding_refills_the_credit_up_to_the_allowance():
    budget = SpeculationBudget()
    budget.drafted(worth=1, cost=3)
    before = budget.credit
    budget.plain(10)
    assert budget.credit == pytest.approx(before + 10 * DEFAULT.overhead)
    for _ in range(1000):
        budget.plain(10)
    assert budget.credit == DEFAULT.allowance


def test_a_plain_round_is_due_after_a_time_of_drafting():
    budget = SpeculationBudget()
    while not budget.plain_due:
        budget.drafted(worth=6, cost=2)
        assert budget.since_plain <= DEFAULT.plain_every + 2
    budget.plain(1)
    assert not budget.plain_due


rounds = st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 12), st.booleans()), max_size=200)


@given(rounds)
def test_losses_within_max_round_loss_keep_the_bound(played):
    """Rounds that lose max_round_loss at most stay within 1 % and four t(1) of plain decoding."""
    budget, plain, took = SpeculationBudget(), 0.0, 0.0
    for tokens, cost, drafts in played:
        worth = float(tokens)
        if drafts and budget.credit > 0:
            cost = min(cost, worth + budget.max_round_loss)
            budget.drafted(worth, cost)
        else:
            cost = worth
            budget.plain(worth)
        plain, took = plain + worth, took + cost
        assert took <= (1 + DEFAULT.overhead) * plain + DEFAULT.allowance + 1e-9


@pytest.mark.parametrize(
    ("stored", "credit"),
    [
        (-2.0, DEFAULT.stored_credit[0]),
        (0.3, DEFAULT.stored_credit[0]),
        (2.25, 2.25),
        (4, 4.0),
        (30.0, DEFAULT.stored_credit[1]),
        *((x, DEFAULT.allowance) for x in NOT_NUMBERS),
    ],
)
def test_a_later_process_continues_with_the_stored_credit(stored, credit):
    budget = SpeculationBudget()
    budget.restore(stored)
    assert budget.credit == credit
