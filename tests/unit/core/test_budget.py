"""The ledger: what may be lost is what was won, the allowance and one per cent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.policy.budget import SpeculationBudget
from specllama.core.policy.config import DEFAULT

NOT_NUMBERS = (None, "3", True, [3.0], float("nan"), float("inf"))


def test_it_begins_with_the_allowance_and_no_round_risks_all_of_it():
    ledger = SpeculationBudget()
    assert ledger.credit == DEFAULT.allowance < 4
    assert ledger.max_round_loss == pytest.approx(DEFAULT.round_share * DEFAULT.allowance)
    assert 0 < DEFAULT.round_share < 1


def test_wins_and_losses_are_booked():
    ledger = SpeculationBudget()
    ledger.drafted(worth=5, cost=2)
    assert ledger.credit == pytest.approx(DEFAULT.allowance + 3)
    ledger.drafted(worth=1, cost=2.5)
    assert ledger.credit == pytest.approx(DEFAULT.allowance + 1.5)


def test_what_was_won_is_kept_up_to_a_limit():
    ledger = SpeculationBudget()
    for _ in range(100):
        ledger.drafted(worth=5, cost=1)
    assert ledger.credit == DEFAULT.max_gain + DEFAULT.allowance


def test_plain_decoding_fills_the_allowance_and_no_more():
    ledger = SpeculationBudget()
    ledger.drafted(worth=1, cost=3)
    before = ledger.credit
    ledger.plain(10)
    assert ledger.credit == pytest.approx(before + 10 * DEFAULT.overhead)
    for _ in range(1000):
        ledger.plain(10)
    assert ledger.credit == DEFAULT.allowance


def test_a_plain_round_is_due_after_a_while_of_drafting():
    ledger = SpeculationBudget()
    while not ledger.plain_due:
        ledger.drafted(worth=6, cost=2)
        assert ledger.since_plain <= DEFAULT.plain_every + 2
    ledger.plain(1)
    assert not ledger.plain_due


rounds = st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 12), st.booleans()), max_size=200)


@given(rounds)
def test_a_loss_within_the_stake_keeps_the_promise(played):
    """Whatever comes of them: rounds that risk the stake at most end within 1 % and four t(1) of plain."""
    ledger, plain, took = SpeculationBudget(), 0.0, 0.0
    for tokens, cost, drafts in played:
        worth = float(tokens)
        if drafts and ledger.credit > 0:
            cost = min(cost, worth + ledger.max_round_loss)
            ledger.drafted(worth, cost)
        else:
            cost = worth
            ledger.plain(worth)
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
def test_a_later_process_goes_on_with_what_is_left(stored, credit):
    ledger = SpeculationBudget()
    ledger.restore(stored)
    assert ledger.credit == credit
