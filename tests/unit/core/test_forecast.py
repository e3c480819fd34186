"""What a draft is predicted to gain: recorded texts on made-up costs, the same each time."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.replay.hindsight import MACHINES
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve, StepCosts
from specllama.core.replay.forecast import Forecast
from specllama.core.replay.simulator import WRONG, Trace
from specllama.drafters.copy import CopyDrafter

T1 = 0.05
TRACES = json.loads((Path(__file__).parent / "traces" / "pydoc.json").read_text())
OWN = {name: [Trace.from_dict(t) for t in traces] for name, traces in TRACES.items()}


def known(machine: str) -> CostCurve:
    points = MACHINES[machine].items()
    return CostCurve.from_dict({"widths": [[n, T1 * x, DEFAULT.min_samples] for n, x in points]})


def steps(share: float) -> StepCosts:
    """A step of an id takes this share of t(1), further ones a third of that each."""
    found = StepCosts()
    points = [[n, T1 * share * (1 + (n - 1) / 3), DEFAULT.min_samples] for n in (1, 2, 4, 8, 16, 32, 64)]
    found.curve = CostCurve.from_dict({"widths": points})
    return found


def foretold(
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
    """The same with a draft that is wrong at a share of its positions, and as sure of itself."""
    rng = random.Random(1)
    spoilt = lambda t: replace(t, draft=[WRONG if rng.random() < share else d for d in t.draft])  # noqa: E731
    return {name: [spoilt(t) for t in traces] for name, traces in texts.items()}


def test_it_is_determined_by_texts_and_costs():
    assert foretold(OWN).to_dict() == foretold(OWN).to_dict()


def test_the_figures_are_those_of_the_texts():
    found = foretold(OWN)
    for name, traces in OWN.items():
        part, n = found.parts[name], sum(len(t.text) for t in traces)
        assert part.tokens == n
        assert part.plain == pytest.approx(n * T1)
        assert part.n_right == sum(d == t for x in traces for d, t in zip(x.draft, x.text, strict=True))
        assert 0 < part.n_accept <= part.n_drafted
    logs = 1.0
    for part in found.parts.values():
        logs *= part.speedup
    assert found.speedup == pytest.approx(logs ** (1 / len(found.parts)))
    plain = found.to_dict()
    assert plain["tokens"] == found.tokens == sum(w["tokens"] for w in plain["workloads"].values())
    assert plain["acceptance"] == sum(p.n_right for p in found.parts.values()) / found.tokens
    assert json.loads(json.dumps(plain)) == plain


def test_a_better_draft_is_predicted_to_be_better():
    speedups = [foretold(worse(OWN, share)).speedup for share in (0.0, 0.2, 0.5, 1.0)]
    assert speedups == sorted(speedups, reverse=True)
    assert speedups[0] > 1.1 * speedups[-1]


def test_a_cheaper_draft_is_predicted_to_be_better():
    found = [foretold(OWN, share=share).speedup for share in (0.02, 0.1, 0.5)]
    assert found == sorted(found, reverse=True)


def test_copying_alone():
    found = foretold(OWN, share=None)
    assert found.acceptance is None
    assert found.parts["edit"].acceptance is None
    assert found.parts["edit"].speedup > 1.2
    nobody = foretold(OWN, share=None, copies=False)
    assert nobody.speedup == pytest.approx(1.0)


def test_a_draft_that_knows_nothing_costs_next_to_nothing():
    """Beside copying, it is looked at now and then."""
    for machine in ("A Q8_0", "B Q4_K_M"):
        nothing = foretold(worse(OWN, 1.0), machine, 0.15).speedup
        assert nothing >= 0.97 * foretold(OWN, machine, None).speedup


def test_the_prompt_has_to_be_read():
    """A draft whose steps are dear for many ids gains less on a short text behind a long prompt."""
    text = list(range(10, 40))
    short, long = ({"x": [Trace([5] * n, text, text, [0.99] * 30)]} for n in (4, 1500))
    assert foretold(short, copies=False).speedup > 1.5
    assert foretold(long, copies=False).speedup < foretold(short, copies=False).speedup


def test_where_there_is_nothing_to_replay():
    found = foretold({"x": [], "y": [Trace([1], [], [], [])]})
    assert (found.speedup, found.acceptance, found.parts) == (None, None, {})
    assert found.to_dict()["workloads"] == {}
    assert foretold({"x": [Trace([1, 2], [3], [3], [0.9])]}).speedup == pytest.approx(1.0)
