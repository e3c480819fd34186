"""The drafter `memory`: proposes what was written in earlier requests of the same scope.

Extraction, classification and agent loops write much alike from request to request (SuffixDecoding, Oliaro et
al. 2024, arXiv 2411.04975). The texts of a scope lie in a ring; how a text follows one of them, changes
included, is copy.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.core.interfaces import Mask, Proposal, Sampler
from specllama.drafters import MEMORY, DrafterInputs, RegisteredDrafter
from specllama.drafters.copy import CopiedText
from specllama.drafters.ngram_index import MAX_COMPARED
from specllama.drafters.ring import RequestHistory, Ring, RingIndex

FILED_AT_START, FILED_A_ROUND = 8192, 512  # tokens filed at most where a text begins, and in a round of one


class MemoryDrafter(RegisteredDrafter):
    """Drafts from a memory, for all sequences; see the module. It only reads: who ends a request says what
    is kept of it. Evidence of a proposal: as the copy drafter's.
    """

    entry = MEMORY

    def __init__(self, memory: RequestHistory) -> None:
        self.memory = memory
        self._scopes: dict[int, str | None] = {}
        self._texts: dict[int, tuple[Ring, CopiedText]] = {}

    def set_scope(self, seq_id: int, scope: str | None) -> None:
        """The sequence that starts next may use the texts of this scope and of no other; None: no texts."""
        self._scopes[seq_id] = scope

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler | None = None,  # noqa: ARG002
        mask: Mask | None = None,  # noqa: ARG002
    ) -> None:
        """A sequence begins with these ids, of which only the end is looked at."""
        self._texts.pop(seq_id, None)
        scope = self._scopes.get(seq_id, "")
        if scope is None:
            return
        ring = self.memory.of(scope)
        ring.index_pending(FILED_AT_START)
        index = RingIndex(ring, prompt[-MAX_COMPARED:])
        self._texts[seq_id] = ring, CopiedText(index)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        """One more token for each sequence that goes on as an earlier text did; `Drafter.step`."""
        proposals = {}
        for seq_id, drafted in drafts.items():
            run = self.propose(seq_id, len(drafted) + 1)
            if len(run) > len(drafted):
                proposals[seq_id] = run[-1]
        return proposals

    def propose(self, seq_id: int, limit: int) -> list[Proposal]:
        """What `step` would propose one by one, at most `limit` tokens."""
        return self._texts[seq_id][1].propose(limit) if seq_id in self._texts else []

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence went on with these ids."""
        if seq_id not in self._texts:
            return
        ring, text = self._texts[seq_id]
        text.push(tokens)
        ring.index_pending(FILED_A_ROUND)

    def forget(self, seq_id: int) -> None:
        """The sequence ended; unknown ones are nothing to forget."""
        self._texts.pop(seq_id, None)
        self._scopes.pop(seq_id, None)


def make(inputs: DrafterInputs) -> MemoryDrafter | None:
    """The drafter, None where no texts are kept."""
    return None if inputs.history is None else MemoryDrafter(inputs.history)
