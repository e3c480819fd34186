"""The sequences of a context that branches of drafts are decoded in.

A branch sees a text up to its first token, in a sequence of its own that shares the cells of the text.
It keeps them from round to round: sharing a cell costs an insertion into a tree for each, so sharing a
long text again in every round would take as long as a decode. What llama.cpp checks of sequences that
share rows of a batch (llama-batch.cpp): they begin and end at the same positions, and once a row is not
shared, no later one is.
"""

from __future__ import annotations

import ctypes
import mmap
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from specllama.core.interfaces import BatchRow, DecodeError
from specllama.large_memory import MemoryReserve
from specllama.llama.cell_order import order_cells
from specllama.llama.decode_limits import DecodeLimits, LimitError
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel


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


# Saving and restoring sequences of a context: whole, or only the parts that cannot be truncated.
#
# Part of `LlamaContext`; the methods are documented in core.interfaces.Context.


_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class SequenceStates(ABC):
    """The saved states of the sequences of a context. _checkpoints: the last one of each sequence that may be
    truncated in a draft, with its number of tokens. _reserve: memory for the next saved states.
    """

    model: LlamaModel
    handle: Any
    memory: Any
    n_seq_max: int
    cuts_anywhere: bool
    _limits: DecodeLimits
    _windowed: bool
    _last_rows: list[int]
    _padding: list[int]
    _checkpoints: dict[int, tuple[int, bytearray]]
    _branches: BranchSequences
    _reserve: MemoryReserve

    @abstractmethod
    def n_past(self, seq_id: int) -> int: ...
    @abstractmethod
    def _remove_padding(self) -> None: ...
    @abstractmethod
    def _clear(self, seq_id: int) -> None: ...

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
        if (
            done == size
            and llama.llama_memory_seq_rm(self.memory, seq_id, n_past, -1)
            and self.n_past(seq_id) == n_past
        ):
            return n_past
        self._clear(seq_id)
        return 0

    def size(self, seq_id: int) -> int:
        self._limits.check_seqs(seq_id, seq_id)
        self._remove_padding()
        return int(llama.llama_state_seq_get_size(self.handle, seq_id)) if self.n_past(seq_id) else 0

    def prepare_save(self, seq_id: int) -> bool:
        return self._reserve.prepare(self.size(seq_id))

    def save(self, seq_id: int) -> mmap.mmap | None:
        self._branches.release(seq_id)
        size = self.size(seq_id)
        try:
            saved = self._reserve.take(size)
        except (OSError, ValueError):
            return None
        written = llama.llama_state_seq_get_data(self.handle, _pointer_to(saved), size, seq_id)
        if written != size:
            return None
        order_cells(saved)
        return saved

    def load(self, seq_id: int, saved: mmap.mmap) -> int:
        self._remove_padding()
        self._clear(seq_id)
        self._last_rows = [0] * self.n_seq_max
        if not llama.llama_state_seq_set_data(self.handle, _pointer_to(saved), len(saved), seq_id):
            self._clear(seq_id)
        return self.n_past(seq_id)


def _pointer_to(memory: mmap.mmap | bytearray) -> Any:
    """A pointer to the first byte. (An array type would be a new ctypes class for every size.)"""
    return ctypes.byref(ctypes.c_uint8.from_buffer(memory))
