"""The request history, and the drafter `memory`, which copies from the outputs of earlier requests of the
same scope.

Extraction, classification and agent loops write similar texts in every request (SuffixDecoding, Oliaro et al.
2024, arXiv 2411.04975). The texts of a scope are in a ring (ring.py); how a text follows one of them, edits
included, is in copy.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.core.interfaces import Mask, Proposal, Sampler
from specllama.drafters import HISTORY, DrafterInputs, RegisteredDrafter
from specllama.drafters.copy import CopiedText, proposals_of
from specllama.drafters.ngram_index import MAX_COMPARED, N_GRAM
from specllama.drafters.ring import RING_BITS, Ring, RingIndex

MAX_SCOPES = 32  # most recently used scopes whose rings are kept: 384 MiB at most
N_CONTEXT = N_GRAM - 1  # ids before a text that are kept with it, so that a match can end at its first token
INDEXED_AT_START, INDEXED_PER_ROUND = 8192, 512  # most tokens indexed at the start and per round


class RequestHistory:
    """Outputs of earlier requests, by scope. bits: a ring holds 2**bits tokens. max_scopes: rings kept."""

    def __init__(self, bits: int = RING_BITS, max_scopes: int = MAX_SCOPES) -> None:
        self.bits, self.max_scopes = bits, max_scopes
        self._rings: dict[str, Ring] = {}  # the most recently used one last

    def ring(self, scope: str) -> Ring:
        """The ring of this scope; a new one replaces the least recently used."""
        ring = self._rings.pop(scope, None)
        if ring is None:
            ring = Ring(self.bits)
        self._rings[scope] = ring
        if len(self._rings) > self.max_scopes:
            del self._rings[next(iter(self._rings))]
        return ring

    def keep(self, scope: str, history: Sequence[int], n_prompt: int) -> None:
        """Keep the ids after the first `n_prompt`. They are indexed piece by piece, in later rounds."""
        if len(history) > n_prompt:
            self.ring(scope).add(history[max(0, n_prompt - N_CONTEXT) :])

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, pending texts not included."""
        return sum(ring.n_bytes for ring in self._rings.values())


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
        proposals = {}
        for seq_id, draft in drafts.items():
            run = self.propose(seq_id, len(draft) + 1)
            if len(run) > len(draft):
                proposals[seq_id] = run[-1]
        return proposals

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
