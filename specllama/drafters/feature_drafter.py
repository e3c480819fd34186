"""The common part of the drafters that read the target's hidden states: which of these are kept, what the
head's cache holds of each sequence, and how a proposal is chosen; and the one for heads that draft blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import (
    BatchRow,
    BlockHead,
    CachingDrafter,
    DecodeError,
    DraftCacheState,
    DraftedBlock,
    DraftHead,
    Hidden,
    Mask,
    NoRoomError,
    Proposal,
    Sampler,
)
from specllama.core.sampling.proposal import propose
from specllama.core.sequence import common_prefix
from specllama.drafters import HEAD

KEPT_ROWS = 256  # of a sequence: a head's cache reaches back this far where it was not kept up to date


class FeatureRows:
    """The target's features of the last `kept` tokens decoded of each sequence, each with its token id, so
    that rows of rejected drafts and of earlier texts are never mistaken for those of a text.
    """

    def __init__(self, n_seq_max: int, n_features: int, kept: int = KEPT_ROWS) -> None:
        self.kept = kept
        self._rows = np.zeros((n_seq_max, kept, n_features), np.float32)
        self._pos = np.full((n_seq_max, kept), -1, np.int64)
        self._token = np.full((n_seq_max, kept), -1, np.int64)
        self._branches: list[tuple[Sequence[BatchRow], Hidden]] = []  # of the last decode

    def record(self, batch: Sequence[BatchRow], features: Hidden) -> None:
        """Keep the features of a decode, shape (len(batch), n_features)."""
        first = max(0, len(batch) - self.kept)  # a decode of more rows is a piece of a single prompt
        tokens, positions, seqs, _ = zip(*batch[first:], strict=True)
        at = np.array(positions) % self.kept
        self._rows[seqs, at] = features[first:]
        self._pos[seqs, at] = positions
        self._token[seqs, at] = tokens

    def record_branches(self, branches: Sequence[Sequence[BatchRow]], features: Hidden) -> None:
        """Keep the features of branches, shape (number of rows, n_features), until the next decode."""
        self._branches, at = [], 0
        for rows in branches:
            self._branches.append((rows, features[at : at + len(rows)].copy()))
            at += len(rows)

    def accept_branch(self, seq_id: int, n_past: int, tokens: Sequence[int]) -> None:
        """After its first `n_past` tokens, the sequence goes on with these. Where they are those of a branch,
        its features are those of the tokens.
        """
        for rows, features in self._branches:
            first = rows[0].pos - n_past
            if rows[0].seq_id != seq_id or not 0 <= first < len(tokens):
                continue
            at = np.arange(n_past, rows[0].pos) % self.kept
            n = common_prefix([row.token for row in rows], tokens[first:])
            if n and (self._token[seq_id, at] == tokens[:first]).all():
                self.record(rows[:n], features[:n])
                return

    def known_from(self, seq_id: int, ids: Sequence[int], end: int, least: int) -> int:
        """The first position from which on the features of all of ids[:end] are kept, at least `least`; `end`
        where those of the last one are not.
        """
        least = max(least, end - self.kept, 0)
        span = np.arange(least, end)
        at = span % self.kept
        known = (self._pos[seq_id, at] == span) & (self._token[seq_id, at] == ids[least:end])
        missing = np.flatnonzero(~known)
        return least + (int(missing[-1]) + 1 if len(missing) else 0)

    def rows(self, seq_id: int, first: int, end: int) -> Hidden:
        """The features of positions `first` to `end` - 1, shape (end - first, n_features)."""
        kept: Hidden = self._rows[seq_id, np.arange(first, end) % self.kept]
        return kept


@dataclass(slots=True)
class HeadCache:
    """The cells of a sequence that hold the target's hidden states. first: index in the text of the first
    one's token. ids: their tokens; `end` is the index after the last of them.
    """

    first: int = 0
    ids: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.ids)


@dataclass(slots=True)
class HeadState:
    """A sequence being drafted for. least: no cell of an earlier token is filled."""

    history: list[int]
    sampler: Sampler
    mask: Mask | None
    least: int = 0


Head = TypeVar("Head", bound=DraftHead | BlockHead)
State = TypeVar("State", bound=HeadState)


class HeadCells(Generic[Head]):
    """A head, and what its cells hold of each sequence."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.caches = {seq: HeadCache() for seq in range(head.n_seq_max)}

    def restart(self, seq_id: int, first: int) -> None:
        """Empty the sequence's cache; the next cell in it is that of token `first`."""
        self.head.truncate(seq_id, 0)
        cache = self.caches[seq_id]
        cache.first = first
        cache.ids.clear()


class FeatureDrafter(CachingDrafter, Generic[Head, State], like=HEAD):
    """Drafts with one head or several, from the features that it receives in `features_decoded`.

    n_vocab: of the target; ids at or above it are never drafted. confident: report the probability of each
    token, else a confidence of 1. end_ids: no token is drafted after one of these. Derived classes make the
    state of a sequence, and evaluate.
    """

    def __init__(
        self, head: Head, n_vocab: int, confident: bool = True, end_ids: Collection[int] = ()
    ) -> None:
        self.head, self.confident, self.end_ids = head, confident, frozenset(end_ids)
        self.n_vocab = min(n_vocab, self.head.n_vocab)
        self._features = FeatureRows(self.head.n_seq_max, self.head.n_features)
        self.states: dict[int, State] = {}
        self.cells = [HeadCells(head)]
        self.scopes = dict.fromkeys(range(self.head.n_seq_max), "")  # whose ids the caches hold

    def features_decoded(
        self, batch: Sequence[BatchRow], features: Hidden, branches: Sequence[Sequence[BatchRow]] = ()
    ) -> None:
        self._features.record(batch, features[: len(batch)])
        self._features.record_branches(branches, features[len(batch) :])

    def set_cache_scope(self, seq_id: int, scope: str) -> None:
        if scope != self.scopes[seq_id]:
            self._restart(seq_id)
            self.scopes[seq_id] = scope

    def forget(self, seq_id: int) -> None:
        """The sequence ended; its cache is kept for the next one with a common prefix."""
        self.states.pop(seq_id, None)

    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """As in `CachingDrafter`; the cells keep their positions."""
        self._restart(seq_id)
        state = self.states[seq_id]
        state.least = max(0, len(state.history) - max(1, n_last))

    def _begin(self, seq_id: int, state: State) -> None:
        """A sequence starts; the cells of the prefix that it shares with the last one in its place stay."""
        self.states[seq_id] = state
        for cells in self.cells:
            cache = cells.caches[seq_id]
            del cache.ids[common_prefix(cache.ids, state.history[cache.first :]) :]

    def _restart(self, seq_id: int) -> None:
        """Empty the sequence's caches."""
        for cells in self.cells:
            cells.restart(seq_id, 0)

    def _restart_all(self) -> None:
        """Empty all caches, whose contents a failed decode has left undefined."""
        for seq in self.scopes:
            self._restart(seq)

    def _proposals(
        self, rows: Mapping[int, NDArray[np.float32]], drafts: Mapping[int, Sequence[int]]
    ) -> dict[int, Proposal]:
        """The tokens chosen from rows of logits after these drafts, by sequence."""
        proposals = {}
        for seq, row in rows.items():
            state, draft = self.states[seq], drafts[seq]
            how = {"confident": self.confident, "alternatives": self.with_alternatives}
            proposal = propose(state.sampler, row, state.history, state.mask, draft, **how)
            if proposal is not None:
                proposals[seq] = proposal
        return proposals


# The drafter `head` for heads that draft a block at once (DFlash, arXiv 2602.06036, DFlash 2, DSpark).
#
# The head's cache holds the target's features of the text; one decode gives the logits of all tokens of a
# block. So the first step of a draft costs that decode, and the following ones cost nothing.


@dataclass(slots=True)
class _BlockState(HeadState):
    """block: the block after the history, None before the first step."""

    block: DraftedBlock | None = None


class BlockDrafter(FeatureDrafter[BlockHead, _BlockState]):
    """Drafts a block at a time. After a block there are no more proposals until tokens are committed."""

    drafts_blocks = True

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
