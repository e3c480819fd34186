"""What drafting is predicted to gain: recorded texts replayed by the planner, on costs that were measured.

The planner is the real one, the machine is simulated: the same texts and costs give the same figures. What a
round costs apart from its decode and the draft model is left out, which flatters targets of a few
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from typing import Any

from specllama.core.interfaces import Drafter
from specllama.core.policy.cost_curve import CostCurve, StepCosts
from specllama.core.policy.planner import Planner
from specllama.core.replay.simulator import Replay, Trace


@dataclass(slots=True)
class WorkloadForecast:
    """A workload so far. model: whether there is a draft model. n_right: tokens that it would have chosen
    too, the text before each given. plain, seconds: predicted for all its tokens, without drafts and with.
    n_drafted, n_accept: of the replay, whoever drafted.
    """

    model: bool
    tokens: int = 0
    n_right: int = 0
    plain: float = 0.0
    seconds: float = 0.0
    n_drafted: int = 0
    n_accept: int = 0

    @property
    def speedup(self) -> float:
        """Times plain decoding's speed."""
        return self.plain / self.seconds

    @property
    def acceptance(self) -> float | None:
        """The share of tokens that the draft model had right."""
        return self.n_right / self.tokens if self.model else None


class Forecast:
    """Of one draft, text by text; what is learnt in one serves the next, as in a process.

    costs: of the target's decodes. steps: of the draft model's, None without one. free: makes the drafter
    that copies, None without. The draft model has to read each prompt first.
    """

    def __init__(self, costs: CostCurve, steps: StepCosts | None, free: Callable[[], Drafter] | None) -> None:
        measured = costs.to_dict()
        machine = CostCurve.from_dict(measured)
        self._model, self._t1 = steps is not None, machine.predict(1)
        learnt = {"steps": steps.curve.to_dict()} if steps is not None else None
        self._session = Replay(
            lambda drafters, clock: Planner(drafters, clock, CostCurve.from_dict(measured), learnt),
            machine.predict,
            (lambda n: steps.predict(n, self._t1)) if steps is not None else None,
            free,
            prefilled=False,
        )
        self.parts: dict[str, WorkloadForecast] = {}

    def add(self, workload: str, trace: Trace) -> None:
        """Replay one more text of a workload; one without a token is left out."""
        if not trace.text:
            return
        done, part = (
            self._session.replay([trace]),
            self.parts.setdefault(workload, WorkloadForecast(self._model)),
        )
        part.tokens += done.tokens
        part.n_right += sum(d == t for d, t in zip(trace.draft, trace.text, strict=True))
        part.plain += done.tokens * self._t1
        part.seconds += done.seconds
        part.n_drafted += done.n_drafted
        part.n_accept += done.n_accept

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts.values())

    @property
    def speedup(self) -> float | None:
        """The geometric mean of the workloads', so that none counts more for its length."""
        logs = [log(part.speedup) for part in self.parts.values()]
        return exp(sum(logs) / len(logs)) if logs else None

    @property
    def acceptance(self) -> float | None:
        """Over all tokens; None without a draft model or texts."""
        if not self._model or not self.parts:
            return None
        return sum(part.n_right for part in self.parts.values()) / self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a front."""
        return {
            "speedup": self.speedup,
            "acceptance": self.acceptance,
            "tokens": self.tokens,
            "n_drafted": sum(part.n_drafted for part in self.parts.values()),
            "n_accept": sum(part.n_accept for part in self.parts.values()),
            "workloads": {name: _plain(part) for name, part in self.parts.items()},
        }


def _plain(part: WorkloadForecast) -> dict[str, Any]:
    return {
        "speedup": part.speedup,
        "acceptance": part.acceptance,
        "tokens": part.tokens,
        "n_drafted": part.n_drafted,
        "n_accept": part.n_accept,
    }
