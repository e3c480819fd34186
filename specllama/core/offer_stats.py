"""What the drafters offered a request, and how much of it was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllama.core.policy.candidates import CandidateDraft
from specllama.core.policy.pair_state import GRAMMAR


@dataclass(slots=True)
class OfferStats:
    """Of a request, whether drafted or not: rounds in which the planner looked; of them those with a token
    that was offered for nothing (forced ones left out), and those where it was right; rounds in which the
    draft model was asked, named a token, and was right.
    """

    rounds: int = 0
    offered: int = 0
    offered_right: int = 0
    asked: int = 0
    named: int = 0
    named_right: int = 0

    def count(self, free: CandidateDraft, look: CandidateDraft | None, tokens: Sequence[int]) -> None:
        """A round: what was offered for nothing, what the draft model said where it was asked, what came."""
        first = list(tokens[:1])
        self.rounds += 1
        if free.tokens and free.sources[0] != GRAMMAR:
            self.offered += 1
            self.offered_right += free.tokens[:1] == first
        if look is not None:
            self.asked += 1
            self.named += bool(look.tokens)
            self.named_right += bool(first) and look.tokens[:1] == first
