"""Recording a trace, and the speedup predicted for drafting: the planner replays recorded texts at measured
costs.

The planner is the real one, the machine is simulated: the same texts and costs give the same figures. The
costs of a round other than its decode and the draft model are ignored, so speedups of targets that decode in
a few milliseconds are overestimated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np

from specllama.core.interfaces import BatchRow, Context, Drafter, Proposal
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.policy.posterior import StepCosts
from specllama.core.replay.simulator import GREEDY, WRONG, MakeDraft, Replay, Trace, TraceDrafter
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.proposal import propose
from specllama.core.sampling.sampler import KeyedSampler

# Recording a trace: the target's text, and the choice of a draft model or a head at each of its positions.
#
# Target and draft sample by the same rule with the same seed (sampling/sampler.py). The draft is
# teacher-forced: it reads the target's text, not its own choices.


def write_text(
    target: Context,
    prompt: Sequence[int],
    n_max: int,
    end_ids: Collection[int],
    params: SamplingParams = GREEDY,
    seed: int = 0,
) -> list[int]:
    """The ids that the target writes after the prompt, at most `n_max`, an end id included."""
    target.truncate(0, 0)
    ids, sampler = list(prompt), KeyedSampler(params, seed, target.n_vocab)
    row = _evaluate(target, ids, 0)
    n_max = min(n_max, target.n_ctx - len(prompt))
    while len(ids) < len(prompt) + n_max:
        ids.append(sampler.choose(row, ids).token)
        if ids[-1] in end_ids or len(ids) >= target.n_ctx:
            break
        row = target.decode([BatchRow(ids[-1], len(ids) - 1, 0, True)])[0].copy()
    return ids[len(prompt) :]


def record(
    prompt: Sequence[int],
    text: Sequence[int],
    draft: Context,
    params: SamplingParams = GREEDY,
    seed: int = 0,
) -> Trace:
    """The trace of `text`: the draft model's choices, first and second, and their full-softmax probabilities
    at every position; WRONG with probability 0 after an id that is not in its vocabulary and where its
    context is full. params, seed: those with which the text was written.
    """
    draft.truncate(0, 0)
    sampler = KeyedSampler(params, seed, draft.n_vocab)
    ids, choices = [*prompt, *text], _Choices()
    known = next((i for i, token in enumerate(ids) if token >= draft.n_vocab), len(ids))
    at, end = len(prompt) - 1, min(known, draft.n_ctx, len(ids) - 1)
    if at < end:
        _evaluate(draft, ids[:at], 0, last=False)
    while at < end:
        chunk = ids[at : min(at + draft.n_outputs_max, end)]
        rows = draft.decode([BatchRow(token, at + i, 0, True) for i, token in enumerate(chunk)])
        for row in rows:
            at += 1
            choices.add(propose(sampler, row, ids[:at], alternatives=True))
    while len(choices.first) < len(text):
        choices.add(None)
    return choices.trace(prompt, text)


def record_steps(
    prompt: Sequence[int],
    text: Sequence[int],
    drafter: Drafter,
    n_vocab: int,
    params: SamplingParams = GREEDY,
    seed: int = 0,
    target: Context | None = None,
    n_ahead: int = 1,
) -> Trace:
    """The trace of `text` as in `record`, by steps of a drafter: for a draft that has other tokens than the
    text, and for a head, which reads the target's features. n_vocab: of the target. target: evaluated again
    for these, `n_ahead` tokens of the text at a time: 1 for a head that reads its cache.

    Every choice of a head is that of a draft's first token, made from the target's own hidden states; further
    tokens of a draft are right less often than the trace says. Raises DecodeError, NoRoomError.
    """
    ids, choices = [*prompt, *text], _Choices(drafter)
    at = len(prompt) - 1  # tokens in the target's cache
    if target is not None:
        target.truncate(0, 0)
        if at:
            _evaluate(target, ids[:at], 0)
    drafter.start(0, prompt, KeyedSampler(params, seed, n_vocab))
    for i, token in enumerate(text):
        if target is not None and at < len(prompt) + i - 1:
            chunk = ids[at : min(at + n_ahead, len(ids) - 2)]
            _evaluate(target, chunk, at)
            at += len(chunk)
        choices.add(drafter.step({0: []}).get(0))
        drafter.committed(0, [token])
    drafter.forget(0)
    return choices.trace(prompt, text)


class _Choices:
    """The choices of a draft so far, first and second. drafter: is asked for second ones, where it can."""

    def __init__(self, drafter: Drafter | None = None) -> None:
        self.first: list[tuple[int, float]] = []
        self._second: list[tuple[int, float]] = []
        if drafter is not None:
            drafter.with_alternatives = True

    def add(self, proposal: Proposal | None) -> None:
        """Add what was proposed, None for nothing."""
        other = proposal.other if proposal is not None else None
        self.first.append((proposal.token, round(proposal.confidence, 4)) if proposal else (WRONG, 0.0))
        self._second.append((other.tokens[0], round(other.confidence, 4)) if other else (WRONG, 0.0))

    def trace(self, prompt: Sequence[int], text: Sequence[int]) -> Trace:
        """The trace of a text, with second candidates where there are any."""
        lists = [list(column) for one in (self.first, self._second) for column in zip(*one, strict=True)]
        draft, conf, second, second_conf = lists or ([], [], [], [])
        if all(token == WRONG for token in second):
            second, second_conf = [], []
        return Trace(list(prompt), list(text), draft, conf, second, second_conf)


def _evaluate(context: Context, ids: Sequence[int], n_past: int, last: bool = True) -> np.ndarray:
    rows = np.zeros((0, 0), np.float32)
    for begin in range(0, len(ids), context.n_batch):
        chunk = ids[begin : begin + context.n_batch]
        end = begin + len(chunk) == len(ids)
        rows = context.decode(
            [
                BatchRow(token, n_past + begin + i, 0, last and end and i == len(chunk) - 1)
                for i, token in enumerate(chunk)
            ]
        )
    return rows[-1].copy() if last else rows


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
        figures = ("speedup", "acceptance", "tokens", "n_drafted", "n_accept")
        return {
            "speedup": self.speedup,
            "acceptance": self.acceptance,
            "tokens": self.tokens,
            "n_drafted": sum(part.n_drafted for part in self.parts.values()),
            "n_accept": sum(part.n_accept for part in self.parts.values()),
            "workloads": {
                name: {figure: getattr(part, figure) for figure in figures}
                for name, part in self.parts.items()
            },
        }
