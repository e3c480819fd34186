"""Time limits: rounds end within them and are only as wide as fits. Prompts without a text."""

from __future__ import annotations

import pytest

from specllama.core.engine import Engine
from specllama.core.policy.base import Policy
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.testing import TableContext, table_row
from tests.support.scripted import ScriptedDrafter

ENDLESS = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)


class Slow(TableContext):
    """A decode takes `per_row` seconds per row and `fixed` more."""

    def __init__(self, per_row: float, fixed: float = 0.0, n_seq_max: int = 2) -> None:
        super().__init__(32, 4000, n_seq_max, n_batch=512)
        self.n_outputs_max = 64
        self.per_row, self.fixed, self.now = per_row, fixed, 1.0

    def seconds(self, n_rows: int) -> float:
        return self.fixed + self.per_row * n_rows

    def decode(self, batch, *filled):
        self.now += self.seconds(len(batch))
        return super().decode(batch, *filled)


def engine_of(target: Slow, policy: Policy | None = None) -> Engine:
    return Engine(target, policy or Fixed([], 0), end_ids={3}, clock=lambda: target.now)


def prompt(n: int, first: int = 4) -> list[int]:
    return [first, *(4 + i * 7 % 25 for i in range(n - 1))]


def finish(engine: Engine, generation: Generation) -> Generation:
    while generation.finish_reason is None:
        engine.step()
    return generation


def right(history, draft):
    """What the table model writes next."""
    ids = [*history, *draft]
    row = table_row(ids, 32)
    row[3] = -100
    return int(row.argmax())


def policies(target: Slow) -> list[Policy]:
    costs = CostCurve()
    for _ in range(4):
        for n in (1, 2, 4, 8, 16, 32, 64):
            costs.observe(n, target.seconds(n))
    return [
        Fixed([], 0),
        Fixed([ScriptedDrafter(right)], 8),
        Planner([ScriptedDrafter(right, name="copy")], lambda: target.now, costs),
    ]


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("limit", [0.05, 0.25, 1.0])
def test_a_text_ends_within_its_time(kind, limit):
    target = Slow(0.002, fixed=0.02)
    engine = engine_of(target, policies(target)[kind])
    finish(engine, engine.submit(Request(prompt(20), SamplingParams(max_tokens=60, ignore_eos=True), 2)))
    g = engine.submit(Request(prompt(20), ENDLESS, 1, predict_seconds=limit))
    finish(engine, g)
    assert g.finish_reason == "length"
    assert target.now - g.first_token <= limit + 1e-9
    assert target.now - g.first_token > limit - 0.04  # and uses it up
    assert g.output == finish(engine, engine.submit(Request(prompt(20), ENDLESS, 1))).output[: g.n_output]


@pytest.mark.parametrize("stored", [True, False])
def test_a_prediction_that_is_far_too_long_corrects_itself(stored):
    """It was measured while the machine was busy, in an earlier process or in this one."""
    target = Slow(0.002, fixed=0.01)
    costs = CostCurve()
    for _ in range(8):
        costs.observe(1, 0.6)
    if stored:
        costs = CostCurve.from_dict(costs.to_dict())
    engine = engine_of(target, Planner([ScriptedDrafter(right, name="copy")], lambda: target.now, costs))
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    for _ in range(2):
        g = finish(engine, engine.submit(Request(prompt(20), params, 1, predict_seconds=0.5)))
        assert (g.n_output, g.finish_reason) == (14, "length")


def test_a_text_has_one_round_even_if_that_takes_too_long():
    target = Slow(0.002, fixed=1.0)
    engine = engine_of(target)
    for _ in range(2):
        g = finish(engine, engine.submit(Request(prompt(20), ENDLESS, 1, predict_seconds=0.5)))
        assert (g.n_output, g.finish_reason) == (2, "length")


def test_the_last_rounds_are_narrower():
    target = Slow(0.002, fixed=0.02)
    engine = engine_of(target, policies(target)[2])
    finish(engine, engine.submit(Request(prompt(20), SamplingParams(max_tokens=60, ignore_eos=True), 2)))
    narrower = 0
    for limit in (0.25, 0.26, 0.27, 0.28):
        target.widths.clear()
        finish(engine, engine.submit(Request(prompt(20), ENDLESS, 1, predict_seconds=limit)))
        *_, before, last = target.widths
        narrower += before > last > 1
    assert narrower


def test_prefill_of_another_prompt_leaves_a_timed_text_its_time():
    """Chunks of half a second would take all of it."""
    target = Slow(0.0005)
    engine = engine_of(target)
    finish(engine, engine.submit(Request(prompt(600, 9), SamplingParams(max_tokens=1), 1)))
    g = engine.submit(Request(prompt(20), ENDLESS, 1, predict_seconds=0.25))
    while not g.output:
        engine.step()
    engine.submit(Request(prompt(3000, 8), SamplingParams(max_tokens=1), 1))
    finish(engine, g)
    assert target.now - g.first_token <= 0.25 + 1e-9


def test_a_prompt_ends_within_its_time_and_the_next_request_gets_further():
    target = Slow(0.001)
    engine = engine_of(target)
    finish(engine, engine.submit(Request(prompt(300, 9), SamplingParams(max_tokens=1), 1)))
    evaluated = []
    for _ in range(4):
        began = target.now
        g = finish(engine, engine.submit(Request(prompt(1000), ENDLESS, 1, prompt_seconds=0.25)))
        assert (g.finish_reason, g.output) == ("length", [])
        assert target.now - began <= 0.25 + 1e-9
        evaluated.append(g.n_past)
    assert evaluated == sorted(set(evaluated))
    g = engine.submit(Request(prompt(1000), SamplingParams(max_tokens=2), 1, prompt_seconds=0.25))
    assert finish(engine, g).n_output == 2


def test_the_first_chunk_is_evaluated_however_short_the_time_is():
    target = Slow(0.01)
    engine = engine_of(target)
    finish(engine, engine.submit(Request(prompt(300, 9), SamplingParams(max_tokens=1), 1)))
    for i in range(1, 4):
        g = finish(engine, engine.submit(Request(prompt(1000), ENDLESS, 1, prompt_seconds=0.001)))
        assert (g.output, g.n_past) == ([], 64 * i)


def test_a_request_that_waits_for_a_slot_ends_with_its_time():
    target = Slow(0.01, n_seq_max=1)
    engine = engine_of(target)
    engine.submit(Request(prompt(20), ENDLESS, 1))
    engine.step()
    g = engine.submit(Request(prompt(20, 9), ENDLESS, 1, prompt_seconds=0.1))
    began = target.now
    finish(engine, g)
    assert (g.finish_reason, g.output, g.seq_id) == ("length", [], -1)
    assert target.now - began < 0.15


def test_several_choices_end_together():
    target = Slow(0.001)
    engine = engine_of(target)
    finish(engine, engine.submit(Request(prompt(300, 9), SamplingParams(max_tokens=1), 1)))
    began = target.now
    both = [engine.submit(Request(prompt(1000), ENDLESS, seed, prompt_seconds=0.25)) for seed in (1, 2)]
    for g in both:
        finish(engine, g)
    assert target.now - began <= 0.25 + 1e-9


def test_warming_evaluates_the_prompt_and_writes_nothing():
    target = Slow(0.001)
    engine = engine_of(target)
    g = finish(engine, engine.submit(Request(prompt(300), ENDLESS, 1, warm=True)))
    assert (g.finish_reason, g.output, g.stats.n_predict) == ("length", [], 0)
    assert engine.slots[g.seq_id].ids == prompt(300)
    again = finish(engine, engine.submit(Request(prompt(300), SamplingParams(max_tokens=3), 1)))
    assert (again.stats.n_reused, again.stats.n_evaluated) == (299, 1)
