"""The drafters whose tokens cost decodes, draft models and heads: what one has to evaluate before its first
token, and the loop that drafts token by token.

Whether a draft pays is decided in planner.py, by posterior.py; here its confidence decides how long it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from specllama.core.interfaces import CachingDrafter, Drafter, Proposal
from specllama.core.policy.candidates import CandidateDraft, RoundBudget, best_length
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.posterior import DrafterPosterior, PairState, StepCosts


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

    def __init__(
        self,
        drafter: Drafter,
        learnt: PairState,
        clock: Callable[[], float],
        config: PolicyConfig = DEFAULT,
    ) -> None:
        self.drafter, self.name, self.learnt = drafter, drafter.name, learnt
        self.posterior: DrafterPosterior = learnt.models[drafter.name]
        self.clock, self.config = clock, config
        self.caching = drafter if isinstance(drafter, CachingDrafter) else None
        self.is_head = drafter.reads_features
        self._in_blocks = drafter.drafts_blocks

    @property
    def steps(self) -> StepCosts:
        """Times of its steps."""
        return self.posterior.steps

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
