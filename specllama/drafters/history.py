"""The drafter `memory`: copies from the outputs of earlier requests of the same scope; and `corpus`, the same
from files that the user has named.

Extraction, classification and agent loops write similar texts in every request (SuffixDecoding, Oliaro et al.
2024, arXiv 2411.04975). The texts of a scope are in a ring of the request history (ngrams.py);
how a text follows one of them, edits included, is in copy.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from specllama.drafters import CORPUS, HISTORY
from specllama.drafters.copy import CopiedText, CopyDrafter
from specllama.drafters.ngrams import MAX_COMPARED, RequestHistory, Ring, RingIndex

INDEXED_AT_START, INDEXED_PER_ROUND = 32768, 512  # most tokens indexed at the start, in 7 ms, and per round


class HistoryDrafter(CopyDrafter, like=HISTORY):
    """Drafts from a request history, for all sequences; see the module. It adds no texts: whoever ends a
    request calls `RequestHistory.keep`.
    """

    remembers = True

    def __init__(self, history: RequestHistory) -> None:
        super().__init__()
        self.history = history
        self._scopes: dict[int, str | None] = {}
        self._rings: dict[int, Ring] = {}

    def set_scope(self, seq_id: int, scope: str | None) -> None:
        self._scopes[seq_id] = scope

    def _text(self, seq_id: int, prompt: Sequence[int]) -> CopiedText | None:
        """As in CopyDrafter; only the last ids are used."""
        scope = self._scopes.get(seq_id, "")
        if scope is None:
            return None
        ring = self._rings[seq_id] = self.history.ring(scope)
        ring.index_pending(INDEXED_AT_START)
        return CopiedText(RingIndex(ring, prompt[-MAX_COMPARED:]))

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence continued with these ids."""
        super().committed(seq_id, tokens)
        if (ring := self._rings.get(seq_id)) is not None:
            ring.index_pending(INDEXED_PER_ROUND)

    def forget(self, seq_id: int) -> None:
        super().forget(seq_id)
        self._scopes.pop(seq_id, None)
        self._rings.pop(seq_id, None)


class CorpusDrafter(HistoryDrafter, like=CORPUS):
    """Drafts from files that the user has named, whoever asks."""

    remembers = False

    def set_scope(self, seq_id: int, scope: str | None) -> None:
        """The corpus has no scopes."""
