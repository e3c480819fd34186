"""The state that is learnt about the drafters of a loaded pair over all requests: how often their tokens
are right, and what a draft of a model or head is expected to bring.

The chance that a token is right is the mean of a Beta distribution for each bin of the drafter's
confidence; how often its first token falls into each bin, that of a Dirichlet distribution. Both
together give the tokens and the seconds of a round that uses it.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, log
from typing import NamedTuple

from specllama import wire
from specllama.core.interfaces import CachingDrafter, Drafter, Proposal
from specllama.core.policy.base import SpeculationBudget
from specllama.core.policy.candidates import CandidateDraft, RoundBudget, best_length
from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number, stored_counts
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
        stored = wire.stored(dict[str, object], data, {})
        counts = stored_counts(stored, self.forget)
        if counts is None or len(counts[0]) != len(self.priors):
            return False
        self._right, self._seen = counts
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
        stored, c = wire.stored(dict[str, object], data, {}), self.config
        self.next_token.restore(stored.get("after"))
        self.steps.curve = CostCurve.from_dict(stored.get("steps"), c)
        for kind, weights in enumerate(wire.stored(list[object], stored.get("first"), [])[: COPY + 1]):
            known = wire.stored(list[float], weights, [])
            if len(known) == len(c.chances) + 1 and all(0 <= x <= 1 for x in known) and (total := sum(known)):
                self.first[kind] = [x / total for x in known]
        if is_number(explore := stored.get("explore")):
            self.explore = max(c.stored_explore, min(c.explore_allowance, float(explore)))


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
        stored = wire.stored(dict[str, object], data, {})
        known = wire.stored(dict[str, object], stored.get("tables"), {})
        for name, table in self.tables.items():
            table.restore(known.get(name))
        self._kept = {n: data for n, data in known.items() if n not in self.tables and _is_table(data)}
        for name, state in wire.stored(dict[str, object], stored.get("priced"), {}).items():
            if name in self.models:
                self.models[name].restore(state)
            elif isinstance(state, dict):
                self._kept_models[name] = state
        self.budget.restore(stored.get("credit"))
        for runs, of_runs in zip(self.runs, wire.stored(list[object], stored.get("runs"), []), strict=False):
            runs.restore(of_runs)


def _log_odds(one: float, other: float, right: bool) -> float:
    """By how much an outcome is more likely with the first chance than with the other."""
    one, other = (min(max(chance, _RARE), 1 - _RARE) for chance in (one, other))
    return log(one / other) if right else log((1 - one) / (1 - other))


def _is_table(data: object) -> bool:
    """Whether this is a stored acceptance table."""
    counts = stored_counts(wire.stored(dict[str, object], data, {}), DEFAULT.free_forget)
    return counts is not None and len(counts[0]) <= _MAX_KEPT_BINS


# The drafters whose tokens cost decodes, draft models and heads: what one has to evaluate before its first
# token, and the loop that drafts token by token.
#
# Whether a draft pays is decided in planner.py, by posterior.py; here its confidence decides how long it
# gets.


class CatchUp(NamedTuple):
    """The work of a drafter for its first token. n_pending: ids, 0 where it must not be used. seconds:
    their cost beyond one step. restart: number of last ids to restart the cache with; None: no restart.
    """

    n_pending: int
    seconds: float = 0.0
    restart: int | None = None


NO_CATCH_UP = CatchUp(1)


class ModelBased:
    """A drafter whose tokens cost decodes. posterior: what is learnt about it. caching: the same drafter if
    it has a cache, else None. is_head: whether it reads the target's hidden states.
    """

    def __init__(self, drafter: Drafter, learnt: PairState, clock: Callable[[], float]) -> None:
        self.drafter, self.name, self.learnt = drafter, drafter.name, learnt
        self.posterior: DrafterPosterior = learnt.models[drafter.name]
        self.steps = self.posterior.steps
        self.clock, self.config = clock, learnt.config
        self.caching = drafter if isinstance(drafter, CachingDrafter) else None
        self.is_head = drafter.reads_features
        self._in_blocks = drafter.drafts_blocks

    def catch_up(self, seq: int, t1: float, credit: float, seconds: float, *, alone: bool = True) -> CatchUp:
        """The work before its first token. t1: seconds of a plain decode. credit: what may be lost, in t1.
        seconds: what this round can spend on drafting. alone: whether no other sequence waits for this round.

        Of a prompt that is missing from its cache, only as much of the end as half of the credit and this
        round's budget can pay for; all of it once the gains of drafting do. A head evaluates less, as it
        needs less.
        """
        if self.caching is None:
            return NO_CATCH_UP
        state, step, c = self.caching.cache_state(seq), self.steps.predict, self.config
        one, credit, n = step(1, t1), credit * t1, sum(state)
        stall = inf if alone else c.max_stall
        if state.n_skipped and step(n, t1) < min(credit - c.allowance * t1, stall):
            return CatchUp(n, 0.0, n)
        most = min(credit / 2, seconds, stall)
        n, least = state.n_pending, c.min_tail
        if self.is_head:
            most, least = one + c.head_catch_up * t1, c.head_min_tail
        if (state.n_held and step(n, t1) <= stall) or n <= least or step(n, t1) <= most:
            return CatchUp(n, step(n, t1) - one)
        while n >= least and step(n, t1) > most:
            n //= 2
        if self.is_head:
            n = max(n, least)
        return CatchUp(n, step(n, t1) - one, n) if n >= least else CatchUp(0)

    def restart(self, seq: int, catch_up: CatchUp) -> None:
        """Restart the sequence's cache if catching up requires it."""
        if catch_up.restart is not None and self.caching is not None:
            self.caching.restart_from_tail(seq, catch_up.restart)

    def extend_drafts(
        self,
        forcing: Drafter | None,
        drafts: Mapping[int, CandidateDraft],
        limits: Mapping[int, int],
        rest: Mapping[int, tuple[int, float]],
        budget: RoundBudget,
        n_pending: int,
        t1: float,
    ) -> None:
        """Extend each draft while that may increase the round's rate, at most to its limit.

        forcing: the drafter of forced tokens, which are added without a step of the model. rest: by sequence,
        rows of the round and tokens expected from it without its own draft. n_pending: ids that the first
        step evaluates. t1: seconds of a plain decode. Adds the time to `budget.spent`.
        """
        open_, in_block = set(drafts), False
        best = dict.fromkeys(drafts, 0)  # the length with the best rate
        name, chances, steps = self.name, self.posterior.table.chances, self.steps
        while open_:
            if forcing is not None:
                open_ = self._force(forcing, drafts, limits, open_)
                if not open_:
                    return
            step_drafts = {seq: drafts[seq].tokens for seq in drafts if seq in open_}
            proposals, took = self._step(step_drafts, 0 if in_block else n_pending)
            budget.spent += took
            n_pending, in_block = len(open_), self._in_blocks
            for seq in list(open_):
                draft, proposal = drafts[seq], proposals.get(seq)
                if proposal is not None:
                    bin_ = self.learnt.bin_of(name, proposal.confidence, len(draft.tokens))
                    draft.add(proposal.token, name, bin_, chances[bin_])
                    draft.add_branch(len(draft.tokens) - 1, name, proposal.other)
                    if len(draft.tokens) < limits[seq]:
                        best[seq], rate = best_length(draft.expected, budget, *rest[seq], best[seq])
                        step = 0.0 if in_block else steps.predict(len(open_), t1)
                        next_chance = self.posterior.next_chance(bin_)
                        if self._may_gain(draft, next_chance, rate, *rest[seq], budget, step):
                            continue
                open_.discard(seq)

    def _step(self, drafts: Mapping[int, Sequence[int]], n_ids: int) -> tuple[dict[int, Proposal], float]:
        """One more token for each draft, and the seconds. n_ids: that the step evaluates, 0 for none."""
        begun = self.clock()
        proposals = self.drafter.step(drafts)
        took = self.clock() - begun
        if n_ids:
            self.steps.observe(n_ids, took)
        return proposals, took

    def extend(self, seq: int, draft: CandidateDraft, n_ids: int) -> bool:
        """Add one more token to a draft, whatever it may gain; False where there is none."""
        proposal = self._step({seq: draft.tokens}, n_ids)[0].get(seq)
        if proposal is not None:
            bin_ = self.learnt.bin_of(self.name, proposal.confidence, len(draft.tokens))
            draft.add(proposal.token, self.name, bin_, self.posterior.table.chances[bin_])
        return proposal is not None

    def _force(
        self,
        forcing: Drafter,
        drafts: Mapping[int, CandidateDraft],
        limits: Mapping[int, int],
        open_: set[int],
    ) -> set[int]:
        """Add the tokens that are forced next; returns the sequences that have not reached their limits."""
        forced, chance = set(open_), self.learnt.tables[forcing.name].chances[0]
        while forced:
            proposals = forcing.step({seq: drafts[seq].tokens for seq in drafts if seq in forced})
            for seq, proposal in proposals.items():
                drafts[seq].add(proposal.token, forcing.name, 0, chance)
            forced = {seq for seq in proposals if len(drafts[seq].tokens) < limits[seq]}
        return {seq for seq in open_ if len(drafts[seq].tokens) < limits[seq]}

    def _may_gain(
        self,
        draft: CandidateDraft,
        next_chance: float,
        top: float,
        rows: int,
        tokens: float,
        budget: RoundBudget,
        step: float,
    ) -> bool:
        """Whether some of the next tokens could raise the round's rate above `top`, the best so far, if
        need be beyond a step of the cost curve. next_chance: of a token after an accepted last one. step:
        seconds of one more token.
        """
        n, spent, scale = rows + len(draft.tokens), budget.spent, budget.scale
        chance = 1 - self.config.risk_share * (1 - next_chance)
        path, expected = draft.path_probs[-1], tokens + draft.expected[-1]
        end = min(n + self.config.lookahead, budget.max_rows) + 1
        for q, took in enumerate(budget.seconds[n + 1 : end], 1):
            path *= chance
            expected += path
            if expected / (took * scale + spent + q * step) > top:
                return budget.allows(n + q, q * step)
        return False
