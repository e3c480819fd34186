"""The drafter `head` for heads that draft a block at once (DFlash, arXiv 2602.06036, and DSpark).

The head's cache holds the target's features of the text; one decode gives the logits of all tokens of a
block. So the first step of a draft costs that decode, and the following ones cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specllama.core.heads import BlockHead, Hidden
from specllama.core.interfaces import (
    BatchRow,
    DecodeError,
    DraftCacheState,
    Mask,
    NoRoomError,
    Proposal,
    Sampler,
)
from specllama.core.sampling.probabilities import probability
from specllama.core.sampling.sampler import NOTHING_LEGAL
from specllama.core.sequence import common_prefix
from specllama.drafters import HEAD, RegisteredDrafter
from specllama.drafters.features import FeatureRows


@dataclass(slots=True)
class _Injected:
    """The cells of a sequence in the head's cache: those of the tokens `ids`, the first at position `first`.
    scope: whose ids they are.
    """

    first: int = 0
    ids: list[int] = field(default_factory=list)
    scope: str = ""


@dataclass(slots=True)
class _BlockState:
    """A sequence being drafted for. least: no cell of an earlier token is filled. block: logits of the tokens
    after the history, shape (n_draft, n_vocab); None before the first step.
    """

    history: list[int]
    sampler: Sampler
    mask: Mask | None
    least: int = 0
    block: NDArray[np.float32] | None = None


class BlockDrafter(RegisteredDrafter):
    """Drafts with a block head, from the features that it receives as a `FeatureReader`.

    Parameters as for `HeadDrafter`. After a block there are no more proposals until tokens are committed.
    """

    entry = HEAD
    drafts_blocks = True

    def __init__(
        self, head: BlockHead, n_vocab: int, confident: bool = True, end_ids: Collection[int] = ()
    ) -> None:
        self.head, self.confident, self.end_ids = head, confident, frozenset(end_ids)
        self.n_vocab = min(n_vocab, head.n_vocab)
        self._features = FeatureRows(head.n_seq_max, head.n_features)
        self.states: dict[int, _BlockState] = {}
        self.caches = {seq: _Injected() for seq in range(head.n_seq_max)}

    def features_decoded(self, batch: Sequence[BatchRow], features: Hidden) -> None:
        self._features.record(batch, features)

    def set_cache_scope(self, seq_id: int, scope: str) -> None:
        if scope != self.caches[seq_id].scope:
            self._empty(seq_id, 0)
            self.caches[seq_id].scope = scope

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        self.states[seq_id] = _BlockState(list(prompt), sampler.limited(self.n_vocab), mask)
        cache = self.caches[seq_id]
        del cache.ids[common_prefix(cache.ids, prompt[cache.first :]) :]

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        try:
            self._draft_blocks([seq for seq in drafts if self.states[seq].block is None and self._fits(seq)])
        except NoRoomError:
            return {}
        proposals = {}
        for seq, draft in drafts.items():
            state = self.states[seq]
            if state.block is None or len(draft) >= len(state.block) or (draft and draft[-1] in self.end_ids):
                continue
            row = state.block[len(draft)]
            token = state.sampler.choose(row, state.history, mask=state.mask, ahead=draft).token
            if token != NOTHING_LEGAL:
                proposals[seq] = Proposal(token, probability(row, token) if self.confident else 1.0)
        return proposals

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        state = self.states[seq_id]
        state.history.extend(tokens)
        state.block = None

    def forget(self, seq_id: int) -> None:
        """The sequence ended; its cache is kept for the next one with a common prefix."""
        self.states.pop(seq_id, None)

    def cache_state(self, seq_id: int) -> DraftCacheState:
        """As in `CachingDrafter`; the last token counts as pending, its block is decoded with it. Nothing is
        pending where its features were not kept.
        """
        first, begin, end = self._missing(seq_id)
        return DraftCacheState(0, begin - first, end - begin + 1 if end > first else 0)

    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """As in `CachingDrafter`; the cells keep their positions."""
        self._empty(seq_id, 0)
        state = self.states[seq_id]
        state.least = max(0, len(state.history) - max(1, n_last))

    def _empty(self, seq_id: int, first: int) -> None:
        self.head.truncate(seq_id, 0)
        cache = self.caches[seq_id]
        cache.first = first
        cache.ids.clear()

    def _missing(self, seq_id: int) -> tuple[int, int, int]:
        """(first, begin, end): cells of tokens first to begin - 1 can stay in the cache, those of tokens
        begin to end - 1 are missing; first == end where there can be none.
        """
        state, cache = self.states[seq_id], self.caches[seq_id]
        end = len(state.history) - 1  # the last token has no features yet
        kept = min(cache.first + len(cache.ids), end)
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
                history, cache = self.states[seq].history, self.caches[seq]
                if begin == first:
                    self._empty(seq, first)
                else:
                    self.head.truncate(seq, begin)
                    del cache.ids[begin - first :]
                if begin < end:
                    self.head.inject(seq, begin, self._features.rows(seq, begin, end))
                    cache.ids += history[begin:end]
                last[seq] = (history[-1], end)
            for seq, rows in self.head.draft(last).items() if last else ():
                self.states[seq].block = rows
        except DecodeError:
            for seq in self.caches:
                self._empty(seq, 0)
            raise
