"""The planner with a head: what its first draft of a text evaluates, and that it pays from the start."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from specllama.core.interfaces import Drafter, Proposal
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.policy.posterior import PairState
from specllama.core.replay.simulator import Replay, SimulatedClock, Trace, TraceDrafter, TraceHead, steps_at

N_PROMPT, N_TEXT = 400, 90


def rows(n: int) -> float:
    """Seconds of a decode of n rows."""
    return 0.010 * (1 + 0.1 * (n - 1))


def planner(drafters: Sequence[Drafter], clock: Callable[[], float]) -> Planner:
    costs = CostCurve()
    for n in range(1, DEFAULT.max_rows + 1):
        for _ in range(DEFAULT.min_samples):
            costs.observe(n, rows(n))
    return Planner(drafters, clock, costs)


def trace(seed: int, right: float) -> Trace:
    """A text whose tokens the draft predicts with this probability, and says so."""
    rng = random.Random(seed)
    prompt, text = ([rng.randrange(1000) for _ in range(n)] for n in (N_PROMPT, N_TEXT))
    draft = [token if rng.random() < right else token + 1 for token in text]
    return Trace(prompt, text, draft, [right] * N_TEXT)


def steps_of(draft: Callable[..., TraceDrafter], right: float, step: float) -> tuple[list[float], float]:
    """(seconds of each step of the draft, seconds of the text) of the first text of a pair."""
    took: list[float] = []

    class Recorded(SimulatedClock):
        def spend(self, seconds: float) -> None:
            if seconds < rows(1):  # not a decode of the target
                took.append(seconds)
            super().spend(seconds)

    def recording(machine: SimulatedClock, seconds: Callable[[int], float]) -> TraceDrafter:
        machine.__class__ = Recorded
        return draft(machine, seconds)

    session = Replay(planner, rows, steps_at(step), None, prefilled=False, draft=recording)
    return took, session.replay([trace(1, right)]).seconds


@pytest.mark.parametrize("step", [0.0005, 0.0015])
def test_the_first_draft_of_a_head_evaluates_little_of_the_prompt(step: float) -> None:
    took, _ = steps_of(partial(TraceHead, n_kept=256), 0.7, step)
    least = steps_at(step)(DEFAULT.head_min_tail)
    assert step < took[0] <= max(least, step + DEFAULT.head_catch_up * rows(1)) * 1.001


@pytest.mark.parametrize(("right", "step"), [(0.6, 0.0005), (0.6, 0.0015), (0.8, 0.0022)])
def test_a_head_pays_in_the_first_text(right: float, step: float) -> None:
    plain = N_TEXT * rows(1)
    _, took = steps_of(partial(TraceHead, n_kept=256), right, step)
    assert took < 0.95 * plain


def test_a_head_that_knows_nothing_costs_no_more_than_the_budget() -> None:
    _, took = steps_of(partial(TraceHead, n_kept=256), 0.0, 0.0015)
    assert took < N_TEXT * rows(1) * (1 + DEFAULT.overhead) + (DEFAULT.allowance + 0.5) * rows(1)


def expensive_rows(n: int) -> float:
    """Seconds of a decode of n rows where a second one costs nearly half of a decode."""
    return 0.010 * (1 + 0.4 * (n - 1))


def learnt_from(traces: Sequence[Trace], n_steps: list[int], learnt: object = None) -> object:
    """What is learnt after these texts, each by a planner that starts from what was stored after the one
    before; n_steps gets the steps of the head in each.
    """

    class Counted(TraceHead):
        def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
            n_steps[-1] += 1
            return super().step(drafts)

    stored: Any = learnt
    for text in traces:
        made: list[Planner] = []

        def make(
            drafters: Sequence[Drafter],
            clock: Callable[[], float],
            stored: Any = stored,
            made: list[Planner] = made,
        ) -> Planner:
            costs = CostCurve()
            for n in range(1, DEFAULT.max_rows + 1):
                for _ in range(DEFAULT.min_samples):
                    costs.observe(n, expensive_rows(n))
            made.append(Planner(drafters, clock, costs, stored))
            return made[-1]

        n_steps.append(0)
        draft = partial(Counted, n_kept=256)
        Replay(make, expensive_rows, lambda n: 0.003 + 0.00015 * n, None, draft=draft).replay([text])
        stored = json.loads(json.dumps(made[0].learnt.to_dict()))
    return stored


def known_head(right: float) -> dict[str, Any]:
    """What is stored about a head whose tokens are right so often, and which may lose nothing more."""
    learnt = PairState([TraceHead(SimulatedClock(), steps_at(0.003), 256)])
    head, bin_ = learnt.models["head"], learnt.bin_of("head", right, 0)
    for i in range(200):
        learnt.tables["head"].observe(bin_, i * right % 1 >= 1 - right)
        head.next_token.observe(bin_, i * right % 1 >= 1 - right)
    head.first = [[float(b == bin_) for b in range(14)]] * 2
    head.explore = 0.0
    return learnt.to_dict()


def test_a_head_that_can_gain_nothing_is_tried_once_by_each_process() -> None:
    """Each of two short answers is of its own process: a wrong record must not last."""
    steps: list[int] = []
    learnt_from([trace(n, 0.45) for n in range(2)], steps, known_head(0.45))
    assert max(steps) <= 1
    learnt_from([trace(0, 0.9)], steps := [], known_head(0.9))
    assert steps[0] > 0  # its own record says otherwise


def test_a_head_that_can_gain_nothing_is_tried_now_and_then_over_all_answers() -> None:
    steps: list[int] = []
    n = 100
    learnt_from([trace(i, 0.45) for i in range(n)], steps, known_head(0.45))
    assert sum(steps) >= 2
    seconds_of_steps = sum(steps) * 0.00315
    share = DEFAULT.explore_share * N_TEXT + DEFAULT.stored_explore  # each answer is of its own process
    assert seconds_of_steps < 2 * n * share * expensive_rows(1)


def test_a_head_that_has_become_good_is_used_again() -> None:
    steps: list[int] = []
    learnt_from([trace(i, 0.9) for i in range(80)], steps, known_head(0.4))
    assert steps[0] <= 1
    assert steps[-1] > 20
