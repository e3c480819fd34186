"""Deciding what to draft: by measured time, by learnt acceptance, and within the speculation budget.

Knows drafters by their interface and time by the clock passed in. `Planner` is the policy, `Planner.draft`
the rule of a round. The cost of decodes is in cost_curve.py, what is learnt about drafters in posterior.py,
how much of a candidate to verify in candidates.py, what may still be lost in base.py, the rows of decodes
that all have one width in cost_curve.py.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from specllama.core.interfaces import Drafter
from specllama.core.policy.base import CHAINS, Draft, Policy, Round, RoundLimits
from specllama.core.policy.candidates import (
    CandidateDraft,
    RoundBudget,
    best_affordable_length,
    best_branches,
    rows_and_tokens,
    select_drafts,
)
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.cost_curve import CostCurve, RunLengths, TotalWidth
from specllama.core.policy.posterior import (
    ALONE,
    COPY,
    NO_CATCH_UP,
    CatchUp,
    ModelBased,
    PairState,
    RequestPosterior,
)
from specllama.core.sequence import common_prefix
from specllama.core.stats import OfferStats

NO_DRAFT = CandidateDraft()  # between two rounds; never extended


@dataclass(slots=True)
class SequencePlan:
    """One sequence and the round in progress. greedy: whether the likeliest token is chosen. unseen: whether
    the text began before drafts of the pair were seen. runs: of the drafts since it lost what it may lose,
    for the first time. shadow: a draft that is compared with the tokens to come, `seen` so far, in place of
    being verified; its cost is in t(1). balance: time gained so far, in t(1). requests: by drafter, what this
    request has shown of it. forgone: by drafter, gains that it would have brought since it was used last, in
    t(1). free: the model-free candidate, of which n_free tokens would be verified without a draft model or
    head. model: the one that was chosen. modelled: its candidate, None where it was not used. kind: what it
    competes with.
    """

    greedy: bool = True
    unseen: bool = False
    runs: RunLengths | None = None
    shadow: CandidateDraft | None = None
    seen: list[int] = field(default_factory=list)
    shadow_cost: float = 0.0
    balance: float = 0.0
    requests: dict[str, RequestPosterior] = field(default_factory=dict)
    forgone: dict[str, float] = field(default_factory=dict)
    free: CandidateDraft = field(default_factory=CandidateDraft)
    n_free: int = 0
    model: ModelBased | None = None
    modelled: CandidateDraft | None = None
    kind: int = ALONE
    catch_up: CatchUp = NO_CATCH_UP

    def begin(self, free: CandidateDraft) -> None:
        """A round starts with this model-free candidate."""
        self.free, self.n_free, self.model, self.modelled = free, 0, None, None
        self.kind, self.catch_up = ALONE, NO_CATCH_UP

    def of_request(self, model: ModelBased) -> RequestPosterior:
        """The drafter's posterior of this request; at first, that of all requests."""
        if model.name not in self.requests:
            self.requests[model.name] = RequestPosterior(model.posterior.first)
        return self.requests[model.name]


class Planner(Policy):
    """Drafts the tokens predicted to give the most tokens per second; none where plain decoding is fastest.

    clock: the engine's, in seconds. costs: times of the target's decodes, refined in place. learnt: the
    result of `PairState.to_dict` in an earlier process with the same pair; anything else is ignored. Drafters
    that neither cost a decode nor force tokens are tried in turn; of those that cost decodes, the one that is
    expected to pay most drafts for a sequence in a round.
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
        self.learnt = PairState(drafters, config)
        self.learnt.restore(learnt)
        self.budget = self.learnt.budget
        super().__init__(drafters)
        self._plans: dict[int, SequencePlan] = {}
        self._offers: dict[int, OfferStats] = {}  # of the last request of each sequence, ended or not
        self._width = 0  # rows of the decode of the round in progress, 0 where they may be any number
        self._max_draft_len: Mapping[int, int] = {}  # of the round in progress
        self._total = TotalWidth()
        self.change_seconds = 0.0  # what a change of the width costs, as measured at loading
        self._spent: dict[str, float] = {}  # seconds that each draft model or head has used in this round
        self.use_costs(costs if costs is not None else CostCurve(config))

    def _set_drafters(self, drafters: Sequence[Drafter]) -> None:
        super()._set_drafters(drafters)
        self._free = [d for d in drafters if not d.runs_model and not d.forces]
        self._models = [ModelBased(d, self.learnt, self.clock) for d in drafters if d.runs_model]

    def use_costs(self, costs: CostCurve) -> None:
        """Use another cost curve from the next round on, that of another context length."""
        self.costs = costs

    # Sequences

    def _started(self, seq_id: int, greedy: bool) -> None:
        unseen = self.learnt.runs[greedy].n_seen < self.config.shadow_drafts
        self._plans[seq_id] = SequencePlan(greedy, unseen and bool(self.drafters))
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
        self._compare_shadow(plan, tokens)
        if plan.free.tokens:
            self.learnt.observe_model_free(plan.free, tokens)
        name = plan.model.name if plan.model is not None else ""
        if plan.modelled is not None and plan.model is not None:
            request = plan.of_request(plan.model)
            plan.model.posterior.observe(plan.modelled, tokens, name, plan.kind, request)
        self._offers[seq_id].count(plan.free, plan.modelled, tokens, name)
        plan.begin(NO_DRAFT)

    def offer_stats(self, seq_id: int) -> OfferStats:
        """Statistics of the candidates for the last request of a sequence; empty for an unknown one."""
        return self._offers.get(seq_id, OfferStats())

    def expected_speedup(self, name: str) -> float | None:
        """How many times as fast rounds with this draft model or head are as plain ones, as far as is known
        from all requests; None while that rests on too little.
        """
        posterior, t1 = self.learnt.models.get(name), self.costs.predict(1)
        if posterior is None or posterior.table.n_seen < self.config.enough_tokens or not t1:
            return None
        costs, widest = self.costs, self.config.max_rows
        budget = RoundBudget(costs.table, costs.scale, costs.predict, inf, widest)
        request, step = RequestPosterior(posterior.first), posterior.steps.predict(1, t1)
        return posterior.round_with(request, ALONE, (1, 1.0), (0, 0.0), budget, step, 1 / t1).rate * t1

    # Widths

    def text_width(self, greedy: bool) -> int:
        runs = self.learnt.runs[greedy]
        if not self.drafters or runs.n_seen < self.config.shadow_drafts:
            return 1
        return runs.text_width(self.costs)

    def next_width(self, seq_id: int, width: int) -> int:
        """One row before the text loses more than drafting may lose; another width than one row only for a
        text that began before any draft of the pair was seen, or once after that.
        """
        plan, t1 = self._plans.get(seq_id), self.costs.predict(1) or inf
        if plan is None:
            return width
        if width > 1:
            most = self.config.allowance + (self.change_seconds - self.costs.predict(width)) / t1 + 1
            if plan.balance > -most:
                return width
            plan.runs = None if plan.runs is not None else RunLengths(self.config)
            plan.balance /= 2  # what may be lost once more, if the text gets a width again
            return 1
        runs = self.learnt.runs[plan.greedy] if plan.unseen else plan.runs
        if runs is None or runs.n_seen < self.config.shadow_drafts:
            return width
        plan.unseen = False
        return runs.best_width(self.costs, change=self.change_seconds)

    def total_width(self, n_texts: int) -> int:
        greedy = all(plan.greedy for plan in self._plans.values())
        return self._total.of_round(n_texts, self.costs, self.learnt.runs[greedy], self.change_seconds)

    def _draft_shadow(self, seq: int) -> None:
        """Draft a few tokens that are compared with those to come, unless an earlier draft still is."""
        plan = self._plans.setdefault(seq, SequencePlan())
        n, t1 = self.config.shadow_tokens, self.costs.predict(1)
        if plan.shadow is not None or self.budget.credit <= 0 or not t1:
            return
        draft, model = CandidateDraft(), None
        for drafter in self._free:
            if not draft.tokens:
                self._extend(drafter, seq, n, draft)
        if not draft.tokens and self._models:
            model = max(self._models, key=lambda one: one.posterior.explore)
            catch_up = model.catch_up(seq, t1, self.budget.credit, self.budget.max_round_loss * t1)
            cost = (catch_up.seconds + n * model.steps.predict(1, t1)) / t1
            if not catch_up.n_pending or (not plan.unseen and model.posterior.explore < cost):
                return
            model.restart(seq, catch_up)
            began, n_ids = self.clock(), catch_up.n_pending
            while len(draft.tokens) < n and model.extend(seq, draft, n_ids):
                n_ids = 1
            self._spent[model.name] = self.clock() - began
            model.posterior.explore -= cost
        if draft.tokens:
            plan.shadow, plan.seen = draft, []
            plan.shadow_cost = self._spent.get(model.name, 0.0) / t1 if model is not None else 0.0

    def _compare_shadow(self, plan: SequencePlan, tokens: Sequence[int]) -> None:
        draft = plan.shadow
        if draft is None:
            return
        plan.seen += tokens
        n_right = common_prefix(draft.tokens, plan.seen)
        if n_right < len(plan.seen) or n_right == len(draft.tokens):
            n = len(draft.tokens)
            for runs in (self.learnt.runs[plan.greedy], plan.runs):
                if runs is not None:
                    runs.observe(n, n_right, n, plan.shadow_cost)
            for model in self._models:
                if model.name in draft.sources:
                    request = plan.of_request(model)
                    model.posterior.observe(draft, plan.seen, model.name, ALONE, request)
            plan.shadow = None

    def remove_drafter(self, name: str) -> None:
        super().remove_drafter(name)
        for plan in self._plans.values():
            plan.modelled = plan.model = None

    # Drafting

    def predict(self, n_rows: int) -> float:
        return self.costs.predict(n_rows)

    def draft(
        self, max_draft_len: Mapping[int, int], seconds: float = inf, limits: RoundLimits = CHAINS
    ) -> dict[int, Draft]:
        """The rule of a round; see docs/how-it-works.md."""
        active, plans, self._max_draft_len = len(max_draft_len), self._plans, max_draft_len
        budget = self._begin_round(active, seconds, limits)
        if limits.width == 1:  # nothing can be verified
            for seq in max_draft_len if limits.shadows else ():
                self._draft_shadow(seq)
            return {}
        # 1. Tokens that cost no decode: those that a grammar forces, else copies
        free = {seq: self._model_free(seq, room, budget, active) for seq, room in max_draft_len.items()}
        for seq, candidate in free.items():
            plans.setdefault(seq, SequencePlan()).begin(candidate)
        if not self._may_draft(budget, active):
            return {}
        # 2. As many of them as give the most tokens per second
        candidates, counts = dict(free), select_drafts(free, budget, active)
        for seq, n in counts.items():
            plans[seq].n_free = n
        # 3. A draft model or head where it is expected to give more, or to be tried within the budget
        chosen: dict[ModelBased, list[int]] = {}
        for seq, room in max_draft_len.items():
            others = [other for other in max_draft_len if other != seq]
            rows, tokens = rows_and_tokens(candidates, counts, others)
            rest = active + rows, active + tokens
            if self._models and room > 0 and (model := self._choose(seq, rest, budget, active)) is not None:
                chosen.setdefault(model, []).append(seq)
        for model, seqs in chosen.items():
            self._draft_with(model, seqs, max_draft_len, candidates, counts, budget)
        # 4. Of all candidates, as many tokens as give the most tokens per second after that time
        if chosen:
            counts = select_drafts(candidates, budget, active)
        # 5. Second candidates, where a number of them is asked for
        drafts = {seq: self._draft_of(seq, one, counts[seq]) for seq, one in candidates.items()}
        if limits.n_branches:
            _add_branches(drafts, candidates, budget.max_rows - active, limits)
        return {seq: draft for seq, draft in drafts.items() if draft.n_rows or draft.n_discarded}

    def _begin_round(self, active: int, seconds: float, limits: RoundLimits) -> RoundBudget:
        """Nothing is spent; rows that are evaluated again are part of every decode, and where the width of
        decodes is held, all lengths that fit take as long.
        """
        costs, self._spent, self._width = self.costs, {}, limits.width
        self._use_alternatives(limits.n_branches > 0)
        n_recomputed, widest, seconds_by_rows = limits.n_recomputed, self.config.max_rows, costs.table
        least = max(active + n_recomputed, limits.width)
        affordable = costs.predict(least) + self.budget.max_round_loss * costs.predict(1)
        if limits.width:
            affordable = inf  # the rows are decoded anyway
            widest = min(widest, limits.width)
            seconds_by_rows = [seconds_by_rows[widest]] * (widest + 1)
        n_recomputed = min(n_recomputed, widest - 1)
        return RoundBudget(
            seconds_by_rows[n_recomputed:] if n_recomputed else seconds_by_rows,
            costs.scale,
            lambda n: costs.upper_bound(max(n + n_recomputed, limits.width)),
            min(affordable, seconds),
            widest - n_recomputed,
        )

    def _may_draft(self, budget: RoundBudget, active: int) -> bool:
        """Whether the round may have drafts: not while plain rounds are to show what one costs."""
        if active >= budget.max_rows or not self.costs.known:
            return False
        return self._width > 0 or (
            self.costs.count(active) > 0 and self.budget.credit > 0 and not self.budget.plain_due
        )

    def _draft_of(self, seq: int, candidate: CandidateDraft, n: int) -> Draft:
        plan, sources, n_discarded = self._plans[seq], candidate.sources[:n], 0
        if plan.modelled is not None and plan.model is not None:
            name = plan.model.name
            n_discarded = plan.modelled.sources.count(name)
            n_discarded -= sources.count(name) if plan.modelled is candidate else 0
        return Draft(candidate.tokens[:n], sources, n_discarded)

    def _model_free(self, seq: int, room: int, budget: RoundBudget, active: int) -> CandidateDraft:
        """The candidate that costs no decode: forced tokens, else the draft of the first free drafter with
        one.
        """
        candidate, c, room = CandidateDraft(), self.config, min(room, budget.max_rows - active)
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
                used, _ = best_affordable_length(candidate.expected, budget, active, active)
                if n - used <= c.chunk_margin:
                    self._extend(drafter, seq, room, candidate)
        return candidate

    def _extend(self, drafter: Drafter, seq: int, limit: int, candidate: CandidateDraft) -> None:
        """Extend the candidate to at most `limit` tokens, as far as the drafter has proposals."""
        n = len(candidate.tokens)
        if run := drafter.propose(seq, limit)[n:] if n < limit else []:
            chances, edges = self.learnt.tables[drafter.name].chances, self.config.confidence_edges
            bins = [bisect(edges, proposal.confidence) for proposal in run]
            tokens = [proposal.token for proposal in run]
            candidate.extend(tokens, drafter.name, bins, [chances[bin_] for bin_ in bins])
            for at, proposal in enumerate(run, n):
                candidate.add_branch(at, drafter.name, proposal.other)

    # Draft models and heads

    def _choose(
        self, seq: int, rest: tuple[int, float], budget: RoundBudget, active: int
    ) -> ModelBased | None:
        """The draft model or head to use for a sequence in this round, None for none: the one with the
        highest rate, where that is above the rate without one and its cache is worth catching up; else one
        that may be tried. rest: (rows, expected tokens) of the round without drafts of the sequence.
        """
        plan, t1 = self._plans[seq], self.costs.predict(1)
        free, n = plan.free, plan.n_free
        if n and not free.forced:
            plan.kind = COPY
        added = n, free.expected_accepted(n)
        rate = budget.rate(rest[1] + added[1], rest[0] + n)
        seconds, options = budget.max_seconds - budget.upper_bound(active + 1), []
        for model in self._models:
            credit = max(self.budget.credit, self.config.allowance * (self._width > 0))
            catch_up = model.catch_up(seq, t1, credit, seconds, alone=active == 1)
            if not catch_up.n_pending:
                continue
            step, request = model.steps.predict(active, t1) / active, plan.of_request(model)
            with_it = model.posterior.round_with(request, plan.kind, rest, added, budget, step, rate)
            options.append(((with_it.tokens / rate - with_it.seconds) / t1, with_it.most, model, catch_up))
        options.sort(key=lambda option: -option[0])
        chosen, best = None, 0.0
        for gain, _, model, catch_up in options:
            if chosen is None and self._pays(plan, model, gain, catch_up.seconds / t1):
                chosen, best, plan.catch_up = model, gain, catch_up
        for gain, most, model, catch_up in options:
            loss = best - gain + catch_up.seconds / t1
            if model is not chosen and most > 0 and plan.kind == ALONE and model.posterior.explore >= loss:
                model.posterior.explore -= loss
                chosen, best, plan.catch_up = model, inf, catch_up
        plan.model = chosen
        return chosen

    def _pays(self, plan: SequencePlan, model: ModelBased, gain: float, missing: float) -> bool:
        """Whether to use the drafter for this gain, in t(1). missing: the cost of catching up.

        Ski-rental rule: catch up once the forgone gain equals its cost, which later drafts profit from too.
        """
        if gain <= 0:
            return False
        plan.forgone[model.name] = forgone = plan.forgone.get(model.name, 0.0) + gain
        return forgone > missing

    def _draft_with(
        self,
        model: ModelBased,
        seqs: Sequence[int],
        max_draft_len: Mapping[int, int],
        candidates: dict[int, CandidateDraft],
        counts: dict[int, int],
        budget: RoundBudget,
    ) -> None:
        """Draft for these sequences together, and replace the candidates that are worse. counts: tokens of
        each candidate that would be verified without this; afterwards, those of the drafts among them too.
        """
        active, t1 = len(max_draft_len), self.costs.predict(1)
        n_pending = sum(self._plans[seq].catch_up.n_pending for seq in seqs)
        if not budget.allows(active + 1, model.steps.predict(n_pending, t1)):
            return
        drafts, limits, rest = {}, {}, {}
        for seq in seqs:
            self._plans[seq].forgone[model.name] = 0.0
            model.restart(seq, self._plans[seq].catch_up)
            rows, tokens = rows_and_tokens(
                candidates, counts, [other for other in max_draft_len if other != seq]
            )
            rest[seq] = active + rows, active + tokens
            limits[seq] = min(max_draft_len[seq], self.config.max_model_draft, budget.max_rows - active)
            drafts[seq] = CandidateDraft()
        spent = budget.spent
        try:
            model.extend_drafts(self.forcing, drafts, limits, rest, budget, n_pending, t1)
        finally:
            self._spent[model.name] = budget.spent - spent
        for seq, draft in drafts.items():
            self._plans[seq].modelled = draft  # set after the loop, which may raise
            rows, tokens = rest[seq]
            without = counts[seq] if budget.allows(rows + counts[seq]) else 0
            n, rate = best_affordable_length(draft.expected, budget, rows, tokens)
            if rate > budget.rate(tokens + candidates[seq].expected_accepted(without), rows + without):
                candidates[seq], counts[seq] = draft, n

    # Learning

    def observe(self, done: Round) -> None:
        """Record the time of the round, and what it gained or lost."""
        costs, active, width = self.costs, len(done.outcomes), done.width
        spent, verify, disturbed = sum(self._spent.values()), done.verify_seconds, self.config.disturbed
        plain = width == active and not self._spent
        if not plain and costs.count(width) >= self.config.min_samples:
            verify = min(verify, disturbed * costs.predict(width))
        if done.steady or not (self._width and costs.known):  # else a change of the width is part of it
            costs.observe(width, done.verify_seconds)
        t1, worth = costs.predict(1), float(sum(o.n_emitted for o in done.outcomes))
        if active > 1:
            worth = worth * costs.predict(active) / active / t1
        drafting = min(done.draft_seconds, disturbed * (spent + t1))
        if plain:
            self.budget.plain(worth)
        elif self._width <= active:  # what rows of a held width cost is no loss of drafting
            self.budget.drafted(worth, (verify + drafting) / t1)
        if self._width > active:
            for o in done.outcomes:
                greedy = plan.greedy if (plan := self._plans.get(o.seq_id)) is not None else True
                n_most = min(self._width // active - 1, self._max_draft_len.get(o.seq_id, 0))
                runs, n = self.learnt.runs[greedy], len(o.draft.tokens)
                runs.observe(n, o.n_accept, n_most, drafting / active / t1)
                if plan is not None:
                    decode = verify if done.steady else min(verify, costs.predict(width))
                    plan.balance += (worth - (decode + drafting) / t1) / active
                    plan.balance = min(plan.balance, self.config.allowance)
        for model in self._models:
            model.posterior.refill(verify + spent, t1)


def _add_branches(
    drafts: Mapping[int, Draft], candidates: Mapping[int, CandidateDraft], max_rows: int, limits: RoundLimits
) -> None:
    """Give drafts the second candidates for which there is room. max_rows: of all drafts."""
    left = max_rows - sum(len(draft.tokens) for draft in drafts.values())
    for seq, draft in drafts.items():
        n = len(draft.tokens)
        possible = [b for b in candidates[seq].branches if b.at <= n]
        draft.branches = best_branches(possible, limits, min(left, limits.n_tokens - n))
        left -= draft.n_in_branches
