"""Deciding what to draft: by measured time, by learnt acceptance, and within what was won before.

Knows drafters by their interface and time by the clock that it is given. `Planner` is the policy; what a
decode costs is in costs.py, what is accepted in acceptance.py, how much to take of what is offered in
offers.py, when to ask the draft model in looks.py, what may still be lost in ledger.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specllama.core.interfaces import CachingDrafter, Drafter, Mask
from specllama.core.offer_stats import OfferStats
from specllama.core.policy.backoff import LISTENING
from specllama.core.policy.base import Draft, Round, VerifyResult
from specllama.core.policy.budget import ALLOWANCE
from specllama.core.policy.candidates import CandidateDraft, RoundBudget, best_allowed, best_prefixes, total
from specllama.core.policy.cost_curve import DISTURBED, WIDEST, CostCurve
from specllama.core.policy.draft_gate import ALONE, DraftGate, first_gains, kind_of
from specllama.core.policy.model_draft import MOST_LOOKED, Asking, confidence_bins
from specllama.core.policy.observation import Attentive
from specllama.core.policy.pair_state import GRAMMAR, MODEL
from specllama.core.sampling.sampler import Sampler

CHUNK = 16  # tokens that free drafters are asked for; more only where these are taken
NEAR_END = 8  # tokens from the end of a chunk: a draft that ends there might be worth going on with
NOTHING = CandidateDraft()  # is offered between two rounds; nobody adds to it
LEAST_TAIL = 16  # ids; with fewer before its eyes it is not asked


class _State:
    """One sequence: how looks fared in it, and the round at hand."""

    __slots__ = ("free", "kind", "late", "look", "looks", "n_free")

    def __init__(self) -> None:
        self.looks: DraftGate | None = None  # from the first round on in which one is thinkable
        self.begin(CandidateDraft())

    def begin(self, free: CandidateDraft) -> None:
        """A round begins with what is offered for nothing."""
        self.free, self.n_free = free, 0
        self.look: CandidateDraft | None = None
        self.kind, self.late = ALONE, 0.0


class Planner(Attentive):
    """Drafts what is predicted to give the most tokens per second; nothing where plain decoding does.

    clock: seconds, as the engine's. costs: what is known of the target's decodes, refined in place. learnt:
    what `learnt.to_dict` gave in an earlier run of the same pair; anything else is ignored. Drafters called
    "model" and "grammar" are told apart by name; all others draft for nothing and are asked in turn.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        clock: Callable[[], float],
        costs: CostCurve | None = None,
        learnt: object = None,
    ) -> None:
        super().__init__(drafters, clock)
        self.learnt.restore(learnt)
        self.ledger = self.learnt.ledger
        self._asking = Asking(clock, self.learnt)
        self._caching = next((d for d in drafters if d.name == MODEL and isinstance(d, CachingDrafter)), None)
        self._states: dict[int, _State] = {}
        self._tallies: dict[int, OfferStats] = {}  # the last one of each sequence, ended or not
        self._n_rounds = 1  # since it last looked
        self._alternative = 0.0  # tokens per second of the best round without a look
        self.use_costs(costs if costs is not None else CostCurve())

    def use_costs(self, costs: CostCurve) -> None:
        """Go by another curve from the next round on: that of another context length."""
        self.costs = costs
        self._prices = RoundBudget(costs.table(), costs.scale, costs.cautious, 0.0, WIDEST)

    # What is told

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        chooser: Sampler,
        mask: Mask | None = None,
        owner: str | None = "",
    ) -> None:
        super().start(seq_id, prompt, chooser, mask, owner)
        self._states.pop(seq_id, None)
        self._tallies[seq_id] = OfferStats()

    def forget(self, seq_id: int) -> None:
        super().forget(seq_id)
        self._states.pop(seq_id, None)

    def drop(self, name: str) -> None:
        super().drop(name)
        if name == MODEL:
            self._caching = None

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Learn from what was offered and what came, whether it was drafted or not."""
        began = self.clock()
        super().committed(seq_id, tokens)
        state = self._states.get(seq_id)
        if self.naps.asleep or state is None:
            return
        self.learnt.score_free(state.free, tokens)
        if state.look is not None:
            self.learnt.score_look(state.look, tokens)
        self._tallies.setdefault(seq_id, OfferStats()).count(state.free, state.look, tokens)
        self.naps.worked(self.clock() - began)

    def tally(self, seq_id: int) -> OfferStats:
        """What the sequence's last request was offered; it may have ended."""
        return self._tallies.get(seq_id, OfferStats())

    # Drafting

    def draft(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        self._prices.spent, began = 0.0, self.clock()
        self._n_rounds = 1 + self.naps.slept
        if self.looks_away(rooms):
            return {}
        drafts = self._decide(rooms)
        self.naps.worked(self.clock() - began - self._prices.spent)
        return drafts

    def _decide(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        prices, active = self._prices, len(rooms)
        prices.seconds, prices.scale = self.costs.table(), self.costs.scale
        prices.budget = self.costs.predict(active) + self.ledger.stake * self.costs.predict(1)
        ready = self.costs.count(active) > 0 and self.ledger.credit > 0
        ready = ready and active < WIDEST and not self.ledger.plain_due and not self.costs.unsettled
        for seq, room in rooms.items():
            state = self._states.get(seq)
            if state is None:
                state = self._states[seq] = _State()
            state.begin(self._free(seq, min(room, WIDEST - active), active))
        if not ready:
            return {}
        offers = {seq: self._states[seq].free for seq in rooms}
        counts = best_prefixes(offers, prices, active)
        rows, tokens = total(offers, counts, list(rooms))
        self._alternative = prices.rate(active + tokens, active + rows)
        for seq, n in counts.items():
            self._states[seq].n_free = n
        if self._look(rooms, offers, counts):
            counts = best_prefixes(offers, prices, active)
        return {seq: d for seq in rooms if (d := self._draft_of(seq, offers[seq], counts[seq])) is not None}

    def _draft_of(self, seq: int, offer: CandidateDraft, n: int) -> Draft | None:
        look = self._states[seq].look
        drafted = offer.sources[:n]
        n_discarded = look.sources.count(MODEL) if look is not None else 0
        if look is offer:
            n_discarded -= drafted.count(MODEL)
        return Draft(offer.tokens[:n], drafted, n_discarded) if n or n_discarded else None

    def _free(self, seq: int, room: int, active: int) -> CandidateDraft:
        """What is offered for nothing: what a grammar forces, else by the first drafter with something."""
        offer = CandidateDraft()
        grammar = self.named(GRAMMAR)
        while grammar is not None and len(offer.tokens) < room and (got := grammar.step({seq: offer.tokens})):
            offer.add(got[seq].token, GRAMMAR, 0, self.learnt.tables[GRAMMAR].chances[0])
        for drafter in self.drafters:
            if offer.tokens:
                break
            if drafter.name not in (MODEL, GRAMMAR):
                self._ask(drafter, seq, min(CHUNK, room), offer)
                n = len(offer.tokens)
                if CHUNK <= n < room and self.costs.known:
                    taken, _ = best_allowed(offer.expected, self._prices, active, active)
                    if n - taken <= NEAR_END:
                        self._ask(drafter, seq, room, offer)
        return offer

    def _ask(self, drafter: Drafter, seq: int, limit: int, offer: CandidateDraft) -> None:
        """Extend the offer to `limit` tokens as far as the drafter knows any."""
        chances, propose = self.learnt.tables[drafter.name].chances, getattr(drafter, "propose", None)
        while (n := len(offer.tokens)) < limit:
            run = propose(seq, limit)[n:] if propose else [*drafter.step({seq: offer.tokens}).values()]
            if run:
                tokens, confidences, _ = zip(*run, strict=True)
                bins = confidence_bins(confidences)
                offer.extend(tokens, drafter.name, bins, [chances[bin_] for bin_ in bins])
            if propose or not run:
                return

    # The draft model

    def _look(
        self, rooms: Mapping[int, int], offers: dict[int, CandidateDraft], counts: dict[int, int]
    ) -> bool:
        """Ask the draft model where that should pay; put its drafts into `offers` where they are better."""
        model, prices, active = self.named(MODEL), self._prices, len(rooms)
        if model is None:
            return False
        t1, step = self.costs.predict(1), self.learnt.steps.predict
        limits, anew, n_pending = {}, dict[int, int | None](), 0
        for seq, room in rooms.items():
            state, n = self._states[seq], counts[seq]
            state.kind = kind_of(offers[seq], n)
            if room <= 0:
                continue
            if state.looks is None:
                state.looks = DraftGate(self.learnt.looks, first_gains(self.costs.predict, step(1, t1)))
            pending, state.late, anew[seq] = self._view(seq, t1, active)
            if pending and state.looks.due(state.kind, state.late / t1, self._n_rounds):
                limits[seq] = min(room, MOST_LOOKED, WIDEST - active)
                n_pending += pending
        if not limits or not prices.allows(active + 1, step(n_pending, t1)):
            return False
        looks, beside = {}, {}
        for seq in limits:
            state = self._states[seq]
            assert state.looks is not None
            state.looks.looked(state.kind)
            if (n_last := anew[seq]) is not None and self._caching is not None:
                self._caching.restart_from_tail(seq, n_last)
            rows, tokens = total(offers, counts, [other for other in rooms if other != seq])
            beside[seq] = active + rows, active + tokens
            looks[seq] = CandidateDraft()
        self._asking.run(model, self.named(GRAMMAR), looks, limits, beside, prices, n_pending, t1)
        for seq, look in looks.items():
            self._states[seq].look = look  # not before: one that an error ended is none
            without = self._rate_of(offers[seq], counts[seq], beside[seq])
            if best_allowed(look.expected, prices, *beside[seq])[1] > without:
                offers[seq] = look
        return True

    def _rate_of(self, offer: CandidateDraft, n: int, beside: tuple[int, float]) -> float:
        """The round's rate with the first n tokens of the offer; 0 where it has become too dear."""
        rows, tokens = beside
        if n and not self._prices.allows(rows + n):
            n = 0
        return self._prices.rate(tokens + offer.wins(n), rows + n)

    def _view(self, seq: int, t1: float, active: int) -> tuple[int, float, int | None]:
        """(ids that the model would evaluate first, seconds of it that are catching up, ids to begin anew
        with); no ids where it must not be asked.

        A prompt is covered from its end, as far as half of the credit goes and what a round may cost leaves
        something to draft with; whole, once what drafting has won pays for it.
        """
        if self._caching is None:
            return 1, 0.0, None
        view, step = self._caching.view(seq), self.learnt.steps.predict
        one, credit, n = step(1, t1), self.ledger.credit * t1, sum(view)
        if view.n_skipped and step(n, t1) < credit - ALLOWANCE * t1:
            return n, 0.0, n
        most = min(credit / 2, self._prices.budget - self._prices.worst(active + 1))
        if view.n_held or view.n_pending <= LEAST_TAIL or step(view.n_pending, t1) <= most:
            return view.n_pending, step(view.n_pending, t1) - one, None
        n = view.n_pending
        while n >= LEAST_TAIL and step(n, t1) > most:
            n //= 2
        return (n, step(n, t1) - one, n) if n >= LEAST_TAIL else (0, 0.0, None)

    # Learning

    def observe(self, done: Round) -> None:
        """Book the time of the round, and judge the looks."""
        costs, prices, active, began = self.costs, self._prices, len(done.outcomes), self.clock()
        verify, n_emitted = done.verify_seconds, sum(o.n_emitted for o in done.outcomes)
        if self.naps.asleep:
            self.ledger.plain(n_emitted)
            if self.naps.slept % LISTENING == 0:
                costs.observe(done.n_rows, verify, plain=True)
            return
        if costs.sure(done.n_rows):
            verify = min(verify, DISTURBED * costs.predict(done.n_rows))
        plain = done.n_rows == active and prices.spent == 0
        costs.observe(done.n_rows, done.verify_seconds, plain)
        t1 = costs.predict(1)
        worth = n_emitted * costs.predict(active) / active / t1
        if plain:
            self.ledger.plain(worth)
        else:
            drafting = min(done.draft_seconds, DISTURBED * (prices.spent + t1))
            self.ledger.drafted(worth, (verify + drafting) / t1)
        looking = [o for o in done.outcomes if (s := self._states.get(o.seq_id)) and s.look is not None]
        for outcome in looking:
            self._judge(outcome, prices.spent / len(looking), done.n_rows, t1)
        for outcome in done.outcomes:
            if (state := self._states.get(outcome.seq_id)) is not None:
                state.begin(NOTHING)
        prices.spent = 0.0
        self.naps.worked(self.clock() - began)
        self.looked(done, costs.predict(active))

    def _judge(self, outcome: VerifyResult, spent: float, n_rows: int, t1: float) -> None:
        """What a look brought against the best round without it, in t(1)."""
        state, n = self._states[outcome.seq_id], len(outcome.draft.tokens)
        assert state.looks is not None
        won = state.late - spent
        if MODEL in outcome.draft.sources:
            other = n_rows - n + state.n_free
            won += (outcome.n_accept - state.free.wins(state.n_free)) / self._alternative
            won -= self.costs.predict(n_rows) - self.costs.predict(other)
        state.looks.judge(state.kind, won / t1)
