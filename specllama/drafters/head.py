"""The drafter `head`: a trained head that predicts from the target's hidden states (multi-token prediction,
EAGLE-3, Gemma 4's assistants).

Each row of the head pairs a token with a hidden state: of the target where the token before it was verified,
the head's own in a draft. Rows of committed tokens are evaluated in the same decode as the first draft token,
with the target's hidden states, as in training; the head's cache needs no rows of its own for a prompt: it
may begin anywhere (Li et al., arXiv 2503.01840; DeepSeek-V3, arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specllama.core.heads import BlockHead, DraftHead, HeadRow, Hidden
from specllama.core.interfaces import DecodeError, DraftCacheState, Mask, NoRoomError, Proposal, Sampler
from specllama.core.sequence import common_prefix
from specllama.drafters import DrafterInputs
from specllama.drafters.block import BlockDrafter
from specllama.drafters.feature_drafter import FeatureDrafter, HeadState


@dataclass(slots=True)
class _State(HeadState):
    """usable: whether the head has all ids. fed: draft tokens that it has evaluated. hidden: its hidden state
    after the last row of the text, then after each of them.
    """

    usable: bool = True
    fed: list[int] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)


class HeadDrafter(FeatureDrafter[_State]):
    """Drafts token by token. A sequence that outgrows the head's cache gets no more proposals until it is
    forgotten. `step` raises DecodeError where the head fails, which leaves the target unaffected.
    """

    def __init__(
        self, head: DraftHead, n_vocab: int, confident: bool = True, end_ids: Collection[int] = ()
    ) -> None:
        super().__init__(head, n_vocab, confident, end_ids)
        self.head, self._has_all_ids = head, n_vocab <= head.n_vocab

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        usable = self._has_ids(prompt)
        self._begin(seq_id, _State(list(prompt), sampler.limited(self.n_vocab), mask, usable=usable))

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        drafting = {seq: draft for seq, draft in drafts.items() if self._fits(seq, draft)}
        try:
            return self._proposals(self._evaluate(drafting), drafting)
        except NoRoomError:
            return {}

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        state = self.states[seq_id]
        state.history.extend(tokens)
        state.usable = state.usable and self._has_ids(tokens)
        state.fed.clear()
        state.hidden.clear()

    def cache_state(self, seq_id: int) -> DraftCacheState:
        """As in `CachingDrafter`. Tokens whose features were not kept count as if they were not there: the
        head cannot evaluate them.
        """
        first, begin, end = self._missing(seq_id)
        return DraftCacheState(0, begin - first, end - begin)

    def _missing(self, seq_id: int) -> tuple[int, int, int]:
        """(first, begin, end): rows of tokens first to begin - 1 can stay in the cache, those of tokens begin
        to end - 1 have to be evaluated for the next draft token; begin == end where that is not possible.
        """
        state, cache = self.states[seq_id], self.caches[seq_id]
        end = len(state.history)
        if self.head.reads_target:
            known = self._features.known_from(seq_id, state.history, end - 1, end - 2)
            return end - 1, known + 1, end
        kept = min(cache.end, end - 1)
        known = self._features.known_from(seq_id, state.history, end - 1, max(state.least, 1) - 1)
        if kept > cache.first and known < kept:
            return cache.first, kept, end
        first = known + 1
        if first == 1 < end and self.head.lag == 0 and not state.least:
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
        rows_of: list[list[HeadRow]] = []
        for seq, draft in drafts.items():
            if not draft or not self.states[seq].hidden:
                rows = self._text_rows(seq)
                if not rows or not draft:
                    rows_of.append(rows)
                    continue
                self._decode([rows])
            # A draft grows by one token from call to call, unless another drafter adds several.
            *before, last = self._unevaluated(seq, draft)
            for token in before:
                self._decode([[self._draft_row(seq, token)]])
            rows_of.append([self._draft_row(seq, last)])
        return self._decode(rows_of)

    def _text_rows(self, seq: int) -> list[HeadRow]:
        """The rows of the text that the first draft token needs and that fit into one decode, after those
        before them were evaluated; none where features are missing.
        """
        state, cache = self.states[seq], self.caches[seq]
        state.fed.clear()
        state.hidden.clear()
        first, begin, end = self._missing(seq)
        if begin >= end:
            return []
        if begin == first:
            self._restart(seq, first)
        else:
            self.head.truncate(seq, begin - self.head.lag)
            del cache.ids[begin - first :]
        while end - begin > self.head.n_batch:
            self._decode([self._paired(seq, begin, begin + self.head.n_batch)])
            begin += self.head.n_batch
        return self._paired(seq, begin, end)

    def _paired(self, seq: int, begin: int, end: int) -> list[HeadRow]:
        """The rows of tokens begin to end - 1 of the history, the last one of it with an output."""
        features = self._features.rows(seq, max(0, begin - 1), end - 1)
        if begin == 0:
            features = np.concatenate([np.zeros_like(features[:1]), features])
        hidden = self.head.hidden(seq, features)
        ids, lag = self.states[seq].history, self.head.lag
        last = len(ids) - 1
        return [HeadRow(ids[i], i - lag, seq, hidden[i - begin], i == last) for i in range(begin, end)]

    def _unevaluated(self, seq: int, draft: Sequence[int]) -> Sequence[int]:
        """The tokens of a draft that the head has not evaluated; rows of other drafts are removed."""
        state = self.states[seq]
        n = common_prefix(state.fed, draft)
        if n == len(draft):
            n = max(0, n - 1)
        if n < len(state.fed):
            del state.fed[n:], state.hidden[n + 1 :]
            self.head.truncate(seq, len(state.history) + n - self.head.lag)
        return draft[n:]

    def _draft_row(self, seq: int, token: int) -> HeadRow:
        """The row of the next draft token."""
        state = self.states[seq]
        n = len(state.history)
        pos = n - 1 if self.head.reads_target else n + len(state.fed) - self.head.lag
        return HeadRow(token, pos, seq, state.hidden[-1], True)

    def _decode(self, rows_of: Sequence[Sequence[HeadRow]]) -> dict[int, NDArray[np.float32]]:
        """Logits by sequence. rows_of: the rows of each sequence, of the text or of a draft."""
        rows = [row for rows in rows_of for row in rows]
        if not rows:
            return {}
        try:
            logits, hidden = self.head.decode(rows)
        except DecodeError:
            self._restart_all()
            raise
        found, n = {}, 0
        for row in rows:
            state = self.states[row.seq_id]
            if state.hidden:
                state.fed.append(row.token)
            elif not self.head.reads_target:
                self.caches[row.seq_id].ids.append(row.token)
            if row.output:
                state.hidden.append(hidden[n])
                found[row.seq_id] = logits[n]
                n += 1
        return found


def make(inputs: DrafterInputs) -> HeadDrafter | BlockDrafter | None:
    """The drafter, None where no head is loaded."""
    if inputs.head is None:
        return None
    if isinstance(inputs.head, BlockHead):
        return BlockDrafter(inputs.head, inputs.n_vocab, inputs.confident, inputs.end_ids)
    return HeadDrafter(inputs.head, inputs.n_vocab, inputs.confident, inputs.end_ids)
