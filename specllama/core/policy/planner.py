"""Deciding what to draft: by measured time, by learnt acceptance, and within the speculation budget.

Knows drafters by their interface and time by the clock passed in. `Planner` is the policy. The cost of
decodes is in cost_curve.py, acceptance in acceptance.py, how much of a candidate to verify in candidates.py,
when to use the draft model in model_draft.py, what may still be lost in budget.py.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from specllama.core.heads import FeatureReader
from specllama.core.interfaces import CachingDrafter, Drafter, Mask, Sampler, SpanDrafter
from specllama.core.policy.acceptance import ALONE, PairState
from specllama.core.policy.base import Draft, PolicyBase, Round, VerifyResult
from specllama.core.policy.candidates import (
    CandidateDraft,
    RoundBudget,
    best_affordable_length,
    rows_and_tokens,
    select_drafts,
)
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.model_draft import DraftGate, ModelDraftLoop, gate_kind, prior_gains
from specllama.core.stats import OfferStats

NO_DRAFT = CandidateDraft()  # between two rounds; never extended


class CatchUp(NamedTuple):
    """What the draft model evaluates for its first token. n_pending: ids, 0 where it must not be used.
    seconds: their cost beyond one step. restart: number of last ids to restart the cache with; None: no
    restart.
    """

    n_pending: int
    seconds: float = 0.0
    restart: int | None = None


NO_CATCH_UP = CatchUp(1)


class SequencePlan:
    """One sequence: its draft gate and the round in progress. free: the model-free candidate. n_free:
    tokens of it that would be verified without the model. modelled: the model's candidate, None where the
    model was not used.
    """

    __slots__ = ("catch_up", "free", "gate", "kind", "modelled", "n_free")

    def __init__(self) -> None:
        self.gate: DraftGate | None = None  # made in the first round in which the model could be used
        self.begin(CandidateDraft())

    def begin(self, free: CandidateDraft) -> None:
        """A round starts with this model-free candidate."""
        self.free, self.n_free = free, 0
        self.modelled: CandidateDraft | None = None
        self.kind, self.catch_up = ALONE, NO_CATCH_UP


class Planner(PolicyBase):
    """Drafts the tokens predicted to give the most tokens per second; none where plain decoding is fastest.

    clock: the engine's, in seconds. costs: times of the target's decodes, refined in place. learnt: the
    result of `PairState.to_dict` in an earlier process with the same pair; anything else is ignored. Drafters
    that neither cost a decode nor force tokens are tried in turn.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        clock: Callable[[], float],
        costs: CostCurve | None = None,
        learnt: object = None,
        config: PolicyConfig = DEFAULT,
    ) -> None:
        self.clock, self.config = clock, config
        super().__init__(drafters)
        self.learnt = PairState(drafters, config)
        self.learnt.restore(learnt)
        self.budget = self.learnt.budget
        self._loop = ModelDraftLoop(clock, self.learnt, config)
        self._plans: dict[int, SequencePlan] = {}
        self._offers: dict[int, OfferStats] = {}  # of the last request of each sequence, ended or not
        self._free_rate = 0.0  # tokens per second of the best round without the model
        self.use_costs(costs if costs is not None else CostCurve(config))

    def _set_drafters(self, drafters: Sequence[Drafter]) -> None:
        super()._set_drafters(drafters)
        self._free = [d for d in drafters if not d.priced and not d.forces]
        self._spans = {d.name: d.propose for d in self._free if isinstance(d, SpanDrafter)}
        self._caching = self.model if isinstance(self.model, CachingDrafter) else None
        self._head = isinstance(self.model, FeatureReader)

    def use_costs(self, costs: CostCurve) -> None:
        """Use another cost curve from the next round on, that of another context length."""
        self.costs = costs
        rows = self.config.max_rows
        self._round = RoundBudget(costs.table(), costs.scale, costs.upper_bound, 0.0, rows)

    # Sequences

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler,
        mask: Mask | None = None,
        memory_scope: str | None = "",
        cache_scope: str = "",
    ) -> None:
        super().start(seq_id, prompt, sampler, mask, memory_scope, cache_scope)
        self._plans.pop(seq_id, None)
        self._offers[seq_id] = OfferStats()

    def forget(self, seq_id: int) -> None:
        super().forget(seq_id)
        self._plans.pop(seq_id, None)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Compare the candidates, verified or not, with the committed tokens."""
        super().committed(seq_id, tokens)
        plan = self._plans.get(seq_id)
        if plan is None:
            return
        if plan.free.tokens:
            self.learnt.observe_model_free(plan.free, tokens)
        if plan.modelled is not None and self.model is not None:
            self.learnt.observe_model(plan.modelled, tokens, self.model.name)
        self._offers.setdefault(seq_id, OfferStats()).count(plan.free, plan.modelled, tokens)

    def offer_stats(self, seq_id: int) -> OfferStats:
        """Statistics of the candidates of the sequence's last request, which may have ended."""
        return self._offers.get(seq_id, OfferStats())

    # Drafting

    def predict(self, n_rows: int) -> float:
        return self.costs.predict(n_rows)

    def draft(self, rooms: Mapping[int, int], seconds: float = inf) -> dict[int, Draft]:
        budget, costs, active = self._round, self.costs, len(rooms)
        budget.spent, budget.seconds, budget.scale = 0.0, costs.table(), costs.scale
        affordable = costs.predict(active) + self.budget.max_round_loss * costs.predict(1)
        budget.max_seconds = min(affordable, seconds)
        candidates = {}
        for seq, room in rooms.items():
            plan = self._plans.get(seq)
            if plan is None:
                plan = self._plans[seq] = SequencePlan()
            candidates[seq] = self._model_free(seq, min(room, budget.max_rows - active), active)
            plan.begin(candidates[seq])
        if self.model is None and not any(candidate.tokens for candidate in candidates.values()):
            return {}
        may_draft = costs.count(active) > 0 and self.budget.credit > 0 and active < budget.max_rows
        if not may_draft or self.budget.plain_due or costs.scale_uncertain:
            return {}
        counts = select_drafts(candidates, budget, active)
        rows, tokens = rows_and_tokens(candidates, counts, list(rooms))
        self._free_rate = budget.rate(active + tokens, active + rows)
        for seq, n in counts.items():
            self._plans[seq].n_free = n
        if self._use_model(rooms, candidates, counts):
            counts = select_drafts(candidates, budget, active)
        drafts = ((seq, self._draft_of(seq, candidates[seq], counts[seq])) for seq in rooms)
        return {seq: draft for seq, draft in drafts if draft is not None}

    def _draft_of(self, seq: int, candidate: CandidateDraft, n: int) -> Draft | None:
        modelled = self._plans[seq].modelled
        sources, n_discarded = candidate.sources[:n], 0
        if modelled is not None and self.model is not None:
            name = self.model.name
            n_discarded = modelled.sources.count(name)
            n_discarded -= sources.count(name) if modelled is candidate else 0
        return Draft(candidate.tokens[:n], sources, n_discarded) if n or n_discarded else None

    def _model_free(self, seq: int, room: int, active: int) -> CandidateDraft:
        """The candidate that costs no decode: forced tokens, else the draft of the first free drafter with
        one.
        """
        candidate, c = CandidateDraft(), self.config
        if (forcing := self.forcing) is not None:
            chance = self.learnt.tables[forcing.name].chances[0]
            while len(candidate.tokens) < room and (got := forcing.step({seq: candidate.tokens})):
                candidate.add(got[seq].token, forcing.name, 0, chance)
            candidate.forced = bool(candidate.tokens)
        for drafter in self._free:
            if candidate.tokens:
                break
            self._extend(drafter, seq, min(c.free_chunk, room), candidate)
            n = len(candidate.tokens)
            if c.free_chunk <= n < room and self.costs.known:
                used, _ = best_affordable_length(candidate.expected, self._round, active, active)
                if n - used <= c.chunk_margin:
                    self._extend(drafter, seq, room, candidate)
        return candidate

    def _extend(self, drafter: Drafter, seq: int, limit: int, candidate: CandidateDraft) -> None:
        """Extend the candidate to at most `limit` tokens, as far as the drafter has proposals."""
        propose = self._spans.get(drafter.name)
        while (n := len(candidate.tokens)) < limit:
            run = propose(seq, limit)[n:] if propose else [*drafter.step({seq: candidate.tokens}).values()]
            if run:
                chances, edges = self.learnt.tables[drafter.name].chances, self.config.confidence_edges
                bins = [bisect(edges, proposal.confidence) for proposal in run]
                tokens = [proposal.token for proposal in run]
                candidate.extend(tokens, drafter.name, bins, [chances[bin_] for bin_ in bins])
            if propose or not run:
                return

    # The draft model

    def _use_model(
        self, rooms: Mapping[int, int], candidates: dict[int, CandidateDraft], counts: dict[int, int]
    ) -> bool:
        """Use the draft model where that should pay, and replace `candidates` by its drafts where these are
        better; returns whether it was used. counts: tokens of each candidate that would be verified without
        it.
        """
        model, budget, active = self.model, self._round, len(rooms)
        if model is None:
            return False
        t1, step = self.costs.predict(1), self.learnt.steps.predict
        limits, n_pending = {}, 0
        for seq, room in rooms.items():
            plan = self._plans[seq]
            plan.kind = gate_kind(candidates[seq], counts[seq], self.config)
            if room <= 0:
                continue
            if plan.gate is None:
                prior = prior_gains(self.costs.predict, step(1, t1), self.config)
                plan.gate = DraftGate(self.learnt.gain, prior, self.config, self._head)
            plan.catch_up = catch_up = self._catch_up(seq, t1, active)
            if catch_up.n_pending and plan.gate.should_draft(plan.kind, catch_up.seconds / t1):
                limits[seq] = min(room, self.config.max_model_draft, budget.max_rows - active)
                n_pending += catch_up.n_pending
        if not limits or not budget.allows(active + 1, step(n_pending, t1)):
            return False
        drafts, rest = {}, {}
        for seq in limits:
            plan = self._plans[seq]
            assert plan.gate is not None
            plan.gate.record_use(plan.kind)
            if plan.catch_up.restart is not None and self._caching is not None:
                self._caching.restart_from_tail(seq, plan.catch_up.restart)
            rows, tokens = rows_and_tokens(candidates, counts, [other for other in rooms if other != seq])
            rest[seq] = active + rows, active + tokens
            drafts[seq] = CandidateDraft()
        self._loop.extend_drafts(model, self.forcing, drafts, limits, rest, budget, n_pending, t1)
        for seq, draft in drafts.items():
            self._plans[seq].modelled = draft  # set after the loop, which may raise
            without = self._rate_of(candidates[seq], counts[seq], rest[seq])
            if best_affordable_length(draft.expected, budget, *rest[seq])[1] > without:
                candidates[seq] = draft
        return True

    def _rate_of(self, candidate: CandidateDraft, n: int, rest: tuple[int, float]) -> float:
        """The round's rate with the candidate's first n tokens, without them where the round can no longer
        afford them.
        """
        rows, tokens = rest
        if n and not self._round.allows(rows + n):
            n = 0
        return self._round.rate(tokens + candidate.expected_accepted(n), rows + n)

    def _catch_up(self, seq: int, t1: float, active: int) -> CatchUp:
        """What the model evaluates first. Of a prompt that is missing from its cache, only as much of the end
        as half of the credit and this round's budget can pay for; all of it once the gains of drafting do. A
        head evaluates less, as it needs less.
        """
        if self._caching is None:
            return NO_CATCH_UP
        state, step, c = self._caching.cache_state(seq), self.learnt.steps.predict, self.config
        one, credit, n = step(1, t1), self.budget.credit * t1, sum(state)
        if state.n_skipped and step(n, t1) < credit - c.allowance * t1:
            return CatchUp(n, 0.0, n)
        most = min(credit / 2, self._round.max_seconds - self._round.upper_bound(active + 1))
        n, least = state.n_pending, c.min_tail
        if self._head:
            most, least = one + c.head_catch_up * t1, c.head_min_tail
        if state.n_held or n <= least or step(n, t1) <= most:
            return CatchUp(n, step(n, t1) - one)
        while n >= least and step(n, t1) > most:
            n //= 2
        if self._head:
            n = max(n, least)
        return CatchUp(n, step(n, t1) - one, n) if n >= least else CatchUp(0)

    # Learning

    def observe(self, done: Round) -> None:
        """Record the time of the round and the gain from using the model."""
        costs, active, n_rows = self.costs, len(done.outcomes), done.n_rows
        spent, self._round.spent = self._round.spent, 0.0
        plain, verify, disturbed = n_rows == active and spent == 0, done.verify_seconds, self.config.disturbed
        if not plain and costs.is_reliable(n_rows):
            verify = min(verify, disturbed * costs.predict(n_rows))
        costs.observe(n_rows, done.verify_seconds, plain)
        t1 = costs.predict(1)
        worth = float(sum(o.n_emitted for o in done.outcomes))
        if active > 1:
            worth = worth * costs.predict(active) / active / t1
        if plain:
            self.budget.plain(worth)
        else:
            drafting = min(done.draft_seconds, disturbed * (spent + t1))
            self.budget.drafted(worth, (verify + drafting) / t1)
        plans = [(o, p) for o in done.outcomes if (p := self._plans.get(o.seq_id)) is not None]
        if self.model is not None:
            modelled = [(o, p) for o, p in plans if p.modelled is not None]
            for outcome, plan in modelled:
                self._observe_gain(outcome, plan, spent / len(modelled), n_rows, t1)
        for _, plan in plans:
            plan.begin(NO_DRAFT)

    def _observe_gain(
        self, outcome: VerifyResult, plan: SequencePlan, spent: float, n_rows: int, t1: float
    ) -> None:
        """Record the gain from using the model over the best round without it, in t(1)."""
        assert plan.gate is not None
        gain = plan.catch_up.seconds - spent
        if self.model is not None and self.model.name in outcome.draft.sources:
            other = n_rows - len(outcome.draft.tokens) + plan.n_free
            gain += (outcome.n_accept - plan.free.expected_accepted(plan.n_free)) / self._free_rate
            gain -= self.costs.predict(n_rows) - self.costs.predict(other)
        plan.gate.observe(plan.kind, gain / t1)
