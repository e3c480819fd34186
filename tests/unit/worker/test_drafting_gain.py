"""If speculation cannot pay it is off, and the answer says why: on a table model with a simulated clock."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specllama.config.options import as_flag
from specllama.core.engine import Engine
from specllama.core.policy.base import Policy
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.errors import with_option_names
from specllama.testing import TableContext
from specllama.worker.drafting_gain import drafting_verdict
from tests.support.scripted import ScriptedDrafter

ON = {"speculation": "on", "reason": ""}


class World:
    """A target whose decode of n rows takes t(n), a draft that is right with some chance, and a clock."""

    def __init__(self, t: dict[int, float], step: float = 0.1, right: float = 0.6, seed: int = 1) -> None:
        self.now, self.t, self.step, self.right = 0.0, t, step, right
        self.context, self.rng = _Timed(self), random.Random(seed)
        self.curve = CostCurve()
        for n, seconds in t.items():
            for _ in range(DEFAULT.min_samples):
                self.curve.observe(n, seconds)

    def seconds(self, n: int) -> float:
        return self.t.get(n, n * self.t[2] / 2)

    def guess(self, history: Sequence[int], draft: Sequence[int]) -> int:
        """The target's choice with probability `right`, else another id."""
        token = int(self.context.rows([*history, *draft]).argmax())
        return token if self.rng.random() < self.right else (token + 1) % 32

    def model(self, history: Sequence[int], draft: Sequence[int]) -> int:
        self.now += self.step
        return self.guess(history, draft)

    def planner(self, *names: str, guess: Callable[..., int | None] | None = None) -> Planner:
        """A planner with drafters of these names, which all use the same guesses."""
        default = {name: self.model if name == "model" else self.guess for name in names}
        drafters = [ScriptedDrafter(guess or default[name], name, 0.6) for name in names]
        return Planner(drafters, lambda: self.now, self.curve)

    def answer(self, policy: Policy, n: int = 400, **request: Any) -> Generation:
        engine = Engine(self.context, policy, end_ids=(), clock=lambda: self.now)
        params = SamplingParams(temperature=0, max_tokens=n)
        generation = engine.submit(Request([3, 4, 5], params, 1, **request))
        while engine.busy:
            engine.step()
        return generation


class _Timed(TableContext):
    def __init__(self, world: World) -> None:
        super().__init__(32, n_ctx=1024)
        self.world = world

    def decode(self, batch: Any, *filled: int) -> Any:
        self.world.now += self.world.seconds(len(batch))
        return super().decode(batch, *filled)


def verdict(policy: Policy, generation: Generation, off_reason: str = "") -> dict[str, str]:
    reason = drafting_verdict(off_reason, policy, generation).reason
    return {"speculation": "off" if reason else "on", "reason": reason}


def off_reason(world: World, policy: Policy, n: int = 400) -> str:
    generation = world.answer(policy, n)
    assert generation.stats.n_drafted <= 0.03 * n
    verdict_given = verdict(policy, generation)
    assert verdict_given["speculation"] == "off"
    return verdict_given["reason"]


EXPENSIVE = {1: 1.0, 2: 1.9, 3: 2.8, 4: 3.7, 5: 4.6}


def test_the_reason_gives_the_figures_of_a_draft_model_with_low_acceptance():
    world = World(EXPENSIVE, step=0.05, right=0.6)
    reason = off_reason(world, world.planner("model"), 900)
    figures = re.fullmatch(
        r"drafts would not have paid, as (\d+) % of the tokens of the draft model were right and 95 % have "
        r"to be; a decode of 2 rows takes 1\.90 x one row's here, a token of the draft model 0\.05 x",
        reason,
    )
    assert figures, reason
    assert 35 <= int(figures[1]) <= 80


def test_copied_drafts_with_low_acceptance_do_not_pay():
    world = World(EXPENSIVE, right=0.61)
    reason = off_reason(world, world.planner("copy"))
    figures = re.fullmatch(
        r"drafts would not have paid, as (\d+) % of copied tokens were right and 90 % have to be; "
        r"a decode of 2 rows takes 1\.90 x one row's here",
        reason,
    )
    assert figures, reason
    assert 52 <= int(figures[1]) <= 70  # of 400 tokens


def test_if_a_row_costs_more_than_a_token_nothing_can_pay():
    world = World({1: 1.0, 2: 2.2, 3: 3.3}, right=1.0)
    reason = off_reason(world, world.planner("copy"))
    assert reason == "drafts cannot pay; a decode of 2 rows takes 2.20 x one row's here"


def test_the_reason_names_the_width_with_the_lowest_break_even():
    world = World({1: 1.0, 2: 1.9, 3: 2.8, 4: 2.2}, right=0.2)
    reason = off_reason(world, world.planner("copy"))
    assert reason.endswith(" have to be; a decode of 4 rows takes 2.20 x one row's here")


def test_without_candidate_drafts_the_reason_says_so():
    world = World(EXPENSIVE)
    nothing = world.planner("copy", guess=lambda _history, _draft: None)
    assert off_reason(world, nothing) == "there is no draft model, and the text hardly repeats anything"
    fixed = Fixed([ScriptedDrafter(lambda _history, _draft: None, "copy")], 4)
    assert (
        off_reason(World(EXPENSIVE), fixed) == "there is no draft model, and the text hardly repeats anything"
    )


def test_drafts_that_the_settings_of_a_fixed_length_leave_out():
    def reason(confidence: float, n_min: int, p_min: float) -> str:
        drafter = ScriptedDrafter(lambda _history, draft: None if draft else 7, "model", confidence)
        return off_reason(World(EXPENSIVE), Fixed([drafter], 8, n_min, p_min), 100)

    assert (
        with_option_names(reason(0.4, 0, 0.5), as_flag)
        == "all drafts were less probable than --draft-p-min 0.5"
    )
    assert with_option_names(reason(0.9, 2, 0.0), as_flag) == "all drafts were shorter than --draft-min 2"
    assert with_option_names(reason(0.4, 2, 0.5), as_flag) == (
        "all drafts were less probable than --draft-p-min 0.5 or shorter than --draft-min 2"
    )


@pytest.mark.parametrize("names", [("copy",), ("model",), ("copy", "model")])
def test_an_answer_of_few_tokens_was_too_short_whatever_drafts_cost(names: tuple[str, ...]):
    world = World(EXPENSIVE, right=0.1)
    policy = world.planner(*names)
    policy.budget.credit = -1e9  # nothing can be tried
    assert verdict(policy, world.answer(policy, 5))["reason"] == "the answer was too short to try drafts"


def test_a_draft_model_that_proposes_nothing():
    world = World({1: 1.0, 2: 1.1, 4: 1.3})

    def silent(history: Sequence[int], draft: Sequence[int]) -> None:  # noqa: ARG001
        world.now += 0.01

    assert off_reason(world, world.planner("model", guess=silent)) == "the draft model had nothing to propose"


def test_the_reason_gives_no_figures_that_were_not_measured():
    world = World({1: 1.0, 2: 1.9}, right=0.3)
    world.curve = CostCurve()
    policy = world.planner("copy")
    policy.budget.credit = -1e9  # nothing can be tried
    assert off_reason(world, policy) == (
        "drafts were not expected to pay, though decodes of several rows were not timed yet"
    )


def test_a_spent_budget_is_the_reason_despite_high_acceptance():
    world = World({1: 1.0, 2: 1.2, 4: 1.4}, right=0.9)
    policy = world.planner("copy")
    policy.budget.credit = -1e9
    reason = off_reason(world, policy)
    assert reason.startswith("earlier drafts had cost too much time, although ")


def test_speculation_that_pays_is_on():
    world = World({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.4}, step=0.02, right=0.9)
    policy = world.planner("copy", "model")
    generation = world.answer(policy)
    assert generation.stats.n_drafted > 100
    assert verdict(policy, generation) == ON


def test_a_short_answer_gives_a_reason_only_if_nothing_at_all_was_drafted():
    world = World({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.4})
    policy = world.planner("copy")
    generation = world.answer(policy, 40)
    assert generation.stats.n_drafted > 0
    assert verdict(policy, generation) == ON
    world = World(EXPENSIVE)
    policy = world.planner("copy")
    generation = world.answer(policy, 40)
    assert generation.stats.n_drafted == 0
    reason = verdict(policy, generation)["reason"]
    assert re.fullmatch(r"drafts .*; a decode of 2 rows takes 1\.90 x one row's here", reason)


@pytest.mark.parametrize("names", [(), ("copy",), ("model",)])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_shortest_answers_give_a_reason(names, n):
    world = World(EXPENSIVE)
    policy = world.planner(*names, guess=lambda _history, _draft: None)
    generation = world.answer(policy, n)
    verdict_given = verdict(policy, generation)
    assert verdict_given["speculation"] == "off"
    assert verdict_given["reason"]
    assert (verdict_given["reason"] == "the answer is a single token") == (n == 1)


def test_an_answer_cancelled_before_its_first_token_says_so():
    world = World(EXPENSIVE)
    policy = world.planner("copy")
    engine = Engine(world.context, policy, end_ids=(), clock=lambda: world.now)
    generation = engine.submit(Request([3, 4, 5], SamplingParams(temperature=0, max_tokens=9), 1))
    engine.cancel(generation)
    assert verdict(policy, generation) == {"speculation": "off", "reason": "no token was generated"}


def test_speculation_switched_off_by_the_settings_or_by_the_request():
    world = World(EXPENSIVE)
    policy = world.planner("copy")
    off = {"speculation": "off", "reason": "--draft-max 0"}
    assert verdict(policy, world.answer(policy, 10), "--draft-max 0") == off
    plain = world.answer(policy, 10, speculate=False)
    assert verdict(policy, plain) == {"speculation": "off", "reason": "off for this request"}


@pytest.mark.parametrize("right", [0.0, 0.5, 0.95])
def test_speculation_that_is_off_costs_almost_nothing(right):
    """Almost no round was wider than one row."""
    world = World({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, step=0.2, right=right)
    policy = world.planner("copy", "model")
    generation = world.answer(policy, 800)
    assert verdict(policy, generation)["speculation"] == "off"
    assert generation.stats.decode_seconds <= 1.01 * 799 + 4
