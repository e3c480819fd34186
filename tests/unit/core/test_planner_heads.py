"""The planner with a head: what its first draft of a text evaluates, and that it pays from the start."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from specllama.core.interfaces import Drafter
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.replay.heads import TraceHead
from specllama.core.replay.simulator import Replay, SimulatedClock, Trace, TraceDrafter, steps_at

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
