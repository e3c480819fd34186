"""The drafter `memory`: copies from the outputs of earlier requests of the same scope.

Extraction, classification and agent loops write similar texts in every request (SuffixDecoding, Oliaro et al.
2024, arXiv 2411.04975). The texts of a scope are in a ring of the request history (ngrams.py);
how a text follows one of them, edits included, is in copy.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.core.interfaces import Mask, Proposal, Sampler
from specllama.drafters import HISTORY, DrafterInputs, RegisteredDrafter
from specllama.drafters.copy import CopiedText, next_proposals, proposals_of
from specllama.drafters.ngrams import MAX_COMPARED, RequestHistory, Ring, RingIndex

INDEXED_AT_START, INDEXED_PER_ROUND = 8192, 512  # most tokens indexed at the start and per round


class HistoryDrafter(RegisteredDrafter):
    """Drafts from a request history, for all sequences; see the module. It adds no texts: whoever ends a
    request calls `RequestHistory.keep`.
    """

    entry = HISTORY

    def __init__(self, history: RequestHistory) -> None:
        self.history = history
        self.with_alternatives = False  # see `OffersAlternatives`
        self._scopes: dict[int, str | None] = {}
        self._texts: dict[int, tuple[Ring, CopiedText]] = {}

    def set_scope(self, seq_id: int, scope: str | None) -> None:
        """Set the scope of the sequence that starts next; it uses the texts of no other. None: no texts."""
        self._scopes[seq_id] = scope

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler | None = None,  # noqa: ARG002
        mask: Mask | None = None,  # noqa: ARG002
    ) -> None:
        """A sequence starts with these ids, of which only the last ones are used."""
        self._texts.pop(seq_id, None)
        scope = self._scopes.get(seq_id, "")
        if scope is None:
            return
        ring = self.history.ring(scope)
        ring.index_pending(INDEXED_AT_START)
        index = RingIndex(ring, prompt[-MAX_COMPARED:])
        self._texts[seq_id] = ring, CopiedText(index)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        """One more token for each sequence that follows an earlier text; see `Drafter.step`."""
        return next_proposals(self.propose, drafts)

    def propose(self, seq_id: int, limit: int) -> list[Proposal]:
        """At most `limit` tokens: those that `step` would propose one by one."""
        if seq_id not in self._texts:
            return []
        return proposals_of(self._texts[seq_id][1], limit, self.with_alternatives)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence continued with these ids."""
        if seq_id not in self._texts:
            return
        ring, text = self._texts[seq_id]
        text.push(tokens)
        ring.index_pending(INDEXED_PER_ROUND)

    def forget(self, seq_id: int) -> None:
        """The sequence ended; unknown ones are ignored."""
        self._texts.pop(seq_id, None)
        self._scopes.pop(seq_id, None)


def make(inputs: DrafterInputs) -> HistoryDrafter | None:
    """The drafter, None where no texts are kept."""
    return None if inputs.history is None else HistoryDrafter(inputs.history)
