"""The state that is learnt about the drafters of a loaded pair over all requests: how often their tokens are
right, and what a draft of a model or head is expected to bring.

The chance that a token is right is the mean of a Beta distribution for each bin of the drafter's confidence;
how often its first token falls into each bin, that of a Dirichlet distribution. Both together give the tokens
and the seconds of a round that uses it. Knows drafters by their attributes only; no models, no clock and no
files.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import NamedTuple

from specllama.core.interfaces import Drafter
from specllama.core.policy.base import SpeculationBudget
from specllama.core.policy.candidates import CandidateDraft, RoundBudget
from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number, numbers
from specllama.core.policy.cost_curve import CostCurve, RunLengths
from specllama.core.sequence import common_prefix

_MOST_STORED = 2.0  # times the prior: stored steps take no longer until one was measured in this process
_RARE = 1e-3  # least chance of a token, and of a wrong one
_DECIDES = log(100)  # log odds at which a stored table is given up, or kept for good
_ENOUGH = 256.0  # tokens after which it is kept for good
ALONE, COPY = 0, 1  # what a draft model or head competes with: no draft, or a copied one
_MAX_KEPT_BINS = 64  # most bins of a stored table whose drafter is not loaded


class AcceptanceTable:
    """The chance that a token is right, by bin: the mean of a Beta distribution with exponential forgetting.
    What was stored is given up where what is seen in this process is far more likely without it.

    priors: the chance of each bin before any observation. weight: the number of observations that the prior
    is worth. forget: weight of an observation one observation later.
    """

    def __init__(
        self,
        priors: Sequence[float],
        weight: float = DEFAULT.prior_weight,
        forget: float = DEFAULT.forget,
    ) -> None:
        self.priors, self.weight, self.forget = tuple(priors), weight, forget
        self._right = [0.0] * len(self.priors)
        self._seen = [0.0] * len(self.priors)
        self._counted = [(0.0, 0.0)] * len(self.priors)  # of each bin, in the two sums
        self._n_right = self._n_expected = 0.0
        self.chances = list(self.priors)
        self._rival: AcceptanceTable | None = None  # what this process alone has seen, until that decides
        self._evidence = 0.0  # log odds of the rival

    def observe(self, bin_: int, right: bool) -> None:
        """Count one drafted token; all tokens before it were right."""
        self.observe_run((bin_,), right)

    def observe_run(self, bins: Sequence[int], last: bool) -> None:
        """Count several tokens in a row, all of them right except possibly the last."""
        rival = self._rival
        if rival is not None:
            self._evidence += sum(
                _log_odds(rival.chances[bin_], self.chances[bin_], last or i < len(bins))
                for i, bin_ in enumerate(bins, 1)
            )
        if before := bins[:-1]:  # forgetting n observations sums up to a geometric series
            for bin_, n in Counter(before).items():
                kept = self.forget**n
                new = (1 - kept) / (1 - self.forget) if kept < 1 else n
                self._right[bin_] = self._right[bin_] * kept + new
                self._seen[bin_] = self._seen[bin_] * kept + new
                self._update(bin_)
        bin_ = bins[-1]
        self._right[bin_] = self._right[bin_] * self.forget + last
        self._seen[bin_] = self._seen[bin_] * self.forget + 1
        self._update(bin_)
        if rival is not None:
            rival.observe_run(bins, last)
            if self._evidence > _DECIDES:
                for name in ("_right", "_seen", "_counted", "_n_right", "_n_expected", "chances"):
                    setattr(self, name, getattr(rival, name))
            if abs(self._evidence) > _DECIDES or rival.n_seen > _ENOUGH:
                self._rival = None

    def _update(self, bin_: int) -> None:
        """Recompute the chances; priors count as far as the drafter's confidence was worth so far."""
        weight, n_right = self.weight, self._right[bin_] - self._counted[bin_][0]
        self._n_right += n_right
        self._n_expected += (self._seen[bin_] - self._counted[bin_][1]) * self.priors[bin_]
        self._counted[bin_] = self._right[bin_], self._seen[bin_]
        worth = min(1.0, (self._n_right + weight) / (self._n_expected + weight))
        for b, prior in enumerate(self.priors):
            self.chances[b] = (self._right[b] + weight * prior * worth) / (self._seen[b] + weight)

    @property
    def n_seen(self) -> float:
        """Total weight of the observations."""
        return sum(self._seen)

    @property
    def rate(self) -> float | None:
        """The share of right tokens, by weight; None without observations."""
        return sum(self._right) / self.n_seen if self.n_seen else None

    def to_dict(self) -> dict[str, list[float]]:
        """Plain data to be stored: right and seen by bin, rounded."""
        return {"right": [round(x, 3) for x in self._right], "seen": [round(x, 3) for x in self._seen]}

    def restore(self, data: object) -> bool:
        """Continue from what `to_dict` wrote; False, and nothing changes, where `data` is something else."""
        if not isinstance(data, Mapping):
            return False
        limit = 1.01 / (1 - self.forget)
        right, seen = (numbers(data.get(name), len(self.priors), 0, limit) for name in ("right", "seen"))
        if right is None or seen is None or any(r > s for r, s in zip(right, seen, strict=True)):
            return False
        self._right, self._seen = right, seen
        for bin_ in range(len(self.priors)):
            self._update(bin_)
        self._rival, self._evidence = AcceptanceTable(self.priors, self.weight, self.forget), 0.0
        return True


class StepCosts:
    """Seconds of a step of a draft model or head by the number of ids that it evaluates."""

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config, self.curve = config, CostCurve(config)

    def observe(self, n_ids: int, seconds: float) -> None:
        """Record a step of so many ids."""
        wide = max(1.0, n_ids / self.config.max_rows)
        self.curve.observe(min(n_ids, self.config.max_rows), seconds / wide)

    def predict(self, n_ids: int, t1: float) -> float:
        """Seconds of a step of `n_ids` ids now. t1: seconds of a target decode of one row, for the prior."""
        prior = self.config.step_prior * t1 * (1 + self.config.catch_up * (n_ids - 1))
        if not self.curve.known:
            return prior
        widest = self.config.max_rows
        seconds = self.curve.predict(min(n_ids, widest)) * max(1.0, n_ids / widest)
        return seconds if self.curve.seen else min(seconds, _MOST_STORED * prior)


class Expected(NamedTuple):
    """A round's expected tokens and seconds. most: tokens gained if all drafted ones were right."""

    tokens: float
    seconds: float
    most: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class RequestPosterior:
    """The figures of a drafter in one request, beyond those of all requests. first: as in `DrafterPosterior`.
    right, expected: tokens of its drafts that were right, and that were expected to be, with forgetting.
    """

    __slots__ = ("expected", "first", "right")

    def __init__(self, first: Sequence[Sequence[float]]) -> None:
        self.first = [list(weights) for weights in first]
        self.right = self.expected = 0.0

    def worth(self, weight: float) -> float:
        """The factor of chances in this request, at most 1. weight: of tokens as expected before any."""
        return min(1.0, (self.right + weight) / (self.expected + weight))


class DrafterPosterior:
    """The figures of a draft model or head over all requests. table: chance of a token by bin of its
    confidence, and place. next_token: of a token after an accepted one, by the bin of that one. first: by
    what the drafter competes with, how often its first token falls into each bin, the last one for no token.
    steps: times of its steps. explore: what drafts that are not expected to pay may lose, in t(1).
    """

    def __init__(self, table: AcceptanceTable, config: PolicyConfig = DEFAULT) -> None:
        c = self.config = config
        self.table, self.steps = table, StepCosts(c)
        self.next_token = AcceptanceTable(c.next_chances, c.prior_weight, c.forget)
        n = len(c.chances)
        self.first = [[1 / n] * n + [0.0] for _ in range(COPY + 1)]
        self.explore = c.explore_allowance

    def next_chance(self, bin_: int) -> float:
        """The chance of a token after an accepted one of this bin."""
        return self.next_token.chances[bin_ % len(self.config.chances)]

    def observe(
        self, draft: CandidateDraft, tokens: Sequence[int], name: str, kind: int, request: RequestPosterior
    ) -> None:
        """Compare a draft, which may contain forced tokens, with the committed tokens. kind: what it competed
        with. request: what is learnt of the drafter in this request.
        """
        n, before = len(self.config.chances), None
        first = next((b % n for b, s in zip(draft.bins, draft.sources, strict=True) if s == name), n)
        rates = (self.first[kind], self.config.pair_rate), (request.first[kind], self.config.request_rate)
        for weights, rate in rates:
            for bin_, weight in enumerate(weights):
                weights[bin_] = weight + rate * ((bin_ == first) - weight)
        for drafted, token, source, bin_ in zip(
            draft.tokens, tokens, draft.sources, draft.bins, strict=False
        ):
            if source == name:
                kept = 1 - self.config.request_rate
                request.expected = request.expected * kept + self.table.chances[bin_]
                request.right = request.right * kept + (drafted == token)
                self.table.observe(bin_, drafted == token)
                if before is not None:
                    self.next_token.observe(before % n, drafted == token)
            if drafted != token:
                return
            before = bin_ if source == name else None

    def round_with(
        self,
        request: RequestPosterior,
        kind: int,
        rest: tuple[int, float],
        free: tuple[int, float],
        budget: RoundBudget,
        step: float,
        rate: float,
    ) -> Expected:
        """The tokens and seconds expected of a round in which the drafter is used for a sequence: for each
        bin of the first token the number of tokens is verified that is best at `rate` tokens per second, or
        the model-free draft.

        kind: what the drafter competes with. rest: (rows, expected tokens) of the round without drafts of the
        sequence. free: (rows, expected tokens) that its model-free draft adds. step: seconds of a token.
        """
        rows, tokens = rest
        alone = budget.predict(rows)
        least = budget.predict(rows + free[0]) - alone, free[1]
        seconds, expected, table = step, 0.0, self.table.chances
        worth = request.worth(2 * self.config.prior_weight)
        end = min(rows + self.config.lookahead, budget.max_rows)
        more = [budget.predict(n) - alone + (n - rows - 1) * step for n in range(rows + 1, end + 1)]
        most = max((k - rate * extra for k, extra in enumerate(more, 1)), default=0.0) - rate * step
        for bin_, weight in enumerate(request.first[kind]):
            if not weight:
                continue
            took, accepted = least
            best = accepted - rate * took
            if bin_ < len(self.config.chances):
                path, gained, further = worth * table[bin_], 0.0, self.next_chance(bin_)
                for extra in more:
                    gained += path
                    path *= further
                    if gained - rate * extra > best:
                        best, took, accepted = gained - rate * extra, extra, gained
            seconds += weight * took
            expected += weight * accepted
        return Expected(tokens + expected, alone + seconds, most)

    def refill(self, seconds: float, t1: float) -> None:
        """A round took so long: drafts that are not expected to pay may lose a share of it. t1: seconds of a
        plain decode.
        """
        c = self.config
        self.explore = min(c.explore_allowance, self.explore + c.explore_share * seconds / t1)

    def to_dict(self) -> dict[str, object]:
        """Plain data to be stored."""
        return {
            "after": self.next_token.to_dict(),
            "first": [[round(x, 4) for x in weights] for weights in self.first],
            "steps": self.steps.curve.to_dict(),
            "explore": self.explore,
        }

    def restore(self, data: object) -> None:
        """Continue from what `to_dict` wrote; invalid parts are ignored."""
        if not isinstance(data, Mapping):
            return
        self.next_token.restore(data.get("after"))
        self.steps.curve = CostCurve.from_dict(data.get("steps"), self.config)
        stored = data.get("first")
        for kind, weights in enumerate(stored if isinstance(stored, list) else ()):
            known = numbers(weights, len(self.config.chances) + 1, 0, 1) if kind <= COPY else None
            if known is not None and (total := sum(known)) > 0:
                self.first[kind] = [x / total for x in known]
        if is_number(explore := data.get("explore")):
            most = self.config.explore_allowance
            self.explore = max(self.config.stored_explore, min(most, float(explore)))


class PairState:
    """The state of a loaded pair. tables: acceptance by drafter name, in bins of its confidence, repeated for
    each position in a draft that is learnt apart. models: by name, what else is learnt about a draft model or
    head. budget: what drafting may lose. runs: how many tokens of drafts are right in a row. What is stored
    about drafters that are not loaded is kept.
    """

    def __init__(self, drafters: Iterable[Drafter] = (), config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        drafters = list(drafters)
        self.tables = {d.name: self._table(d) for d in drafters}
        self._last_position = {d.name: d.n_positions - 1 for d in drafters}
        self.models = {
            d.name: DrafterPosterior(self.tables[d.name], config) for d in drafters if d.runs_model
        }
        self.budget = SpeculationBudget(config)
        self.runs = RunLengths(config), RunLengths(config)  # of sampled and of greedy texts
        self._kept: dict[str, object] = {}
        self._kept_models: dict[str, object] = {}

    def _table(self, drafter: Drafter) -> AcceptanceTable:
        c = self.config
        if drafter.prior is not None or drafter.runs_model:
            priors = drafter.prior if drafter.prior is not None else c.chances * drafter.n_positions
            return AcceptanceTable(priors, c.prior_weight, c.forget)
        return AcceptanceTable(c.chances, c.free_prior_weight, c.free_forget)

    def bin_of(self, name: str, confidence: float, n_before: int) -> int:
        """The bin of a token in the drafter's table. n_before: tokens before it in the draft."""
        position = min(n_before, self._last_position[name])
        return position * len(self.config.chances) + bisect(self.config.confidence_edges, confidence)

    def observe_model_free(self, draft: CandidateDraft, tokens: Sequence[int]) -> None:
        """Compare a model-free draft, verified or not, with the committed tokens."""
        n_right = common_prefix(draft.tokens, tokens)
        n = min(n_right + 1, len(draft.tokens), len(tokens))
        if n:
            self.tables[draft.sources[0]].observe_run(draft.bins[:n], n_right == n)

    def set_steps(self, name: str, steps: CostCurve) -> None:
        """Set the times of the steps of a drafter that need not be loaded."""
        kept = self._kept_models.setdefault(name, {})
        if isinstance(kept, dict):
            kept["steps"] = steps.to_dict()

    def to_dict(self) -> dict[str, object]:
        """Plain data to be stored."""
        return {
            "tables": self._kept | {name: table.to_dict() for name, table in self.tables.items()},
            "priced": self._kept_models | {name: one.to_dict() for name, one in self.models.items()},
            "credit": self.budget.credit,
            "runs": [runs.to_dict() for runs in self.runs],
        }

    def restore(self, data: object) -> None:
        """Continue from what `to_dict` wrote; invalid parts are ignored."""
        if not isinstance(data, Mapping):
            return
        stored = data.get("tables")
        known = stored if isinstance(stored, Mapping) else {}
        for name, table in self.tables.items():
            table.restore(known.get(name))
        self._kept = {n: data for n, data in known.items() if n not in self.tables and _is_table(data)}
        stored = data.get("priced")
        for name, state in stored.items() if isinstance(stored, Mapping) else ():
            if name in self.models:
                self.models[name].restore(state)
            elif isinstance(state, Mapping):
                self._kept_models[name] = dict(state)
        self.budget.restore(data.get("credit"))
        stored = data.get("runs")
        for runs, known in zip(self.runs, stored if isinstance(stored, list) else (), strict=False):
            runs.restore(known)


def _log_odds(one: float, other: float, right: bool) -> float:
    """By how much an outcome is more likely with the first chance than with the other."""
    one, other = (min(max(chance, _RARE), 1 - _RARE) for chance in (one, other))
    return log(one / other) if right else log((1 - one) / (1 - other))


def _is_table(data: object) -> bool:
    """Whether this is a stored acceptance table."""
    right = data.get("right") if isinstance(data, Mapping) else None
    n = len(right) if isinstance(right, list) else 0
    return 0 < n <= _MAX_KEPT_BINS and AcceptanceTable([0.5] * n, forget=DEFAULT.free_forget).restore(data)
