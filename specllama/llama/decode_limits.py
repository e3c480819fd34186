"""Conditions under which llama.cpp would abort the process, and with it every client's text.

All contexts check them first, and raise an error that ends the generations of that decode alone. They
are the GGML_ASSERTs of llama_context::decode and encode and of the memories' functions by sequence, and
the rows that llama.cpp would read beyond the end of an array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow, DecodeError
from specllama.llama.library import llama

CELLS_MULTIPLE = 256  # llama.cpp has a multiple of so many cells, but limits a batch by the number given
MORE_THAN_STATES = 2  # what a rollback needs is computed at once: so many rows more than states


class LimitError(DecodeError, ValueError):
    """Rows or a sequence on which llama.cpp would abort."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Of a context. n_batch: most rows of a decode; n_outputs_max: most of them with logits; width: values of
    a row's hidden state, 0 for rows without any.
    """

    n_batch: int
    n_outputs_max: int
    n_vocab: int
    n_seq_max: int
    width: int = 0

    def check_rows(self, n: int, n_outputs: int) -> None:
        """Raises LimitError."""
        if not 0 < n <= self.n_batch:
            raise LimitError(f"a decode has 1 to {self.n_batch} tokens, not {n}")
        if n_outputs > self.n_outputs_max:
            raise LimitError(f"a decode returns at most {self.n_outputs_max} rows of logits, not {n_outputs}")

    def check_tokens(self, low: int, high: int) -> None:
        """low, high: smallest and largest token id. Raises LimitError."""
        if low < 0 or high >= self.n_vocab:
            raise LimitError(f"a token id is not in the vocabulary of {self.n_vocab}")

    def check_seqs(self, first: int, last: int) -> None:
        """first, last: smallest and largest seq_id. Raises LimitError."""
        if first < 0 or last >= self.n_seq_max:
            raise LimitError(f"a seq_id is not one of the {self.n_seq_max} sequences")

    def check_hidden(self, shape: tuple[int, ...], n: int) -> None:
        """shape: of the hidden states of n rows. Raises LimitError."""
        if shape != (n, self.width):
            raise LimitError(f"the hidden states of {n} rows have the shape {shape}, not ({n}, {self.width})")


# Batches of tokens for llama.cpp: one llama_batch over numpy arrays, filled for every decode.


_FEW_ROWS = 8  # up to so many are written faster one by one than by operations of numpy


class TokenBatch:
    """A llama_batch of up to n_batch tokens, each in one sequence, unless `share` puts it into more. batch:
    what llama_decode takes.
    """

    def __init__(self, n_batch: int) -> None:
        n = n_batch
        self._token, self._pos = np.zeros(n, np.int32), np.zeros(n, np.int32)
        self._n_seq, self._seq = np.ones(n, np.int32), np.zeros(n, np.int32)
        self._output = np.zeros(n, np.int8)
        self._own_pointers = self._seq.ctypes.data + 4 * np.arange(n, dtype=np.uintp)
        self._seq_pointers = self._own_pointers.copy()
        self._shared: NDArray[np.int32] | None = None  # sequences of rows that are in several
        self.batch = llama.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(ctypes.POINTER(llama.llama_token)),
            embd=None,
            pos=self._pos.ctypes.data_as(ctypes.POINTER(llama.llama_pos)),
            n_seq_id=self._n_seq.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=ctypes.cast(
                self._seq_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(llama.llama_seq_id))
            ),
            logits=self._output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, rows: Sequence[BatchRow]) -> None:
        """Replace the contents by these rows, at most n_batch."""
        n = self.batch.n_tokens = len(rows)
        if self._shared is not None:
            self._shared, self._n_seq[:], self._seq_pointers[:] = None, 1, self._own_pointers
        if n <= _FEW_ROWS:
            for i, (token, position, seq_id, output) in enumerate(rows):
                self._token[i], self._pos[i], self._seq[i], self._output[i] = token, position, seq_id, output
            return
        tokens, positions, seq_ids, outputs = zip(*rows, strict=True)
        self._token[:n], self._pos[:n], self._seq[:n], self._output[:n] = tokens, positions, seq_ids, outputs

    def share(self, seq_ids: Mapping[int, Sequence[int]]) -> None:
        """Put rows, by their index, into these sequences besides their own."""
        sets = {i: [int(self._seq[i]), *more] for i, more in seq_ids.items()}
        self._shared = np.array([seq_id for own_ids in sets.values() for seq_id in own_ids], np.int32)
        at = self._shared.ctypes.data
        for i, own_ids in sets.items():
            self._n_seq[i], self._seq_pointers[i] = len(own_ids), at
            at += 4 * len(own_ids)


def further_rows(last: BatchRow, n: int, n_outputs: int) -> list[BatchRow]:
    """The n rows that fill up a decode, the first n_outputs of them with an output: the last one again, at
    the positions after it. The experts of one token cost less than those of many.
    """
    token, pos, seq_id, _ = last
    return [BatchRow(token, pos + 1 + i, seq_id, i < n_outputs) for i in range(n)]
