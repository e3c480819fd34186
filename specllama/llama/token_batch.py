"""Batches of tokens for llama.cpp: one llama_batch over numpy arrays, filled for every decode."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow
from specllama.llama.library import llama

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
