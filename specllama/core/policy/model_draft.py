"""Asking the draft model, token by token, for as long as that may pay. It proposes; the planner decides."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Mapping

from specllama.core.interfaces import Drafter
from specllama.core.policy.candidates import CandidateDraft, RoundBudget, best_of
from specllama.core.policy.pair_state import GRAMMAR, MODEL, PairState

EDGES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
MOST_LOOKED = 48  # tokens of the draft model in a round
AHEAD = 8  # tokens that are considered before it is stopped
DOUBT = 0.6  # share of their risk that counts: it can still be stopped at each of them


def confidence_bin(confidence: float) -> int:
    """The bin of a drafter's own confidence, fine near 1: fifteen tokens at 0.95 are no fifteen at 0.995."""
    return bisect(EDGES, confidence)


def confidence_bins(confidences: Iterable[float]) -> list[int]:
    """The same of several."""
    return [bisect(EDGES, confidence) for confidence in confidences]


class Asking:
    """Steps the draft model for all sequences that want it, and times it."""

    def __init__(self, clock: Callable[[], float], learnt: PairState) -> None:
        self.clock, self.learnt = clock, learnt

    def run(
        self,
        model: Drafter,
        grammar: Drafter | None,
        looks: Mapping[int, CandidateDraft],
        limits: Mapping[int, int],
        beside: Mapping[int, tuple[int, float]],
        prices: RoundBudget,
        n_pending: int,
        t1: float,
    ) -> None:
        """Extend `looks`, each up to its limit. beside: rows of the round and tokens expected of it without
        the sequence's own draft. n_pending: ids that the first step evaluates. Books the time in `prices`.
        """
        open_ = set(looks)
        best = dict.fromkeys(looks, 0)  # the prefix of each with the best rate
        steps, chances = self.learnt.steps, self.learnt.tables[MODEL].chances
        while open_:
            if grammar is not None:
                open_ = self._force(grammar, looks, limits, open_)
                if not open_:
                    return
            begun = self.clock()
            found = model.step({seq: looks[seq].tokens for seq in looks if seq in open_})
            took = self.clock() - begun
            steps.observe(n_pending, took)
            prices.spent += took
            n_pending = len(open_)
            for seq in list(open_):
                look, proposal = looks[seq], found.get(seq)
                if proposal is not None:
                    bin_ = confidence_bin(proposal.confidence)
                    look.add(proposal.token, MODEL, bin_, chances[bin_])
                    if len(look.tokens) < limits[seq]:
                        best[seq], rate = best_of(look.expected, prices, *beside[seq], best[seq])
                        step = steps.predict(len(open_), t1)
                        if self._pays(look, bin_, rate, *beside[seq], prices, step):
                            continue
                open_.discard(seq)

    def _force(
        self,
        grammar: Drafter,
        looks: Mapping[int, CandidateDraft],
        limits: Mapping[int, int],
        open_: set[int],
    ) -> set[int]:
        """Add what a grammar forces next; the sequences that still have room."""
        forced = set(open_)
        while forced:
            found = grammar.step({seq: looks[seq].tokens for seq in looks if seq in forced})
            for seq, proposal in found.items():
                looks[seq].add(proposal.token, GRAMMAR, 0, self.learnt.tables[GRAMMAR].chances[0])
            forced = {seq for seq in found if len(looks[seq].tokens) < limits[seq]}
        return {seq for seq in open_ if len(looks[seq].tokens) < limits[seq]}

    def _pays(
        self,
        look: CandidateDraft,
        bin_: int,
        top: float,
        rows: int,
        tokens: float,
        prices: RoundBudget,
        step: float,
    ) -> bool:
        """Whether some of the next tokens could make the round's rate better than `top`, the best so far,
        perhaps behind a stair of the cost curve.
        """
        n, spent, scale = rows + len(look.tokens), prices.spent, prices.scale
        chance = 1 - DOUBT * (1 - self.learnt.after.chances[bin_])
        reached, wins = look.reached[-1], tokens + look.expected[-1]
        for q, took in enumerate(prices.seconds[n + 1 : min(n + AHEAD, prices.most_rows) + 1], 1):
            reached *= chance
            wins += reached
            if wins / (took * scale + spent + q * step) > top:
                return prices.allows(n + q, q * step)
        return False
