"""Saving and restoring sequences of a context: whole, or only the parts that cannot be truncated.

Part of `LlamaContext`; the methods are documented in core.interfaces.Context.
"""

from __future__ import annotations

import ctypes
import mmap
from abc import ABC, abstractmethod
from typing import Any

from specllama.core.interfaces import DecodeError
from specllama.large_memory import MemoryReserve
from specllama.llama.branches import BranchSequences
from specllama.llama.cell_order import order_cells
from specllama.llama.decode_limits import DecodeLimits
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel

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
