"""The speedup predicted for a draft, from recorded texts and invented costs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from specllama import wire
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.posterior import StepCosts
from specllama.core.replay.forecast import Forecast
from specllama.core.replay.simulator import WRONG, SimulatedClock, Trace, TraceBlocks, TraceHead
from specllama.drafters.copy import CopyDrafter
from tests.support.machines import MACHINES

T1 = 0.05
TRACES = json.loads((Path(__file__).parent / "traces" / "pydoc.json").read_text())
OWN = {name: [wire.from_plain(Trace, t) for t in traces] for name, traces in TRACES.items()}


def known(machine: str) -> CostCurve:
    points = MACHINES[machine].items()
    return CostCurve.from_dict({"widths": [[n, T1 * x, DEFAULT.min_samples] for n, x in points]})


def steps(share: float) -> StepCosts:
    """A step of one id takes this share of t(1), each further id a third of that."""
    costs = StepCosts()
    points = [[n, T1 * share * (1 + (n - 1) / 3), DEFAULT.min_samples] for n in (1, 2, 4, 8, 16, 32, 64)]
    costs.curve = CostCurve.from_dict({"widths": points})
    return costs


def forecast_of(
    texts: dict[str, list[Trace]], machine: str = "A f16", share: float | None = 0.05, copies: bool = True
) -> Forecast:
    forecast = Forecast(
        known(machine), steps(share) if share is not None else None, CopyDrafter if copies else None
    )
    for name, traces in texts.items():
        for trace in traces:
            forecast.add(name, trace)
    return forecast


def worse(texts: dict[str, list[Trace]], share: float) -> dict[str, list[Trace]]:
    """The same with a draft that is wrong at a share of the positions, with the same confidences."""
    rng = random.Random(1)
    spoilt = lambda t: replace(t, draft=[WRONG if rng.random() < share else d for d in t.draft])  # noqa: E731
    return {name: [spoilt(t) for t in traces] for name, traces in texts.items()}


def test_the_forecast_is_deterministic():
    assert forecast_of(OWN).to_dict() == forecast_of(OWN).to_dict()


def test_the_figures_add_up_over_the_texts():
    forecast = forecast_of(OWN)
    for name, traces in OWN.items():
        part, n = forecast.parts[name], sum(len(t.text) for t in traces)
        assert part.tokens == n
        assert part.plain == pytest.approx(n * T1)
        assert part.n_right == sum(d == t for x in traces for d, t in zip(x.draft, x.text, strict=True))
        assert 0 < part.n_accept <= part.n_drafted
    logs = 1.0
    for part in forecast.parts.values():
        logs *= part.speedup
    assert forecast.speedup == pytest.approx(logs ** (1 / len(forecast.parts)))
    plain = forecast.to_dict()
    assert plain["tokens"] == forecast.tokens == sum(w["tokens"] for w in plain["workloads"].values())
    assert plain["acceptance"] == sum(p.n_right for p in forecast.parts.values()) / forecast.tokens
    assert json.loads(json.dumps(plain)) == plain


def test_a_better_draft_is_predicted_to_be_better():
    speedups = [forecast_of(worse(OWN, share)).speedup for share in (0.0, 0.2, 0.5, 1.0)]
    assert speedups == sorted(speedups, reverse=True)
    assert speedups[0] > 1.1 * speedups[-1]


def test_a_cheaper_draft_is_predicted_to_be_better():
    speedups = [forecast_of(OWN, share=share).speedup for share in (0.02, 0.1, 0.5)]
    assert speedups == sorted(speedups, reverse=True)


def test_without_a_draft_model_only_copies_gain():
    forecast = forecast_of(OWN, share=None)
    assert forecast.acceptance is None
    assert forecast.parts["edit"].acceptance is None
    assert forecast.parts["edit"].speedup > 1.2
    plain = forecast_of(OWN, share=None, copies=False)
    assert plain.speedup == pytest.approx(1.0)


def test_a_draft_model_that_is_always_wrong_costs_almost_nothing():
    """It is still tried now and then."""
    for machine in ("A Q8_0", "B Q4_K_M"):
        nothing = forecast_of(worse(OWN, 1.0), machine, 0.15).speedup
        assert nothing >= 0.97 * forecast_of(OWN, machine, None).speedup


def test_the_draft_models_prefill_is_part_of_the_cost():
    """A draft model that is slow for many ids gains less on a short text after a long prompt."""
    text = list(range(10, 40))
    short, long = ({"x": [Trace([5] * n, text, text, [0.99] * 30)]} for n in (4, 1500))
    assert forecast_of(short, copies=False).speedup > 1.5
    assert forecast_of(long, copies=False).speedup < forecast_of(short, copies=False).speedup


def test_empty_texts_give_no_figures():
    forecast = forecast_of({"x": [], "y": [Trace([1], [], [], [])]})
    assert (forecast.speedup, forecast.acceptance, forecast.parts) == (None, None, {})
    assert forecast.to_dict()["workloads"] == {}
    assert forecast_of({"x": [Trace([1, 2], [3], [3], [0.9])]}).speedup == pytest.approx(1.0)


def stepped(drafter: TraceHead, draft: list[int]) -> tuple[int | None, float]:
    """The next token after a draft, and the seconds of the step."""
    began = drafter.machine.now
    proposals = drafter.step({0: draft})
    return (proposals[0].token if proposals else None), drafter.machine.now - began


def test_a_simulated_head_evaluates_accepted_tokens_again():
    trace = Trace([1, 2, 3], [4, 5, 6, 7, 8], [4, 5, 6, 7, 9], [0.9] * 5)
    head = TraceHead(SimulatedClock(), float, n_kept=256)
    head.begin(0, trace, prefilled=True)
    assert [stepped(head, draft) for draft in ([], [4], [4, 5])] == [(4, 1), (5, 1), (6, 1)]
    head.committed(0, [4, 5, 6])
    assert head.cache_state(0).n_pending == 3
    assert stepped(head, []) == (7, 3)


def test_a_simulated_head_does_not_read_a_long_prompt():
    trace = Trace([5] * 1000, [4, 6], [4, 6], [0.9] * 2)
    head = TraceHead(SimulatedClock(), float, n_kept=256)
    head.begin(0, trace, prefilled=False)
    assert head.cache_state(0) == (0, 0, 256)  # as of a real head: what it never reads is not skipped
    assert stepped(head, []) == (4, 256)
    head.committed(0, [4])
    assert stepped(head, []) == (6, 1)


def test_a_simulated_block_costs_its_first_step():
    trace = Trace([1, 2, 3], [4, 5, 6, 7, 8], [4, 5, 6, 7, 9], [0.9] * 5)
    blocks = TraceBlocks(SimulatedClock(), float, 256, n_draft=2)
    blocks.begin(0, trace, prefilled=True)
    assert [stepped(blocks, draft) for draft in ([], [4], [4, 5])] == [(4, 2), (5, 0), (None, 0)]
    blocks.committed(0, [4, 5, 6])
    assert blocks.cache_state(0).n_pending == 4
    assert stepped(blocks, []) == (7, 4)


def test_a_block_is_predicted_to_be_better_than_a_head_of_the_same_step():
    speedups = []
    for draft in (partial(TraceHead, n_kept=256), partial(TraceBlocks, n_kept=256, n_draft=8)):
        forecast = Forecast(known("A f16"), steps(0.2), None, draft)
        for name, traces in OWN.items():
            for trace in traces:
                forecast.add(name, trace)
        speedups.append(forecast.speedup)
    assert speedups[1] > 1.05 * speedups[0]
