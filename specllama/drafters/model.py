"""The drafter `model`: a draft model with one context for all sequences, its KV cache kept between rounds.

At the next draft the cache is truncated to the common prefix of drafted and committed tokens, and
missing tokens are evaluated in one batch with the draft's first token. The draft model samples by the
sequence's own rule with the same noise, so that above temperature 0 it agrees with the target nearly as
often as the two distributions allow (see core/sampling/sampler.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.core.image_rows import without_images
from specllama.core.interfaces import (
    BatchRow,
    CachingDrafter,
    Context,
    DecodeError,
    DraftCacheState,
    Mask,
    NoRoomError,
    Proposal,
    Sampler,
    Saved,
)
from specllama.core.sampling.proposal import propose
from specllama.core.sequence import common_prefix
from specllama.drafters import MODEL

MIN_SHARED = (
    32  # ids of a common prefix from which it is shared; a shorter one is evaluated for each sequence
)


@dataclass(slots=True)
class SequenceState:
    """A sequence being drafted for. n_valid: ids of `history`, after the skipped ones, that the draft model's
    cache holds for certain. usable: whether the draft model has all of its ids.
    """

    history: list[int]
    sampler: Sampler
    mask: Mask | None
    n_valid: int
    usable: bool


class ModelDrafter(CachingDrafter, like=MODEL):
    """Drafts with the model of `context`.

    n_vocab: of the target; ids at or above it are never drafted. confident: report the full-softmax
    probability of each token (0.07 ms at a vocabulary of 128k), else a confidence of 1. end_ids: no token is
    drafted after one of these. A sequence that outgrows the draft model's context, or contains an id that
    the draft model lacks, gets no more proposals until it is forgotten. Images are not read, only the text
    around them. After `restart_from_tail`, positions
    in the cache count from the first id covered. Sequences of different scopes (`set_cache_scope`) share no
    cells, and reuse none of each other's. `step` raises DecodeError where the draft model fails, which leaves
    the target unaffected.
    """

    def __init__(
        self, context: Context, n_vocab: int, confident: bool = True, end_ids: Collection[int] = ()
    ) -> None:
        self.context, self.confident, self.end_ids = context, confident, frozenset(end_ids)
        self.n_vocab = min(n_vocab, context.n_vocab)
        self._has_all_ids = n_vocab <= context.n_vocab
        self.states: dict[int, SequenceState] = {}
        self.cells: dict[int, list[int]] = {i: [] for i in range(context.n_seq_max)}  # ids in the cache
        self.skipped = dict.fromkeys(self.cells, 0)  # ids of the history before the first one in the cache
        self.scopes = dict.fromkeys(self.cells, "")  # whose ids the cache holds
        self._row_seconds = 0.0  # of a row of a wide decode, as last measured

    def set_cache_scope(self, seq_id: int, scope: str) -> None:
        if scope != self.scopes[seq_id]:
            self._restart_at(seq_id, 0)
            self.scopes[seq_id] = scope

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        if self.skipped[seq_id]:
            self._restart_at(seq_id, 0)
        prompt = without_images(prompt)
        n_valid = min(common_prefix(self.cells[seq_id], prompt), len(prompt) - 1)
        state = SequenceState(list(prompt), sampler.limited(self.n_vocab), mask, n_valid, True)
        state.usable = self._has_ids(prompt)
        self.states[seq_id] = state
        self._copy_prefix(seq_id)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        drafting = {seq: draft for seq, draft in drafts.items() if self._fits(seq, draft)}
        if fresh := [seq for seq, draft in drafting.items() if not draft]:
            self._evaluate_shared(fresh)
        pending = {seq: self._pending(seq, draft) for seq, draft in drafting.items()}
        rows = self._evaluate(pending) if pending else None
        if rows is None:
            return {}
        proposals = {}
        how = {"confident": self.confident, "alternatives": self.with_alternatives}
        for row, (seq, draft) in zip(rows, drafting.items(), strict=True):
            state = self.states[seq]
            proposal = propose(state.sampler, row, state.history, state.mask, draft, **how)
            if proposal is None:
                continue
            proposals[seq] = proposal
            if not draft and self.context.cuts_need_checkpoint:
                self.context.checkpoint(seq)
        return proposals

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        state = self.states[seq_id]
        n = len(state.history) - self.skipped[seq_id]
        if state.n_valid == n:
            state.n_valid += common_prefix(self.cells[seq_id][n:], tokens)
        state.history.extend(tokens)
        state.usable = state.usable and self._has_ids(tokens)

    def rewrite(self, seq_id: int, n_kept: int, tokens: Sequence[int]) -> None:
        """After its first `n_kept` ids, the sequence has other ones: `tokens`."""
        state, skipped, cells = self.states[seq_id], self.skipped[seq_id], self.cells[seq_id]
        n_same = common_prefix(state.history[n_kept:], tokens)
        n_kept, tokens = n_kept + n_same, tokens[n_same:]
        state.history[n_kept:] = tokens
        if n_kept < skipped:
            self._restart_at(seq_id, min(skipped, len(state.history) - 1))
            state.n_valid = 0
        elif state.n_valid >= n_kept - skipped:
            n = n_kept - skipped
            state.n_valid = n + common_prefix(cells[n:], tokens)
        state.usable = state.usable and self._has_ids(tokens)

    def forget(self, seq_id: int) -> None:
        """The sequence ended; its cache is kept for the next sequence with a common prefix."""
        self.states.pop(seq_id, None)

    def cache_state(self, seq_id: int) -> DraftCacheState:
        state, skipped = self.states[seq_id], self.skipped[seq_id]
        held = min(state.n_valid, len(state.history) - skipped - 1)
        return DraftCacheState(skipped, held, len(state.history) - skipped - held)

    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """As in `CachingDrafter`; a shortened context lowers acceptance only, since the target verifies."""
        state = self.states[seq_id]
        self._restart_at(seq_id, max(0, len(state.history) - max(1, n_last)))
        state.n_valid = 0

    def catch_up(self, seq_id: int, n_most: int) -> bool:
        if not self._fits(seq_id, ()):
            return True
        self._copy_prefix(seq_id)
        if self.cache_state(seq_id).n_pending <= n_most:
            return True
        self._fill(seq_id, self.states[seq_id].n_valid + n_most)
        return False

    def save_cache(self, seq_id: int, ids: Sequence[int], scope: str, copy_rate: float) -> Saved | None:
        n = common_prefix(self.cells[seq_id], without_images(ids))
        if seq_id in self.states or self.skipped[seq_id] or self.scopes[seq_id] != scope or n < MIN_SHARED:
            return None
        if n < len(self.cells[seq_id]):  # tokens that were drafted last
            n = self.context.truncate(seq_id, n)
            del self.cells[seq_id][n:]
        if n < MIN_SHARED or not self._saves_time(n, self.context.size(seq_id), copy_rate):
            return None
        return self.context.save(seq_id)

    def load_cache(self, seq_id: int, ids: Sequence[int], scope: str, saved: Saved, copy_rate: float) -> int:
        cells, ids = self.cells[seq_id], without_images(ids)
        held = 0 if self.skipped[seq_id] or self.scopes[seq_id] != scope else common_prefix(cells, ids)
        if seq_id in self.states or not self._saves_time(len(ids) - held, len(saved), copy_rate):
            return 0
        self._restart_at(seq_id, 0)
        n = self.context.load(seq_id, saved)
        while not n and self._free_idle(seq_id):
            n = self.context.load(seq_id, saved)
        if n > len(ids):  # of another text
            self._restart_at(seq_id, 0)
            n = 0
        self.cells[seq_id], self.scopes[seq_id] = list(ids[:n]), scope
        return n

    def _saves_time(self, n: int, n_bytes: int, copy_rate: float) -> bool:
        """Whether copying so many bytes is predicted to be faster than reading n ids."""
        return not self._row_seconds or n * self._row_seconds > n_bytes / copy_rate

    def _restart_at(self, seq_id: int, n_skipped: int) -> None:
        """Empty the sequence's cache; from now on it covers the history after the first `n_skipped` ids."""
        self.context.truncate(seq_id, 0)
        self.cells[seq_id].clear()
        self.skipped[seq_id] = n_skipped

    def _free_idle(self, but: int = -1) -> bool:
        """Empty the cache of an idle sequence, other than `but`; False where none has any cells."""
        idle_ids = (s for s, cells in self.cells.items() if cells and s not in self.states and s != but)
        idle = next(idle_ids, None)
        if idle is not None:
            self.context.truncate(idle, 0)
            self.cells[idle].clear()
        return idle is not None

    def _evaluate_shared(self, seqs: Sequence[int]) -> None:
        """Evaluate a prefix that several of the sequences have in common and lack only once."""
        for i, seq in enumerate(seqs):
            self._copy_prefix(seq)
            lengths = [n for other in seqs[i + 1 :] if (n := self._n_shared(seq, other))]
            if lengths:
                self._fill(seq, min(lengths))

    def _lacks_prefix(self, seq: int) -> bool:
        """Whether the sequence lacks enough ids in the cache for sharing to be worthwhile."""
        state = self.states[seq]
        return not self.skipped[seq] and len(state.history) > MIN_SHARED + state.n_valid

    def _n_shared(self, seq: int, other: int) -> int:
        """Length of the common prefix of two sequences of one scope that both lack it; 0 where it is too
        short.
        """
        if self.scopes[seq] != self.scopes[other]:
            return 0
        if not self._lacks_prefix(seq) or not self._lacks_prefix(other):
            return 0
        state = self.states[seq]
        n = common_prefix(state.history[:-1], self.states[other].history[:-1])
        return n if n >= MIN_SHARED + state.n_valid else 0

    def _copy_prefix(self, seq: int) -> None:
        """Share the cells of the sequence of the same scope whose cache has the longest common prefix with
        this one, if that is longer than what this one holds.
        """
        if not self._lacks_prefix(seq):
            return
        state, scope = self.states[seq], self.scopes[seq]
        others = [s for s in self.cells if s != seq and self.scopes[s] == scope]
        held = {s: common_prefix(self.cells[s], state.history[:-1]) for s in others}
        held = {s: n for s, n in held.items() if not self.skipped[s] and n >= MIN_SHARED + state.n_valid}
        if not held:
            return
        best = max(held, key=lambda s: held[s])
        n = self.context.copy(best, seq, held[best])
        if n or self.context.n_past(seq) < len(self.cells[seq]):
            self.cells[seq], state.n_valid = state.history[:n], n

    def _fill(self, seq: int, n: int) -> None:
        """Evaluate the first n ids of the sequence, as far as there is room."""
        ids = self._pending(seq, ())[: n - self.states[seq].n_valid]
        try:
            for at in range(0, len(ids), self.context.n_batch):
                start = len(self.cells[seq])
                part = ids[at : at + self.context.n_batch]
                self._decode([BatchRow(t, start + j, seq, False) for j, t in enumerate(part)])
        except NoRoomError:
            return  # `_evaluate` handles it

    def _fits(self, seq: int, draft: Sequence[int]) -> bool:
        state = self.states[seq]
        if not state.usable or (draft and draft[-1] in self.end_ids):
            return False
        room = len(state.history) - self.skipped[seq] + len(draft) <= self.context.n_ctx
        return room and self._has_ids(draft)

    def _has_ids(self, ids: Sequence[int]) -> bool:
        """Whether all ids are in the draft model's vocabulary; other drafters may propose others."""
        return self._has_all_ids or all(t < self.context.n_vocab for t in ids)

    def _pending(self, seq: int, draft: Sequence[int]) -> list[int]:
        """Truncate the cache to its common prefix with history and draft; returns the ids after it, at least
        the last one, which are needed for the next token.
        """
        state, cells = self.states[seq], self.cells[seq]
        n_skipped = self.skipped[seq]
        n = len(state.history) - n_skipped
        if not draft or state.n_valid < n:
            keep = state.n_valid = min(state.n_valid, n - 1)
        else:
            keep = n + min(common_prefix(cells[n:], draft), len(draft) - 1)
        if len(cells) > keep:
            keep = self.context.truncate(seq, keep)
            state.n_valid = min(state.n_valid, keep)
            del cells[keep:]
        return [*state.history[n_skipped + keep :], *draft[max(0, keep - n) :]]

    def _evaluate(self, pending: Mapping[int, list[int]]) -> NDArray[np.float32] | None:
        """Logits after the last pending id of each sequence, shape (len(pending), n_vocab); None where there
        is no room.
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
        """Decode, and update the cells; caches of idle sequences are emptied for
        room. Raises NoRoomError where that is not enough, DecodeError where the draft model fails.
        """
        before = self.context.decode_seconds
        while True:
            try:
                rows = self.context.decode(batch)
                break
            except NoRoomError:
                if not self._free_idle():
                    raise
            except DecodeError:
                for cells in self.cells.values():
                    cells.clear()
                raise
        if len(batch) >= MIN_SHARED:
            self._row_seconds = (self.context.decode_seconds - before) / len(batch)
        for token, _, seq, _ in batch:
            self.cells[seq].append(token)
        for seq in {row.seq_id for row in batch} if len(batch) > 1 else (batch[0].seq_id,):
            state = self.states[seq]
            state.n_valid = min(len(self.cells[seq]), len(state.history) - self.skipped[seq])
        return rows
