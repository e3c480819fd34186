"""Drafting with a small model: one context for all sequences, its KV cache kept from round to round.

After a round the cache is cut back to the common prefix of what was drafted and what was committed; missing
tokens are caught up lazily, in one batch with the next draft's first token. The draft model chooses by the
sequence's own rule and noise, so at a temperature it agrees with the target as often as the two distributions
allow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import (
    BatchRow,
    Context,
    DecodeError,
    DraftCacheState,
    Mask,
    NoRoomError,
    Proposal,
    Sampler,
)
from specllama.core.sampling.sampler import NOTHING_LEGAL, probability
from specllama.core.sequence import common_prefix
from specllama.drafters import MODEL, DrafterInputs, RegisteredDrafter

LEAST_SHARED = 32  # ids that two sequences begin with; fewer are evaluated for each


@dataclass(slots=True)
class _State:
    """A sequence being drafted for. good: ids of `history`, after the skipped ones, that the draft's
    cache is known to hold.
    """

    history: list[int]
    sampler: Sampler
    mask: Mask | None
    good: int
    usable: bool


class ModelDrafter(RegisteredDrafter):
    """Drafts with the model of `context`.

    n_vocab: of the target; ids at or above it are never drafted. confident: report the full-softmax
    probability of each token (0.07 ms at a vocabulary of 128k), else a confidence of 1. end_ids: nothing is
    drafted after one. A sequence that outgrows the draft's context, or holds an id that the draft lacks,
    gets no more proposals until it is forgotten. Where only a sequence's end is covered, the cache counts its
    positions from there. Raises DecodeError where the draft model fails; the target
    is not touched by that.
    """

    entry = MODEL

    def __init__(
        self, context: Context, n_vocab: int, confident: bool = True, end_ids: Collection[int] = ()
    ) -> None:
        self.context, self.confident, self.end_ids = context, confident, frozenset(end_ids)
        self.n_vocab = min(n_vocab, context.n_vocab)
        self._knows_all = n_vocab <= context.n_vocab
        self.states: dict[int, _State] = {}
        self.cells: dict[int, list[int]] = {i: [] for i in range(context.n_seq_max)}  # ids in the cache
        self.skipped = dict.fromkeys(self.cells, 0)  # ids of the history before the first one there

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        if self.skipped[seq_id]:
            self._begin_at(seq_id, 0)
        good = min(common_prefix(self.cells[seq_id], prompt), len(prompt) - 1)
        state = _State(list(prompt), sampler.limited(self.n_vocab), mask, good, True)
        state.usable = self._knows(prompt)
        self.states[seq_id] = state
        self._take_over(seq_id)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        asked = {seq: draft for seq, draft in drafts.items() if self._fits(seq, draft)}
        if fresh := [seq for seq, draft in asked.items() if not draft]:
            self._share(fresh)
        pending = {seq: self._pending(seq, draft) for seq, draft in asked.items()}
        rows = self._evaluate(pending) if pending else None
        if rows is None:
            return {}
        proposals = {}
        for row, (seq, draft) in zip(rows, asked.items(), strict=True):
            state = self.states[seq]
            token = state.sampler.choose(row, state.history, mask=state.mask, ahead=draft).token
            if token == NOTHING_LEGAL:
                continue
            proposals[seq] = Proposal(token, probability(row, token) if self.confident else 1.0)
            if not draft and self.context.cuts_need_checkpoint:
                self.context.checkpoint(seq)
        return proposals

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        state = self.states[seq_id]
        n = len(state.history) - self.skipped[seq_id]
        if state.good == n:
            state.good += common_prefix(self.cells[seq_id][n:], tokens)
        state.history.extend(tokens)
        state.usable = state.usable and self._knows(tokens)

    def forget(self, seq_id: int) -> None:
        """The sequence's cache stays, for the next one that begins alike."""
        self.states.pop(seq_id, None)

    def cache_state(self, seq_id: int) -> DraftCacheState:
        state, skipped = self.states[seq_id], self.skipped[seq_id]
        held = min(state.good, len(state.history) - skipped - 1)
        return DraftCacheState(skipped, held, len(state.history) - skipped - held)

    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """As in `CachingDrafter`: any text may stand before a draft, the target verifies all the same."""
        state = self.states[seq_id]
        self._begin_at(seq_id, max(0, len(state.history) - max(1, n_last)))
        state.good = 0

    def _share(self, seqs: Sequence[int]) -> None:
        """Have what several of the sequences begin with, and lack, evaluated once."""
        for i, seq in enumerate(seqs):
            self._take_over(seq)
            alike = [n for other in seqs[i + 1 :] if (n := self._alike(seq, other))]
            if alike:
                self._fill(seq, min(alike))

    def _lacks(self, seq: int) -> bool:
        """Whether it lacks more than is worth the thought."""
        state = self.states[seq]
        return not self.skipped[seq] and len(state.history) > LEAST_SHARED + state.good

    def _alike(self, seq: int, other: int) -> int:
        """How many ids of the two are the same, where that is more than `seq` holds; else 0."""
        if not self._lacks(seq) or not self._lacks(other):
            return 0
        state = self.states[seq]
        n = common_prefix(state.history[:-1], self.states[other].history[:-1])
        return n if n >= LEAST_SHARED + state.good else 0

    def _take_over(self, seq: int) -> None:
        """Share the cells of a sequence that holds more of what this one begins with."""
        if not self._lacks(seq):
            return
        state = self.states[seq]
        held = {s: common_prefix(ids, state.history[:-1]) for s, ids in self.cells.items() if s != seq}
        held = {s: n for s, n in held.items() if not self.skipped[s] and n >= LEAST_SHARED + state.good}
        if not held:
            return
        best = max(held, key=lambda s: held[s])
        n = self.context.copy(best, seq, held[best])
        if n or self.context.n_past(seq) < len(self.cells[seq]):
            self.cells[seq], state.good = state.history[:n], n

    def _fill(self, seq: int, n: int) -> None:
        """Evaluate the sequence up to its first n ids, as far as there is room."""
        ids = self._pending(seq, ())[: n - self.states[seq].good]
        try:
            for at in range(0, len(ids), self.context.n_batch):
                start = len(self.cells[seq])
                part = ids[at : at + self.context.n_batch]
                self._decode([BatchRow(t, start + j, seq, False) for j, t in enumerate(part)])
        except NoRoomError:
            return  # `_evaluate` says what that means

    def _begin_at(self, seq_id: int, n_skipped: int) -> None:
        """Empty the sequence's cache; it is to hold the history from there on."""
        self.context.truncate(seq_id, 0)
        self.cells[seq_id].clear()
        self.skipped[seq_id] = n_skipped

    def _fits(self, seq: int, draft: Sequence[int]) -> bool:
        state = self.states[seq]
        if not state.usable or (draft and draft[-1] in self.end_ids):
            return False
        room = len(state.history) - self.skipped[seq] + len(draft) <= self.context.n_ctx
        return room and self._knows(draft)

    def _knows(self, ids: Sequence[int]) -> bool:
        """Whether the draft model has all ids; others draft for the target's vocabulary."""
        return self._knows_all or all(t < self.context.n_vocab for t in ids)

    def _pending(self, seq: int, draft: Sequence[int]) -> list[int]:
        """Ids to evaluate for the next token: of history and draft, what the cache lacks, the last id at
        least.
        """
        state, cells = self.states[seq], self.cells[seq]
        n_skipped = self.skipped[seq]
        n = len(state.history) - n_skipped
        if not draft or state.good < n:
            keep = state.good = min(state.good, n - 1)
        else:
            keep = n + min(common_prefix(cells[n:], draft), len(draft) - 1)
        if len(cells) > keep:
            keep = self.context.truncate(seq, keep)
            state.good = min(state.good, keep)
            del cells[keep:]
        return [*state.history[n_skipped + keep :], *draft[max(0, keep - n) :]]

    def _evaluate(self, pending: Mapping[int, list[int]]) -> NDArray[np.float32] | None:
        """Logits after the last pending id of each sequence, shape (len(pending), n_vocab); None without
        room.
        """
        share = max(1, self.context.n_batch // len(pending))
        batch: list[BatchRow] = []
        try:
            for seq, ids in pending.items():
                start, rest = len(self.cells[seq]), ids
                while len(rest) > share:
                    self._decode([BatchRow(t, start + i, seq, False) for i, t in enumerate(rest[:share])])
                    start, rest = start + share, rest[share:]
                batch += [BatchRow(t, start + i, seq, i == len(rest) - 1) for i, t in enumerate(rest)]
            return self._decode(batch)
        except NoRoomError:
            return None

    def _decode(self, batch: list[BatchRow]) -> NDArray[np.float32]:
        """Decode and book; idle sequences' caches make room. Raises NoRoomError where that is not enough."""
        while True:
            try:
                rows = self.context.decode(batch)
                break
            except NoRoomError:
                idle = next((s for s, cells in self.cells.items() if cells and s not in self.states), None)
                if idle is None:
                    raise
                self.context.truncate(idle, 0)
                self.cells[idle].clear()
            except DecodeError:
                for cells in self.cells.values():
                    cells.clear()
                raise
        for token, _, seq, _ in batch:
            self.cells[seq].append(token)
        for seq in {row.seq_id for row in batch} if len(batch) > 1 else (batch[0].seq_id,):
            state = self.states[seq]
            state.good = min(len(self.cells[seq]), len(state.history) - self.skipped[seq])
        return rows


def make(inputs: DrafterInputs) -> ModelDrafter | None:
    """The drafter, None where no draft model is loaded."""
    if inputs.draft_context is None:
        return None
    return ModelDrafter(inputs.draft_context, inputs.n_vocab, inputs.confident, inputs.end_ids)
