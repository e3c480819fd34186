"""The drafter `head`: a trained head that predicts from the target's hidden states (multi-token
prediction, EAGLE-3, Gemma 4's assistants).

Each row of the head pairs a token with a hidden state: of the target where the token before it was
verified, the head's own in a draft. Rows of committed tokens are evaluated in the same decode as the
first draft token, with the target's hidden states, as in training; the head's cache needs no rows of
its own for a prompt: it may begin anywhere (Li et al., arXiv 2503.01840; DeepSeek-V3, arXiv 2412.19437,
section 2.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specllama.core.image_rows import without_images
from specllama.core.interfaces import (
    BlockHead,
    DecodeError,
    DraftCacheState,
    DraftHead,
    HeadRow,
    Hidden,
    Mask,
    NoRoomError,
    Proposal,
    Sampler,
)
from specllama.core.sequence import common_prefix
from specllama.core.translation import KeptTokens
from specllama.drafters import DrafterInputs
from specllama.drafters.feature_drafter import BlockDrafter, FeatureDrafter, HeadCells, HeadState

N_BEHIND = 64  # rows of a text that a deeper head evaluates at most before it drafts


@dataclass(slots=True)
class _State(HeadState):
    """usable: whether the head has all ids. fed: draft tokens that were evaluated. hidden: the hidden state
    after the last row of the text, then after each of them. n_fed: how many of them are in the cells of each
    head; None where these lack rows of the text.
    """

    usable: bool = True
    fed: list[int] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    n_fed: list[int | None] = field(default_factory=list)


class _Rows(NamedTuple):
    """The rows of a sequence in a decode of one head: n_text of the text, then those of draft tokens."""

    rows: list[HeadRow]
    n_text: int


class HeadDrafter(FeatureDrafter[DraftHead, _State]):
    """Drafts token by token. A sequence that outgrows the head's cache gets no more proposals until it is
    forgotten. `step` raises DecodeError where the head fails, which leaves the target unaffected.

    Where the head has `following` ones, each drafts the token of its place: it evaluates the draft's tokens
    again, with the hidden states that they were drafted with, and rows of the text when it is used. The
    order of calls is that of llama.cpp's common/speculative.cpp, but for the laziness.
    """

    def __init__(
        self, head: DraftHead, n_vocab: int, confident: bool = True, end_ids: Collection[int] = ()
    ) -> None:
        super().__init__(head, n_vocab, confident, end_ids)
        self.cells += map(HeadCells, head.following)
        self._has_all_ids = n_vocab <= head.n_vocab

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        state = _State(list(prompt), sampler.limited(self.n_vocab), mask)
        state.usable = self._has_ids(without_images(prompt))
        self._text_changed(state)
        self._begin(seq_id, state)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        drafting = {seq: draft for seq, draft in drafts.items() if self._fits(seq, draft)}
        try:
            return self._proposals(self._evaluate(drafting), drafting)
        except NoRoomError:
            return {}

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        state = self.states[seq_id]
        if not self.head.reads_target:  # its cache lacks tokens that were accepted in a branch
            self._features.accept_branch(seq_id, len(state.history), tokens)
        state.history.extend(tokens)
        state.usable = state.usable and self._has_ids(tokens)
        self._text_changed(state)

    def cache_state(self, seq_id: int) -> DraftCacheState:
        """As in `CachingDrafter`. Tokens whose features were not kept count as if they were not there: the
        head cannot evaluate them.
        """
        first, begin, end = self._missing(seq_id, 0)
        return DraftCacheState(0, begin - first, end - begin)

    def _text_changed(self, state: _State) -> None:
        """No draft token is evaluated, and rows of the text may be missing."""
        state.fed.clear()
        state.hidden.clear()
        state.n_fed = [None] * len(self.cells)

    def _missing(self, seq_id: int, at: int) -> tuple[int, int, int]:
        """(first, begin, end) of the head at this index: rows of tokens first to begin - 1 can stay in its
        cache, those of tokens begin to end - 1 have to be evaluated for the next draft token; begin == end
        where that is not possible.
        """
        state, cache = self.states[seq_id], self.cells[at].caches[seq_id]
        end = len(state.history)
        if self.head.reads_target:
            known = self._features.known_from(seq_id, state.history, end - 1, end - 2)
            return end - 1, known + 1, end
        kept = min(cache.end, end - 1)
        least = max(state.least, end - N_BEHIND) if at else state.least
        known = self._features.known_from(seq_id, state.history, end - 1, max(least, 1) - 1)
        if kept > cache.first and known < kept:
            return cache.first, kept, end
        first = known + 1
        if first == 1 < end and self.head.lag == 0 and not least:
            first = 0  # the first token has no features before it; heads are trained with zeros there
        return first, first, end

    def _fits(self, seq: int, draft: Sequence[int]) -> bool:
        state = self.states[seq]
        if not state.usable or (draft and draft[-1] in self.end_ids):
            return False
        return len(state.history) + len(draft) <= self.head.n_ctx and self._has_ids(draft)

    def _has_ids(self, ids: Sequence[int]) -> bool:
        """Whether all ids are in the head's vocabulary; other drafters may propose others."""
        return self._has_all_ids or all(t < self.head.n_vocab for t in ids)

    def _evaluate(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, NDArray[np.float32]]:
        """Logits after the history and draft of each sequence, shape (n_vocab,), without those whose features
        are missing. Raises NoRoomError, DecodeError.
        """
        last: dict[int, dict[int, _Rows]] = {}  # by index of the head and sequence
        for seq, draft in drafts.items():
            # A draft grows by one token from call to call, unless another drafter adds several.
            for n in range(self._n_known(seq, draft), len(draft) + 1):
                at = min(n, len(self.cells) - 1)
                rows = self._rows(seq, at, draft[:n])
                if not rows.rows:
                    break
                if n == len(draft):
                    last.setdefault(at, {})[seq] = rows
                else:
                    self._decode(at, {seq: rows})
        hidden: dict[int, NDArray[np.float32]] = {}
        for at, rows_of in last.items():
            hidden.update(self._decode(at, rows_of))
        return hidden

    def _n_known(self, seq: int, draft: Sequence[int]) -> int:
        """The tokens of the draft after which hidden states are missing; rows of other drafts are removed."""
        state = self.states[seq]
        if not draft or not state.hidden:
            self._text_changed(state)
            return 0
        n = min(common_prefix(state.fed, draft), len(draft) - 1)
        del state.fed[n:], state.hidden[n + 1 :]
        for at, cells in enumerate(self.cells):
            if (state.n_fed[at] or 0) > n:
                cells.head.truncate(seq, len(state.history) + n - self.head.lag)
                state.n_fed[at] = n
        return n + 1

    def _rows(self, seq: int, at: int, draft: Sequence[int]) -> _Rows:
        """The rows that one head needs for the logits after this draft; none where features are missing."""
        state, text = self.states[seq], list[HeadRow]()
        n_fed = state.n_fed[at]
        if n_fed is None:
            text, n_fed = self._text_rows(seq, at, len(draft)), 0
            if not text:
                return _Rows([], 0)
        last = len(draft) - 1
        drafted = [
            HeadRow(draft[i], self._draft_pos(state, i), seq, state.hidden[i], i == last)
            for i in range(n_fed, len(draft))
        ]
        return _Rows(text + drafted, len(text))

    def _draft_pos(self, state: _State, i: int) -> int:
        n = len(state.history)
        return n - 1 if self.head.reads_target else n + i - self.head.lag

    def _text_rows(self, seq: int, at: int, n_draft: int) -> list[HeadRow]:
        """The rows of the text that one head lacks and that fit into one decode with `n_draft` more, after
        those before them were evaluated; none where features are missing.
        """
        cells = self.cells[at]
        cache, head = cells.caches[seq], cells.head
        first, begin, end = self._missing(seq, at)
        if begin >= end:
            return []
        if begin == first:
            cells.restart(seq, first)
        else:
            head.truncate(seq, begin - head.lag)
            del cache.ids[begin - first :]
        while end - begin > max(1, head.n_batch - n_draft):
            rows = self._paired(seq, begin, min(begin + head.n_batch, end - 1), False)
            self._run(at, rows)
            cache.ids += [row.token for row in rows]
            begin += len(rows)
        return self._paired(seq, begin, end, not n_draft)

    def _paired(self, seq: int, begin: int, end: int, output: bool) -> list[HeadRow]:
        """The rows of tokens begin to end - 1 of the history. output: of the last one."""
        features = self._features.rows(seq, max(0, begin - 1), end - 1)
        if begin == 0:
            features = np.concatenate([np.zeros((1, features.shape[1]), np.float32), features])
        hidden = self.head.hidden(seq, features)
        ids, lag = self.states[seq].history, self.head.lag
        return [
            HeadRow(ids[i], i - lag, seq, hidden[i - begin], output and i == end - 1)
            for i in range(begin, end)
        ]

    def _decode(self, at: int, rows_of: Mapping[int, _Rows]) -> dict[int, NDArray[np.float32]]:
        """Decode rows with one head, each sequence's last one with an output; logits by sequence."""
        batch = [row for rows, _ in rows_of.values() for row in rows]
        logits, hidden = self._run(at, batch)
        for n, (seq, (rows, n_text)) in enumerate(rows_of.items()):
            state = self.states[seq]
            if not self.head.reads_target:
                self.cells[at].caches[seq].ids += [row.token for row in rows[:n_text]]
            state.n_fed[at] = (state.n_fed[at] or 0) + len(rows) - n_text
            if state.hidden:
                state.fed.append(rows[-1].token)
            state.hidden.append(hidden[n])
        return dict(zip(rows_of, logits, strict=True))

    def _run(self, at: int, rows: Sequence[HeadRow]) -> tuple[NDArray[np.float32], Hidden]:
        """Decode rows with one head, in as many decodes as its batches make of them: those of several
        sequences can be more.
        """
        head = self.cells[at].head
        try:
            if len(rows) <= head.n_batch:
                return head.decode(rows)
            return self._run_parts(head, rows)
        except DecodeError:
            self._empty()
            raise

    def _run_parts(self, head: DraftHead, rows: Sequence[HeadRow]) -> tuple[NDArray[np.float32], Hidden]:
        outputs = []
        try:
            for i in range(0, len(rows), head.n_batch):
                logits, hidden = head.decode(rows[i : i + head.n_batch])
                outputs.append((logits.copy(), hidden))
        except NoRoomError:
            self._empty()  # the parts before are in the cells
            raise
        logits, hidden = (np.concatenate(one) for one in zip(*outputs, strict=True))
        return logits, hidden

    def _empty(self) -> None:
        """Empty all caches, whose contents are not known any more."""
        self._restart_all()
        for state in self.states.values():
            self._text_changed(state)


def make(inputs: DrafterInputs) -> HeadDrafter | BlockDrafter | None:
    """The drafter, None where no head is loaded."""
    if inputs.head is None:
        return None
    if isinstance(inputs.head, BlockHead):
        return BlockDrafter(inputs.head, inputs.n_vocab, inputs.confident, inputs.end_ids)
    return HeadDrafter(inputs.head, inputs.n_vocab, inputs.confident, inputs.end_ids)


class TrimmedHead:
    """A `DraftHead` over a trimmed one: rows have the target's ids, logits all of them."""

    def __init__(self, head: DraftHead, kept: KeptTokens) -> None:
        self._head, self._kept = head, kept
        self.n_ctx, self.n_batch, self.n_seq_max = head.n_ctx, head.n_batch, head.n_seq_max
        self.n_features, self.lag, self.reads_target = head.n_features, head.lag, head.reads_target
        self.n_vocab = kept.n_vocab
        self.following: Sequence[DraftHead] = [TrimmedHead(one, kept) for one in head.following]

    def hidden(self, seq_id: int, features: Hidden) -> Hidden:
        return self._head.hidden(seq_id, features)

    def decode(self, rows: Sequence[HeadRow], n_rows: int = 0) -> tuple[NDArray[np.float32], Hidden]:
        own = self._kept.own_ids(row.token for row in rows)
        mapped = [row._replace(token=i) for row, i in zip(rows, own, strict=True)]
        logits, hidden = self._head.decode(mapped, n_rows)
        return self._kept.spread(logits), hidden

    def truncate(self, seq_id: int, pos: int) -> None:
        self._head.truncate(seq_id, pos)
