"""Deciding what to draft: by measured time, by learnt acceptance, and within the speculation budget.

Knows drafters by their interface and time by the clock passed in. `Planner` is the policy. The cost of
decodes is in cost_curve.py, acceptance in acceptance.py, how much of a candidate to verify in candidates.py,
its second candidates in tree.py, when to use a draft model or a head in model_draft.py, which of several in
priced.py, what may still be lost in budget.py.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from math import inf

from specllama.core.interfaces import Drafter, Mask, Sampler, SpanDrafter
from specllama.core.policy.acceptance import ALONE, PairState
from specllama.core.policy.base import (
    CHAINS,
    Draft,
    DraftBranch,
    PolicyBase,
    Round,
    TreeLimits,
    VerifyResult,
)
from specllama.core.policy.candidates import (
    CandidateDraft,
    RoundBudget,
    best_affordable_length,
    rows_and_tokens,
    select_drafts,
)
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.model_draft import (
    DraftGate,
    ModelDraftLoop,
    can_gain,
    gate_kind,
    prior_gains,
)
from specllama.core.policy.priced import NO_CATCH_UP, DraftOption, PricedDrafter, choose_drafter
from specllama.core.policy.tree import best_branches
from specllama.core.stats import OfferStats

NO_DRAFT = CandidateDraft()  # between two rounds; never extended


class SequencePlan:
    """One sequence: its draft gates by drafter, made in the first round in which one could be used, and the
    round in progress. free: the model-free candidate. n_free: tokens of it that would be verified without a
    priced drafter. priced: the priced drafter that was chosen. modelled: its candidate, None where it was not
    used. waits: rounds until a drafter that had nothing to propose is chosen again in place of another one.
    """

    __slots__ = ("catch_up", "free", "gates", "kind", "modelled", "n_free", "priced", "waits")

    def __init__(self) -> None:
        self.gates: dict[str, DraftGate] = {}
        self.waits: dict[str, int] = {}
        self.begin(CandidateDraft())

    def begin(self, free: CandidateDraft) -> None:
        """A round starts with this model-free candidate."""
        self.free, self.n_free = free, 0
        self.modelled: CandidateDraft | None = None
        self.priced: PricedDrafter | None = None
        self.kind, self.catch_up = ALONE, NO_CATCH_UP

    def available(self, drafters: Sequence[PricedDrafter]) -> Sequence[PricedDrafter]:
        """Those that may be chosen in this round: all of them where none had anything to propose."""
        available = [d for d in drafters if not self.waits.get(d.name)]
        self.waits = {name: n - 1 for name, n in self.waits.items() if n > 1}
        return available or drafters


class Planner(PolicyBase):
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
        super().__init__(drafters)
        self.learnt = PairState(drafters, config)
        self.learnt.restore(learnt)
        self.budget = self.learnt.budget
        self._loop = ModelDraftLoop(clock, self.learnt, config)
        self._plans: dict[int, SequencePlan] = {}
        self._offers: dict[int, OfferStats] = {}  # of the last request of each sequence, ended or not
        self._free_rate = 0.0  # tokens per second of the best round without priced drafters
        self._n_again = 0  # rows of the round in progress that are evaluated again
        self._unpadded = False  # whether the round in progress is decoded without further rows
        self._spent: dict[str, float] = {}  # seconds that each priced drafter has used in this round
        self.use_costs(costs if costs is not None else CostCurve(config))

    def _set_drafters(self, drafters: Sequence[Drafter]) -> None:
        super()._set_drafters(drafters)
        self._free = [d for d in drafters if not d.priced and not d.forces]
        self._spans = {d.name: d.propose for d in self._free if isinstance(d, SpanDrafter)}
        self._priced = [PricedDrafter(d) for d in drafters if d.priced]

    def use_costs(self, costs: CostCurve) -> None:
        """Use another cost curve from the next round on, that of another context length."""
        self.costs = costs
        rows = self.config.max_rows
        self._round = RoundBudget(costs.now(), costs.scale, costs.next_upper_bound, 0.0, rows)

    # Sequences

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler,
        mask: Mask | None = None,
        history_scope: str | None = "",
        cache_scope: str = "",
    ) -> None:
        super().start(seq_id, prompt, sampler, mask, history_scope, cache_scope)
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
            self.learnt.observe_seconds(plan.free, tokens)
        name = plan.priced.name if plan.priced is not None else ""
        if plan.modelled is not None:
            self.learnt.observe_model(plan.modelled, tokens, name)
            self.learnt.observe_seconds(plan.modelled, tokens)
        self._offers.setdefault(seq_id, OfferStats()).count(plan.free, plan.modelled, tokens, name)

    def offer_stats(self, seq_id: int) -> OfferStats:
        """Statistics of the candidates of the sequence's last request, which may have ended."""
        return self._offers.get(seq_id, OfferStats())

    def remove_drafter(self, name: str) -> None:
        """As in `Policy`; the round in which it failed says nothing about any drafter's gain."""
        super().remove_drafter(name)
        for plan in self._plans.values():
            plan.modelled = None

    # Drafting

    def predict(self, n_rows: int) -> float:
        return self.costs.predict(n_rows)

    def width(self, n_rows: int) -> int:
        return n_rows if self._unpadded else self.costs.width(n_rows)

    def interrupted(self) -> None:
        self.costs.changes.interrupt()

    def draft(
        self, rooms: Mapping[int, int], seconds: float = inf, tree: TreeLimits = CHAINS
    ) -> dict[int, Draft]:
        costs, active = self.costs, len(rooms)
        budget = self._begin_round(tree.n_again)
        self._spent = {}
        self._use_alternatives(tree.n_branches > 0 and (tree.forced or costs.fills))
        self.budget.there_and_back = costs.there_and_back
        may_draft = costs.count(active) > 0 and self.budget.credit > 0 and active < budget.max_rows
        self._unpadded = not may_draft or self.budget.plain_due or costs.scale_uncertain
        affordable = costs.next_seconds(active + tree.n_again)
        affordable += self.budget.max_round_loss * costs.predict(1)
        budget.max_seconds = min(affordable, seconds)
        candidates = {}
        for seq, room in rooms.items():
            plan = self._plans.get(seq)
            if plan is None:
                plan = self._plans[seq] = SequencePlan()
            candidates[seq] = self._model_free(seq, min(room, budget.max_rows - active), active)
            plan.begin(candidates[seq])
        if not self._priced and not any(candidate.tokens for candidate in candidates.values()):
            return {}
        if self._unpadded:
            return {}
        counts = select_drafts(candidates, budget, active)
        rows, tokens = rows_and_tokens(candidates, counts, list(rooms))
        self._free_rate = budget.rate(active + tokens, active + rows)
        for seq, n in counts.items():
            self._plans[seq].n_free = n
        if self._priced and self._use_priced(rooms, candidates, counts):
            counts = select_drafts(candidates, budget, active)
        branches = self._branches(candidates, counts, tree)
        drafts = {}
        for seq in rooms:
            draft = self._draft_of(seq, candidates[seq], counts[seq], branches.get(seq, []))
            if draft is not None:
                drafts[seq] = draft
        return drafts

    def _begin_round(self, n_again: int) -> RoundBudget:
        """Nothing is spent; rows that are evaluated again are part of every decode."""
        budget, costs = self._round, self.costs
        budget.spent, budget.seconds, budget.scale = 0.0, costs.now(), costs.scale
        budget.max_rows, budget.upper_bound = self.config.max_rows, costs.next_upper_bound
        if n_again:
            n_again = min(n_again, budget.max_rows - 1)
            budget.seconds = budget.seconds[n_again:]
            budget.max_rows -= n_again
            budget.upper_bound = lambda n: costs.next_upper_bound(n + n_again)
        self._n_again = n_again
        return budget

    def _branches(
        self, candidates: Mapping[int, CandidateDraft], counts: Mapping[int, int], limits: TreeLimits
    ) -> dict[int, list[DraftBranch]]:
        """The branches to verify with so many tokens of each candidate: as many as there may be where they
        are forced, else as many as cost nothing, in place of rows that would fill up the decode.
        """
        if not limits.n_branches or not any(candidate.branches for candidate in candidates.values()):
            return {}
        n_rows = len(candidates) + self._n_again + sum(counts.values())
        widest = self.config.max_rows if limits.forced else self.width(n_rows)
        return best_branches(candidates, counts, limits, widest - n_rows) if any(counts.values()) else {}

    def _draft_of(
        self, seq: int, candidate: CandidateDraft, n: int, branches: list[DraftBranch]
    ) -> Draft | None:
        plan, sources, n_discarded = self._plans[seq], candidate.sources[:n], 0
        modelled = plan.modelled
        if modelled is not None and plan.priced is not None:
            name = plan.priced.name
            n_discarded = modelled.sources.count(name)
            n_discarded -= sources.count(name) if modelled is candidate else 0
        if not (n or n_discarded or branches):
            return None
        return Draft(candidate.tokens[:n], sources, n_discarded, branches)

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
            whole = c.free_chunk <= n < room and self.costs.known
            if whole and self._longer_may_pay(candidate, room, active):
                self._extend(drafter, seq, room, candidate)
        return candidate

    def _longer_may_pay(self, candidate: CandidateDraft, room: int, active: int) -> bool:
        """Whether more tokens, each as likely as the last one, could raise the rate of the round, if need be
        beyond a step of the cost curve.
        """
        n = len(candidate.tokens)
        used, rate = best_affordable_length(candidate.expected, self._round, active, active)
        if n - used <= self.config.chunk_margin:
            return True
        path, expected = candidate.path_probs[-1], candidate.expected[-1]
        chance = path / candidate.path_probs[-2] if candidate.path_probs[-2] else 0.0
        for k in range(n + 1, min(room, self._round.max_rows - active) + 1):
            path *= chance
            expected += path
            if self._round.rate(active + expected, active + k) > rate:
                return self._round.allows(active + k)
        return False

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
                for at, proposal in enumerate(run, n):
                    if proposal.other is not None:
                        self.learnt.add_branch(candidate, at, drafter.name, proposal.other)
            if propose or not run:
                return

    # Draft models and heads

    def _use_priced(
        self, rooms: Mapping[int, int], candidates: dict[int, CandidateDraft], counts: dict[int, int]
    ) -> bool:
        """Use priced drafters where that should pay, and replace `candidates` by their drafts where these are
        better; returns whether one was used. counts: tokens of each candidate that would be verified without
        them; afterwards, those of the drafts among them too.
        """
        chosen: dict[str, list[int]] = {}
        for seq, room in rooms.items():
            plan = self._plans[seq]
            plan.kind = gate_kind(candidates[seq], counts[seq], self.config)
            if room > 0 and self._choose(seq, plan, len(rooms)) and plan.priced is not None:
                chosen.setdefault(plan.priced.name, []).append(seq)
        used = False
        for priced in self._priced:
            if (seqs := chosen.get(priced.name)) is not None:
                used |= self._draft_with(priced, seqs, rooms, candidates, counts)
        return used

    def _choose(self, seq: int, plan: SequencePlan, active: int) -> bool:
        """Choose the priced drafter of a sequence for this round; False: none should be used."""
        t1, budget = self.costs.predict(1), self._round
        seconds = budget.max_seconds - budget.upper_bound(active + 1)
        options = []
        for priced in plan.available(self._priced):
            name, state = priced.name, self.learnt.priced[priced.name]
            gate = plan.gates.get(name)
            if gate is None:
                step = state.steps.predict(1, t1)
                prior = prior_gains(self.costs.predict, step, self.config, priced.is_head)
                table = self.learnt.tables[name]
                pays = can_gain(self.costs.predict, step, table, state.next_token, self.config)
                gate = DraftGate(state.gain, prior, self.config, priced.is_head, pays)
                plan.gates[name] = gate
            catch_up = priced.catch_up(
                seq, state.steps, t1, self.budget.credit, seconds, self.config, alone=active == 1
            )
            affordable = catch_up.n_pending > 0
            if affordable and len(self._priced) > 1:
                affordable = budget.allows(active + 1, state.steps.predict(catch_up.n_pending, t1))
            options.append(DraftOption(priced, gate, state, catch_up, affordable))
        if not any(option.affordable for option in options):
            return False
        plain = budget.predict(active + plan.n_free) / t1 / active
        chosen = choose_drafter(options, plan.kind, t1, plain)
        if chosen is None:
            return False
        plan.priced, plan.catch_up = chosen.priced, chosen.catch_up
        return True

    def _draft_with(
        self,
        priced: PricedDrafter,
        seqs: Sequence[int],
        rooms: Mapping[int, int],
        candidates: dict[int, CandidateDraft],
        counts: dict[int, int],
    ) -> bool:
        """As `_use_priced`, for the sequences that one drafter was chosen for."""
        budget, active, t1 = self._round, len(rooms), self.costs.predict(1)
        n_pending = sum(self._plans[seq].catch_up.n_pending for seq in seqs)
        steps = self.learnt.priced[priced.name].steps
        if not budget.allows(active + 1, steps.predict(n_pending, t1)):
            return False
        drafts, limits, rest = {}, {}, {}
        for seq in seqs:
            plan = self._plans[seq]
            plan.gates[priced.name].record_use(plan.kind)
            priced.restart(seq, plan.catch_up)
            rows, tokens = rows_and_tokens(candidates, counts, [other for other in rooms if other != seq])
            rest[seq] = active + rows, active + tokens
            limits[seq] = min(rooms[seq], self.config.max_model_draft, budget.max_rows - active)
            drafts[seq] = CandidateDraft()
        spent = budget.spent
        self._loop.extend_drafts(priced.drafter, self.forcing, drafts, limits, rest, budget, n_pending, t1)
        self._spent[priced.name] = budget.spent - spent
        for seq, draft in drafts.items():
            self._plans[seq].modelled = draft  # set after the loop, which may raise
            without = self._rate_of(candidates[seq], counts[seq], rest[seq])
            if len(self._priced) > 1 and priced.name not in draft.sources:
                self._plans[seq].waits[priced.name] = self.config.first_wait
            n, rate = best_affordable_length(draft.expected, budget, *rest[seq])
            if rate > without:
                candidates[seq], counts[seq] = draft, n
        return True

    def _rate_of(self, candidate: CandidateDraft, n: int, rest: tuple[int, float]) -> float:
        """The round's rate with the candidate's first n tokens, without them where the round can no longer
        afford them.
        """
        rows, tokens = rest
        if n and not self._round.allows(rows + n):
            n = 0
        return self._round.rate(tokens + candidate.expected_accepted(n), rows + n)

    # Learning

    def observe(self, done: Round) -> None:
        """Record the time of the round and the gains from using priced drafters."""
        costs, active, n_rows, width = self.costs, len(done.outcomes), done.n_rows, done.width
        spent, self._round.spent = self._round.spent, 0.0
        plain, verify, disturbed = n_rows == active and spent == 0, done.verify_seconds, self.config.disturbed
        if not plain and costs.is_reliable(width):
            verify = min(verify, disturbed * costs.next_seconds(width))
        plain_width = plain and width == costs.plain_width(active)
        costs.observe(width, done.verify_seconds, plain_width)
        changes, t1 = costs.changes, costs.predict(1)
        steady = plain_width and changes.alike(changes.phase)
        worth = float(sum(o.n_emitted for o in done.outcomes))
        if active > 1:
            worth = worth * costs.predict(active) / active / t1
        if steady:
            self.budget.plain(worth)
        else:
            drafting = min(done.draft_seconds, disturbed * (spent + t1))
            self.budget.drafted(worth, (verify - changes.unavoidable + drafting) / t1)
        plans = [(o, p) for o in done.outcomes if (p := self._plans.get(o.seq_id)) is not None]
        used = [p.priced.name for _, p in plans if p.priced is not None and p.modelled is not None]
        for outcome, plan in plans:
            if plan.priced is not None and plan.modelled is not None:
                name = plan.priced.name
                self._observe_gain(outcome, plan, name, self._spent[name] / used.count(name), n_rows)
        if len(self._priced) > 1:
            for priced in self._priced:
                self.learnt.priced[priced.name].refill_trial(verify + spent, t1)
        for _, plan in plans:
            plan.begin(NO_DRAFT)

    def _observe_gain(
        self, outcome: VerifyResult, plan: SequencePlan, name: str, spent: float, n_rows: int
    ) -> None:
        """Record the gain from using the priced drafter of this name over the best round without one, in
        t(1).
        """
        t1, added, gain = self.costs.predict(1), spent - plan.catch_up.seconds, plan.catch_up.seconds - spent
        if name in outcome.draft.sources:
            n_rows -= self._n_again
            other = n_rows - outcome.draft.n_rows + plan.n_free
            wider = self._round.predict(n_rows) - self._round.predict(other)
            gain += (outcome.n_accept - plan.free.expected_accepted(plan.n_free)) / self._free_rate
            gain -= wider
            added += wider
        plan.gates[name].observe(plan.kind, gain / t1, max(0.0, added) / t1)
