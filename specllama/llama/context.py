"""A KV cache over a model, and decodes in it.

Conditions on which llama.cpp would abort the process are checked here and raised instead.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from random import randrange
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specllama.clock import running_time
from specllama.config.load import MAX_THREADS
from specllama.core.image_rows import ImageEmbeddings
from specllama.core.interfaces import BatchRow, DecodeError, NoRoomError
from specllama.errors import UsageError
from specllama.large_memory import MemoryReserve
from specllama.llama.batches import (
    DecodeLimits,
    EmbeddingBatch,
    LimitError,
    LogitRows,
    TokenBatch,
    further_rows,
    run_decode,
)
from specllama.llama.cells import ImagePositions, order_cells
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel, NativeContext, context_params

# The sequences of a context that branches of drafts are decoded in.
#
# A branch sees a text up to its first token, in a sequence of its own that shares the cells of the text. It
# keeps them from round to round: sharing a cell costs an insertion into a tree for each, so sharing a long
# text again in every round would take as long as a decode. What llama.cpp checks of sequences that share rows
# of a batch (llama-batch.cpp): they begin and end at the same positions, and once a row is not shared, no
# later one is.


class PlacedRows(NamedTuple):
    """The rows of a batch and of branches. ends: where the sequences leave their texts, by id. used: the
    sequences of the branches. shared: those that see a row of the batch, besides its own, by its index.
    """

    rows: list[BatchRow]
    ends: dict[int, int]
    used: list[int]
    shared: dict[int, list[int]]


class BranchSequences:
    """ids: of the sequences, which are used for nothing else. memory: of the context."""

    def __init__(self, memory: Any, ids: Sequence[int]) -> None:
        self._memory, self.ids = memory, tuple(ids)
        self._held: dict[int, tuple[int, int]] = {}  # by id: the sequence whose first n cells it has

    def placed(
        self, batch: Sequence[BatchRow], branches: Sequence[Sequence[BatchRow]], n_apart: int
    ) -> PlacedRows:
        """The rows of a decode with these branches. Each text has `n_apart` sequences; those that no branch
        uses leave it after the first row.
        """
        ends: dict[int, int] = {}
        used: list[int] = []
        rows, first = list(batch), dict[int, int]()
        for row in batch:
            first.setdefault(row.seq_id, row.pos)
        for branch in branches:
            seq_id = branch[0].seq_id
            used.append(self._shared(seq_id, first[seq_id], ends))
            ends[used[-1]] = branch[0].pos
            rows += [row._replace(seq_id=used[-1]) for row in branch]
        for seq_id, pos in first.items():
            n_used = sum(branch[0].seq_id == seq_id for branch in branches)
            for _ in range(min(n_apart - n_used, len(self.ids) - len(ends))):
                ends[self._shared(seq_id, pos, ends)] = pos + 1
        return PlacedRows(rows, ends, used, self._seen_by(batch, ends))

    def _seen_by(self, batch: Sequence[BatchRow], ends: Mapping[int, int]) -> dict[int, list[int]]:
        """The sequences that see a row of the batch, by index of the row."""
        seen_by: dict[int, list[int]] = {}
        for branch, end in ends.items():
            owner, _ = self._held[branch]
            for i, row in enumerate(batch):
                if row.seq_id == owner and row.pos < end:
                    seen_by.setdefault(i, []).append(branch)
        return seen_by

    def _shared(self, seq_id: int, n_past: int, used: Collection[int]) -> int:
        """The id of one that now shares the first `n_past` cells of the sequence, all that it has. used:
        those that other branches of the decode have.
        """
        free = [i for i in self.ids if i not in used]
        shared = next((i for i in free if self._held.get(i, (-1, 0))[0] == seq_id), None)
        if shared is None:
            shared = next((i for i in free if i not in self._held), free[0])
            self._empty(shared)
        have = self._held.get(shared, (seq_id, 0))[1]
        if have < n_past:
            llama.llama_memory_seq_cp(self._memory, seq_id, shared, have, n_past)
        self._held[shared] = seq_id, n_past
        return shared

    def decoded(self, rows: PlacedRows) -> None:
        """The rows are decoded; the cells that branches have of their own are removed."""
        for branch, end in rows.ends.items():
            if branch in rows.used:
                self._cut(branch, end)
            self._held[branch] = self._held[branch][0], end

    def _cut(self, branch: int, n: int) -> None:
        """Remove the cells from position n on; up to there the branch has those of its text."""
        llama.llama_memory_seq_rm(self._memory, branch, n, -1)
        self._held[branch] = self._held[branch][0], n

    def truncated(self, seq_id: int, n: int) -> None:
        """The sequence has only its first n cells now."""
        for branch, (owner, have) in self._held.items():
            if owner == seq_id and have > n:
                self._cut(branch, n)

    def release(self, seq_id: int) -> None:
        """The cells of the sequence may become others."""
        for branch in [b for b, (owner, _) in self._held.items() if owner == seq_id]:
            self._empty(branch)

    def _empty(self, branch: int) -> None:
        if self._held.pop(branch, None) is not None:
            llama.llama_memory_seq_rm(self._memory, branch, -1, -1)


def why_no_branches(model: LlamaModel) -> str:
    """Why decodes of the model cannot have branches, "" where they can."""
    if model.has_state:
        return "the model keeps a state, which follows one text only"
    if model.n_swa and model.settings.swa_full is False:
        return "its windows of cells hold one text only"
    # Otherwise attention sums over the cells in groups, and a row depends on where its cells lie.
    return "" if model.settings.flash_attn != "off" else "flash attention is off"


def check_branches(
    batch: Sequence[BatchRow], branches: Sequence[Sequence[BatchRow]], n_branches: int
) -> None:
    """Raises LimitError for branches on which llama.cpp would fail, and for more than `n_branches`."""
    first: dict[int, int] = {}
    for row in batch:
        first.setdefault(row.seq_id, row.pos)
    known = all(b and first.get(b[0].seq_id, b[0].pos) < b[0].pos for b in branches)
    if len(branches) > n_branches or not known:
        raise LimitError(f"a decode has at most {n_branches} branches, each after a row of the batch")


def rows_to_roll_back(seq_ids: Sequence[int], max_rollback: int, n_at_once: int) -> dict[int, int]:
    """Rows of each sequence that can be rolled back after a decode of rows of these sequences, by seq_id:
    of those that it ended with, all at once. max_rollback: states kept; n_at_once: n_ubatch.

    llama.cpp computes sequences with equally many rows at once and those with fewer before
    (llama_batch_allocr::split_equal). To make room it moves the states of others, without the earlier ones
    that a rollback needs.
    """
    counts = list(Counter(seq_ids).items())  # in the order of their first rows
    if len(counts) == 1:
        return dict(counts)
    n, widest = counts[-1][1], max(n for _, n in counts)
    ending = list(takewhile(lambda count: count[1] == n, reversed(counts)))
    if widest - n > max_rollback or len(ending) * n > n_at_once:
        return {}  # one with more rows may have been computed partly with them, or not all at once
    return dict(ending)


_AMX_ROWS = 32  # two tiles; with Q8_0 33 rows take 2.8 times as long as 32, and 65 2.3 times as 64
_UNLIMITED = 1 << 30
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class FeatureOutput(Protocol):
    """The output of hidden states of a context's decodes; llama/heads.py has it."""

    def before(self, n_outputs: int) -> None:
        """A decode with so many rows of logits follows."""

    def after(self, batch: Sequence[BatchRow], branches: Sequence[Sequence[BatchRow]] = ()) -> None:
        """The decode of these rows, and those of branches after them, is finished."""


class LlamaContext(NativeContext):
    """A KV cache of `n_ctx` tokens over a model, shared by `n_seq_max` sequences; implements
    core.interfaces.Context, which documents the methods. n_outputs_max: most rows with logits in one decode.
    n_spare: cells beyond n_ctx. n_rs_seq: recurrent states kept per sequence for rollback; llama.cpp keeps
    none for most recurrent models, whose truncation then needs a checkpoint. n_branches: most branches of a
    decode, where the memory can hold them: recurrent states and windows of cells cannot. features: takes
    hidden states of all decodes; None: they are not kept. Raises ResourceError if memory runs out, UsageError
    for a model that does not generate text.
    """

    def __init__(
        self,
        model: LlamaModel,
        n_ctx: int,
        n_seq_max: int = 1,
        n_outputs_max: int = 64,
        n_rs_seq: int = 0,
        n_spare: int = 0,
        n_branches: int = 0,
    ) -> None:
        self.model, s = model, model.settings
        self.n_branches = 0 if why_no_branches(model) else n_branches
        n_seqs, n_rs_seq = n_seq_max + self.n_branches, n_rs_seq if model.has_state else 0
        params = context_params(s, n_ctx + n_spare, n_seqs, n_outputs_max, n_rs_seq)
        self.open(model, params, n_ctx)
        if not self.memory:
            raise UsageError(f"{s.path} has no memory for generation; it is not a text model")
        model.apply_lora(self.handle)
        self.n_ctx, self.n_seq_max = int(llama.llama_n_ctx(self.handle)) - n_spare, n_seq_max
        self.n_spare = n_spare
        self.n_batch, self.n_vocab = int(llama.llama_n_batch(self.handle)), model.n_vocab
        self.n_outputs_max = min(n_outputs_max, self.n_batch)
        self.row_multiple = _AMX_ROWS if model.uses_amx else 1
        self.rounds_prompts = model.rounds_prompts
        self.n_threads, self.n_threads_batch = params.n_threads, params.n_threads_batch
        n_rs_seq = int(llama.llama_n_rs_seq(self.handle))
        self.max_rollback = n_rs_seq if model.has_state and n_rs_seq else _UNLIMITED
        self.cuts_need_checkpoint = model.has_state and not n_rs_seq
        # Further rows take the place of cells that the window of the next token has left already.
        self.can_pad = not self.cuts_need_checkpoint
        self._windowed = bool(model.n_swa) and s.swa_full is False
        self.swa_full = not self._windowed  # layers with a sliding window, if any, keep all cells
        self.cuts_anywhere = not model.has_state and not model.n_swa
        self.n_decoded = 0
        self.features: FeatureOutput | None = None
        self.decode_seconds = 0.0  # spent in llama_decode and llama_synchronize
        self._limits = DecodeLimits(self.n_batch, self.n_outputs_max, self.n_vocab, n_seqs)
        self._n_swa, self.n_ubatch = model.n_swa, int(llama.llama_n_ubatch(self.handle))
        self._last_rows = [0] * n_seq_max  # of each sequence in the last decode: the limit of a rollback
        self._padding = [0] * n_seq_max  # rows at the end of each sequence that are still to be removed
        self._checkpoints: dict[int, tuple[int, bytearray]] = {}  # with their numbers of tokens
        self._images = ImagePositions()
        self._branches = BranchSequences(self.memory, range(n_seq_max, n_seq_max + self.n_branches))
        self._reserve = MemoryReserve()
        self._logits = LogitRows(self.handle, self.n_outputs_max, self.n_vocab)
        self._tokens = TokenBatch(self.n_batch)
        self._batch: TokenBatch | EmbeddingBatch = self._tokens  # of the next decode

    def random_token(self) -> int:
        """A valid id for a decode that is only timed. Rows of one token would reach the same experts, and a
        mixture of them would seem to decode eight rows in half the time that a text takes.
        """
        return randrange(self.model.n_vocab)

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the threads of the next decodes: of a single row, and of several. Raises ValueError."""
        for n in (n_threads, n_threads_batch):
            if not 1 <= n <= MAX_THREADS:
                raise ValueError(f"a context uses 1 to {MAX_THREADS} threads, not {n}")
        llama.llama_set_n_threads(self.handle, n_threads, n_threads_batch)
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch

    def decode(
        self,
        batch: Sequence[BatchRow],
        n_rows: int = 0,
        n_outputs: int = 0,
        branches: Sequence[Sequence[BatchRow]] = (),
        n_apart: int = 0,
    ) -> NDArray[np.float32]:
        chains, placed = batch, None
        if branches or n_apart:
            check_branches(batch, branches, self.n_branches)
            placed = self._branches.placed(batch, branches, n_apart if max(len(batch), n_rows) > 1 else 0)
            batch = placed.rows
        shared = placed.shared if placed is not None else None
        batch = self._images.placed(batch)
        n, real = len(batch), batch
        if not 0 < n <= self.n_batch:
            self._limits.check_rows(n, 0)
        # Where states are rolled back, further rows would give one sequence as many rows as the others (see
        # `rows_to_roll_back`).
        fills = n_rows > n and self.can_pad
        if fills and (not self.model.has_state or len({row.seq_id for row in chains}) == 1):
            n_logits = min(n_outputs, self.n_outputs_max) - sum(row.output for row in batch)
            last = batch[len(chains) - 1]
            batch = [*batch, *further_rows(last, min(n_rows, self.n_batch) - n, n_logits)]
        if self.model.has_state:
            self._remove_padding()
        n_returned = self._fill(batch, n, shared)
        if self.features is not None:
            self.features.before(n_returned)
        started = running_time()
        try:
            run_decode(self.handle, self._batch)
        except NoRoomError:
            if len(batch) == n:
                raise
            batch, n_returned = real, self._fill(real, n, shared)  # there is room for these, perhaps
            run_decode(self.handle, self._batch)
        logits = self._logits.wait(n_returned)
        self.decode_seconds += running_time() - started
        self.n_decoded = len(batch)
        if self.features is not None:
            self.features.after(chains, branches)
        self._decoded(batch, n)
        if placed is not None:
            self._branches.decoded(placed)
        return logits

    def decode_image(
        self, seq_id: int, first: int, image: ImageEmbeddings, output: bool
    ) -> NDArray[np.float32]:
        n, width = image.rows.shape
        if not image.causal and n > min(self.n_ubatch, self.n_batch):
            raise LimitError(f"an image of {n} rows is computed at once, and the limit is {self.n_ubatch}")
        if self.model.has_state:
            self._remove_padding()
        start = self._images.position(seq_id, first)
        at = image.positions(start) if image.positions is not None else start + np.arange(n, dtype=np.int32)
        limits, started = replace(self._limits, width=width), running_time()
        if not image.causal:
            llama.llama_set_causal_attn(self.handle, False)
        try:
            for i in range(0, n, self.n_batch):
                rows, last = image.rows[i : i + self.n_batch], i + self.n_batch >= n
                specs = [(0, seq_id, output and last and i + j == n - 1) for j in range(len(rows))]
                batch = EmbeddingBatch(limits, specs, None, rows, at[..., i : i + self.n_batch])
                if self.features is not None:
                    self.features.before(int(output and last))
                run_decode(self.handle, batch)
        except NoRoomError:
            self.truncate(seq_id, first)
            raise
        finally:
            if not image.causal:
                llama.llama_set_causal_attn(self.handle, True)
        logits = self._logits.wait(int(output))
        self.decode_seconds += running_time() - started
        self.n_decoded, self._last_rows = n, [0] * self.n_seq_max
        self._images.add(seq_id, first, first + n, image.n_positions)
        return logits

    def _fill(
        self, batch: Sequence[BatchRow], n_real: int, shared: Mapping[int, Sequence[int]] | None = None
    ) -> int:
        """Put rows into the llama_batch; returns the number of the first `n_real` ones with an output.
        shared: see TokenBatch.
        """
        if len(batch) == 1:
            ((token, _, seq_id, output),) = batch
            self._check(1, token, token, seq_id, seq_id, int(output))
            self._tokens.fill(batch)
            return int(output)
        tokens, seq_ids = [row.token for row in batch], [row.seq_id for row in batch]
        outputs = [row.output for row in batch]
        self._check(len(batch), min(tokens), max(tokens), min(seq_ids), max(seq_ids), sum(outputs))
        self._tokens.fill(batch)
        if shared:
            self._tokens.share(shared)
        return sum(outputs[:n_real])

    def _decoded(self, batch: Sequence[BatchRow], n_real: int) -> None:
        """Record what can be rolled back, and remove the padding rows. Recurrent states can be rolled back
        only once, so there they are removed by the next truncation.
        """
        last = batch[-1].seq_id
        if self.model.has_state:
            self._last_rows = [0] * self.n_seq_max
            seq_ids = [row.seq_id for row in batch]
            for seq_id, n in rows_to_roll_back(seq_ids, self.max_rollback, self.n_ubatch).items():
                self._last_rows[seq_id] = n
            self._padding[last] = len(batch) - n_real
        elif len(batch) > n_real:
            llama.llama_memory_seq_rm(self.memory, last, batch[n_real].pos, -1)

    def _remove_padding(self) -> None:
        """Remove the padding rows of the last decode unless a truncation has done so."""
        for seq_id, n in enumerate(self._padding):
            if n:
                self.truncate(seq_id, self.n_past(seq_id))

    def _check(self, n: int, low: int, high: int, first: int, last: int, n_outputs: int) -> None:
        """See DecodeLimits."""
        self._limits.check_rows(n, n_outputs)
        self._limits.check_tokens(low, high)
        self._limits.check_seqs(first, last)

    def n_past(self, seq_id: int) -> int:
        self._limits.check_seqs(seq_id, seq_id)
        n = int(llama.llama_memory_seq_pos_max(self.memory, seq_id)) + 1 - self._padding[seq_id]
        return self._images.index(seq_id, n) if self._images else n

    def truncate(self, seq_id: int, n_past: int) -> int:
        have, padding = self.n_past(seq_id), self._padding[seq_id]
        n_past = min(n_past, have)
        if n_past == have and not padding:
            return have
        if n_past <= 0:
            self._clear(seq_id)
            return 0
        self._padding[seq_id] = 0
        self._branches.truncated(seq_id, n_past)
        removable = self._can_remove(seq_id, have + padding - n_past)
        position = self._images.position(seq_id, n_past)
        removed = removable and llama.llama_memory_seq_rm(self.memory, seq_id, position, -1)
        self._images.keep(seq_id, n_past)
        # With a sliding window the removal always succeeds, but cells outside the window are gone.
        holds = self.cuts_anywhere or (self.n_past(seq_id) == n_past and self._has_window(seq_id, n_past))
        return n_past if removed and holds else self._restore_checkpoint(seq_id, n_past)

    def can_truncate(self, seq_id: int, n_past: int) -> bool:
        n_back = self.n_past(seq_id) + self._padding[seq_id] - n_past
        if n_back <= 0:
            return True
        if self.model.has_state and not n_back <= min(self.max_rollback, self._last_rows[seq_id] - 1):
            return False
        return n_past > 0 and not self.cuts_need_checkpoint and self._has_window(seq_id, n_past)

    def can_copy(self, seq_id: int, n_past: int) -> bool:
        if n_past == self.n_past(seq_id):
            return True
        return not self.model.has_state and self._has_window(seq_id, n_past)

    def _has_window(self, seq_id: int, n_past: int) -> bool:
        """Whether layers with a sliding window have all cells that the token after n_past sees. Those that
        it has left are not saved, not even where the cache keeps them.
        """
        if not self._n_swa:
            return True
        oldest = max(0, self._images.position(seq_id, n_past) - self._n_swa)
        return bool(llama.llama_memory_seq_pos_min(self.memory, seq_id) <= oldest)

    def _can_remove(self, seq_id: int, n_back: int) -> bool:
        """Whether the last `n_back` tokens can be removed: recurrent states roll back only within the last
        decode.
        """
        if not self.model.has_state:
            return True
        possible = min(self.max_rollback, self._last_rows[seq_id] - 1)
        self._last_rows[seq_id] = 0
        return not self.cuts_need_checkpoint and n_back <= possible

    def _clear(self, seq_id: int) -> None:
        self._limits.check_seqs(seq_id, seq_id)
        self._branches.release(seq_id)
        llama.llama_memory_seq_rm(self.memory, seq_id, -1, -1)
        self._images.keep(seq_id, 0)
        self._padding[seq_id] = 0
        self._checkpoints.pop(seq_id, None)

    def copy(self, src: int, dst: int, n_past: int, partial: bytearray | None = None) -> int:
        self._limits.check_seqs(min(src, dst), max(src, dst))
        self._remove_padding()
        at_end = n_past == self.n_past(src)
        if partial is None and not at_end and (self.model.has_state or not self._has_window(src, n_past)):
            self._clear(dst)
            return 0
        if partial is None and at_end and self._windowed:
            partial = self.save_partial(src)  # windowed cells that two texts share would never be free again
        self._clear(dst)
        self._last_rows[src] = self._last_rows[dst] = 0  # a shared state is not rolled back
        whole = self.model.has_state and partial is None
        end = -1 if whole else self._images.position(src, n_past)
        llama.llama_memory_seq_cp(self.memory, src, dst, 0, end)
        if self._images:
            self._images.copy(src, dst, n_past)
        return self.n_past(dst) if partial is None else self.restore_partial(dst, n_past, partial)

    # Saving and restoring sequences: whole, or only the parts that cannot be truncated

    def checkpoint(self, seq_id: int) -> None:
        state = self.save_partial(seq_id)
        if state is None:
            raise DecodeError("llama.cpp cannot save the state of the sequence")
        self._checkpoints[seq_id] = (self.n_past(seq_id), state)

    def _restore_checkpoint(self, seq_id: int, n_past: int) -> int:
        """Restore the checkpoint if it is at or before n_past, else clear the sequence; the tokens left."""
        at, state = self._checkpoints.get(seq_id, (0, None))
        if state is None or at > n_past:
            self._clear(seq_id)
            return 0
        return self.restore_partial(seq_id, at, state)

    def partial_size(self, seq_id: int) -> int:
        self._limits.check_seqs(seq_id, seq_id)
        if self.cuts_anywhere or not self.n_past(seq_id):
            return 0
        return int(llama.llama_state_seq_get_size_ext(self.handle, seq_id, _PARTIAL))

    def save_partial(self, seq_id: int) -> bytearray | None:
        self._limits.check_seqs(seq_id, seq_id)
        self._remove_padding()
        state = bytearray(llama.llama_state_seq_get_size_ext(self.handle, seq_id, _PARTIAL))
        at = _pointer_to(state)
        if llama.llama_state_seq_get_data_ext(self.handle, at, len(state), seq_id, _PARTIAL) != len(state):
            return None
        del at
        if not self.model.has_state or self.model.n_swa:
            order_cells(state)
        return state

    def restore_partial(self, seq_id: int, n_past: int, partial: bytearray) -> int:
        if self.model.has_state:
            self._remove_padding()
        self._branches.release(seq_id)
        # To make room llama.cpp moves the states of others, without the earlier ones that a rollback needs.
        self._last_rows = [0] * self.n_seq_max
        self._padding[seq_id] = 0
        at, _ = self._checkpoints.get(seq_id, (0, None))
        if at > n_past:
            del self._checkpoints[seq_id]
        size = len(partial)
        done = llama.llama_state_seq_set_data_ext(self.handle, _pointer_to(partial), size, seq_id, _PARTIAL)
        self._images.keep(seq_id, n_past)
        position = self._images.position(seq_id, n_past)
        if (
            done == size
            and llama.llama_memory_seq_rm(self.memory, seq_id, position, -1)
            and self.n_past(seq_id) == n_past
        ):
            return n_past
        self._clear(seq_id)
        return 0

    def size(self, seq_id: int) -> int:
        self._limits.check_seqs(seq_id, seq_id)
        self._remove_padding()
        if not self.n_past(seq_id):
            return 0
        return int(llama.llama_state_seq_get_size(self.handle, seq_id)) + len(self._images.saved(seq_id))

    def prepare_save(self, seq_id: int) -> bool:
        return self._reserve.prepare(self.size(seq_id))

    def save(self, seq_id: int) -> mmap.mmap | None:
        self._branches.release(seq_id)
        size, images = self.size(seq_id), self._images.saved(seq_id)
        try:
            saved = self._reserve.take(size)
        except (OSError, ValueError):
            return None
        size -= len(images)
        written = llama.llama_state_seq_get_data(self.handle, _pointer_to(saved), size, seq_id)
        if written != size:
            return None
        order_cells(saved)
        saved[size:] = images
        return saved

    def load(self, seq_id: int, saved: mmap.mmap) -> int:
        self._remove_padding()
        self._clear(seq_id)
        self._last_rows = [0] * self.n_seq_max
        with memoryview(saved) as view:
            size = self._images.restore(seq_id, view)
        if not llama.llama_state_seq_set_data(self.handle, _pointer_to(saved), size, seq_id):
            self._clear(seq_id)
        return self.n_past(seq_id)


def _pointer_to(memory: mmap.mmap | bytearray) -> Any:
    """A pointer to the first byte. (An array type would be a new ctypes class for every size.)"""
    return ctypes.byref(ctypes.c_uint8.from_buffer(memory))
