"""Batches of tokens with hidden states, or of hidden states alone, for llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.llama.decode_limits import DecodeLimits
from specllama.llama.library import llama

FLOATS = ctypes.POINTER(ctypes.c_float)
_MOST_SECTIONS = 4  # of a position, which llama.cpp reads where rows have no tokens (M-RoPE)


class EmbeddingBatch:
    """A llama_batch with hidden states, and the arrays that it points to.

    limits: of the context that decodes it. row_specs: (position, seq_id, output) of each row. tokens: their
    ids, hidden: their states, shape (n, limits.width); one of the two may be None. Raises LimitError.
    """

    def __init__(
        self,
        limits: DecodeLimits,
        row_specs: Sequence[tuple[int, int, bool]],
        tokens: Sequence[int] | None,
        hidden: NDArray[np.float32] | None,
    ) -> None:
        n = len(row_specs)
        limits.check_rows(n, sum(output for _, _, output in row_specs))
        positions, seqs, outputs = zip(*row_specs, strict=True)
        limits.check_seqs(min(seqs), max(seqs))
        if tokens is not None:
            limits.check_tokens(min(tokens), max(tokens))
        if hidden is not None:
            limits.check_hidden(hidden.shape, n)
        self._seqs = np.array(seqs, np.int32)
        pointers = self._seqs.ctypes.data + 4 * np.arange(n, dtype=np.uint64)
        self._kept = (
            np.array(positions * (1 if tokens is not None else _MOST_SECTIONS), np.int32),
            np.ones(n, np.int32),
            pointers.astype(np.uint64),
            np.array(outputs, np.int8),
            np.ascontiguousarray(hidden, np.float32) if hidden is not None else None,
            np.array(tokens, np.int32) if tokens is not None else None,
        )
        position, n_seq, seq, output, values, ids = self._kept
        ints = ctypes.POINTER(ctypes.c_int32)
        self.batch = llama.llama_batch(
            n_tokens=n,
            token=ids.ctypes.data_as(ints) if ids is not None else None,
            embd=values.ctypes.data_as(FLOATS) if values is not None else None,
            pos=position.ctypes.data_as(ints),
            n_seq_id=n_seq.ctypes.data_as(ints),
            seq_id=ctypes.cast(seq.ctypes.data, ctypes.POINTER(ints)),
            logits=output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
