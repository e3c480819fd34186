"""The drafter `head` for heads that draft a block at once (DFlash, arXiv 2602.06036, DFlash 2, DSpark).

The head's cache holds the target's features of the text; one decode gives the logits of all tokens of a
block. So the first step of a draft costs that decode, and the following ones cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from specllama.core.interfaces import (
    BlockHead,
    DecodeError,
    DraftCacheState,
    DraftedBlock,
    Mask,
    NoRoomError,
    Proposal,
    Sampler,
)
from specllama.drafters.feature_drafter import FeatureDrafter, HeadState


@dataclass(slots=True)
class _BlockState(HeadState):
    """block: the block after the history, None before the first step."""

    block: DraftedBlock | None = None


class BlockDrafter(FeatureDrafter[BlockHead, _BlockState]):
    """Drafts a block at a time. After a block there are no more proposals until tokens are committed."""

    drafts_blocks = True

    def __init__(
        self, head: BlockHead, n_vocab: int, confident: bool = True, end_ids: Collection[int] = ()
    ) -> None:
        super().__init__([head], n_vocab, confident, end_ids)

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        self._begin(seq_id, _BlockState(list(prompt), sampler.limited(self.n_vocab), mask))

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        try:
            self._draft_blocks([seq for seq in drafts if self.states[seq].block is None and self._fits(seq)])
        except NoRoomError:
            return {}
        rows = {}
        for seq, draft in drafts.items():
            block, ended = self.states[seq].block, bool(draft) and draft[-1] in self.end_ids
            row = block.logits(draft) if block is not None and not ended else None
            if row is not None:
                rows[seq] = row
        return self._proposals(rows, drafts)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        state = self.states[seq_id]
        self._features.accept_branch(seq_id, len(state.history), tokens)
        state.history.extend(tokens)
        state.block = None

    def cache_state(self, seq_id: int) -> DraftCacheState:
        """As in `CachingDrafter`; the last token counts as pending, its block is decoded with it. Nothing is
        pending where its features were not kept.
        """
        first, begin, end = self._missing(seq_id)
        return DraftCacheState(0, begin - first, end - begin + 1 if end > first else 0)

    def _missing(self, seq_id: int) -> tuple[int, int, int]:
        """(first, begin, end): cells of tokens first to begin - 1 can stay in the cache, those of tokens
        begin to end - 1 are missing; first == end where there can be none.
        """
        state, cache = self.states[seq_id], self.cells[0].caches[seq_id]
        end = len(state.history) - 1  # the last token has no features yet
        kept = min(cache.end, end)
        known = self._features.known_from(seq_id, state.history, end, min(state.least, end))
        if kept > cache.first and known <= kept:
            return cache.first, kept, end
        return known, known, end

    def _fits(self, seq: int) -> bool:
        return len(self.states[seq].history) + self.head.n_draft < self.head.n_ctx

    def _draft_blocks(self, seqs: Sequence[int]) -> None:
        """Bring the caches up to date, and draft a block for each sequence with one."""
        last = {}
        try:
            for seq in seqs:
                first, begin, end = self._missing(seq)
                if first == end:
                    continue
                history, cache = self.states[seq].history, self.cells[0].caches[seq]
                if begin == first:
                    self.cells[0].restart(seq, first)
                else:
                    self.head.truncate(seq, begin)
                    del cache.ids[begin - first :]
                if begin < end:
                    self.head.inject(seq, begin, self._features.rows(seq, begin, end))
                    cache.ids += history[begin:end]
                last[seq] = (history[-1], end)
            for seq, block in self.head.draft(last).items() if last else ():
                self.states[seq].block = block
        except DecodeError:
            self._restart_all()
            raise
