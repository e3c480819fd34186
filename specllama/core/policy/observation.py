"""Drafters that are told what came, at once or, while nobody looks, later and together. Knows drafters by
their interface, and time by the clock that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specllama.core.interfaces import CallingDrafter, Drafter, Mask
from specllama.core.policy.backoff import Naps
from specllama.core.policy.base import PolicyBase, Round
from specllama.core.policy.draft_gate import LIKELY_COPY
from specllama.core.policy.model_draft import confidence_bin
from specllama.core.policy.pair_state import PairState
from specllama.core.sampling.sampler import Sampler


class Attentive(PolicyBase):
    """A policy that may look away; naps.py says when. What it does itself where it looks is its own."""

    def __init__(self, drafters: Sequence[Drafter], clock: Callable[[], float]) -> None:
        super().__init__(drafters)
        self.clock, self.naps = clock, Naps()
        self.learnt = PairState(d.name for d in drafters)
        self._calling = [d for d in drafters if isinstance(d, CallingDrafter)]
        self._masked: set[int] = set()  # sequences with a grammar, which may force something in every round

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        chooser: Sampler,
        mask: Mask | None = None,
        owner: str | None = "",
    ) -> None:
        super().start(seq_id, prompt, chooser, mask, owner)
        self.naps.start(seq_id)
        self._masked.discard(seq_id)
        if mask is not None:
            self._masked.add(seq_id)

    def forget(self, seq_id: int) -> None:
        super().forget(seq_id)
        self._masked.discard(seq_id)
        self.naps.catch_up(seq_id)

    def drop(self, name: str) -> None:
        super().drop(name)
        self._calling = [d for d in self._calling if d.name != name]

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        if self.naps.asleep:
            self.naps.miss(seq_id, tokens)
        else:
            super().committed(seq_id, tokens)

    def looks_away(self, rooms: Mapping[int, int]) -> bool:
        """Whether nothing is to be drafted in this round; else the drafters know all that came."""
        call = max(map(self._call, rooms)) if self.naps.listens else 0
        if self.naps.begin(call, any(rooms.values())):
            return True
        for seq in rooms:
            self._catch_up(seq)
        return False

    def looked(self, done: Round, plain: float) -> None:
        """What came of a round that was not slept through. plain: seconds of a decode without drafts."""
        self.naps.end(any(o.n_accept for o in done.outcomes) or bool(self._masked), plain)

    def _call(self, seq: int) -> int:
        """The bin of what a drafter is sure of that says so for nearly nothing, where it is likely right."""
        self._catch_up(seq)
        bins = ((confidence_bin(d.peek_confidence(seq)), self.learnt.tables[d.name]) for d in self._calling)
        return max((bin_ for bin_, table in bins if table.chances[bin_] > LIKELY_COPY), default=0)

    def _catch_up(self, seq: int) -> None:
        if missed := self.naps.catch_up(seq):
            super().committed(seq, missed)
