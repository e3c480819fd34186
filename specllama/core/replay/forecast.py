"""The speedup predicted for drafting: the planner replays recorded texts at measured costs.

The planner is the real one, the machine is simulated: the same texts and costs give the same figures. The
costs of a round other than its decode and the draft model are ignored, so speedups of targets that decode in
a few milliseconds are overestimated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from typing import Any

from specllama.core.interfaces import Drafter
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.policy.posterior import StepCosts
from specllama.core.replay.simulator import MakeDraft, Replay, Trace, TraceDrafter


@dataclass(slots=True)
class WorkloadForecast:
    """The texts of a workload so far. model: whether there is a draft model. n_right: tokens that it would
    have chosen as well, given the text before each. plain, seconds: predicted seconds for all tokens, without
    and with drafts. n_drafted, n_accept: of the replay, by all drafters.
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
        """Predicted speed relative to plain decoding."""
        return self.plain / self.seconds

    @property
    def acceptance(self) -> float | None:
        """The share of tokens that the draft model would have chosen; None without one."""
        return self.n_right / self.tokens if self.model else None


class Forecast:
    """The forecast for one draft, built text by text; the planner keeps what it learns, as in one process.

    costs: of the target's decodes. steps: of the draft's, None without one. free: makes the copy drafter;
    None: no copies. draft: see `Replay`. The draft's prefill of each prompt is part of the cost.
    """

    def __init__(
        self,
        costs: CostCurve,
        steps: StepCosts | None,
        free: Callable[[], Drafter] | None,
        draft: MakeDraft = TraceDrafter,
    ) -> None:
        measured = costs.to_dict()
        simulated = CostCurve.from_dict(measured)
        self._model, self._t1 = steps is not None, simulated.predict(1)

        def planner(drafters: list[Drafter], clock: Callable[[], float]) -> Planner:
            learnt = None
            if steps is not None:
                stored = {"steps": steps.curve.to_dict()}
                learnt = {"priced": {d.name: stored for d in drafters if d.runs_model}}
            return Planner(drafters, clock, CostCurve.from_dict(measured), learnt)

        self._replay = Replay(
            planner,
            simulated.predict,
            (lambda n: steps.predict(n, self._t1)) if steps is not None else None,
            free,
            prefilled=False,
            draft=draft,
        )
        self.parts: dict[str, WorkloadForecast] = {}

    def add(self, workload: str, trace: Trace) -> None:
        """Replay one more text of a workload; an empty text is ignored."""
        if not trace.text:
            return
        done = self._replay.replay([trace])
        part = self.parts.setdefault(workload, WorkloadForecast(self._model))
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
        """The geometric mean over the workloads, whatever their lengths; None without texts."""
        logs = [log(part.speedup) for part in self.parts.values()]
        return exp(sum(logs) / len(logs)) if logs else None

    @property
    def acceptance(self) -> float | None:
        """The draft model's acceptance over all tokens; None without a draft model or texts."""
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
