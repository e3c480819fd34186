"""Batches for llama.cpp, of tokens and of hidden states, and conditions under which it would abort the
process and with it every client's text.

All contexts check them first, and raise an error that ends the generations of that decode alone. They
are the GGML_ASSERTs of llama_context::decode and encode and of the memories' functions by sequence, and
the rows that llama.cpp would read beyond the end of an array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow, DecodeError, NoRoomError
from specllama.errors import EngineError, UsageError
from specllama.gguf.parse import TYPE_BY_NAME, TYPE_NUMBERS, row_bytes
from specllama.llama.library import ggml, llama, log

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


_FEW_ROWS = 8  # up to so many are written faster one by one than by operations of numpy


class TokenBatch:
    """A llama_batch over numpy arrays of up to n_batch tokens, filled for every decode, each in one sequence
    unless `share` puts it into more. batch: what llama_decode takes.
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


FLOATS = ctypes.POINTER(ctypes.c_float)
_MOST_SECTIONS = 4  # of a position, which llama.cpp reads where rows have no tokens (M-RoPE)


class EmbeddingBatch:
    """A llama_batch with hidden states, and the arrays that it points to.

    limits: of the context that decodes it. row_specs: (position, seq_id, output) of each row. tokens: their
    ids, hidden: their states, shape (n, limits.width); one of the two may be None. at: positions in place of
    those of the specs, shape (n,), or (4, n) for the sections of M-RoPE. Raises LimitError.
    """

    def __init__(
        self,
        limits: DecodeLimits,
        row_specs: Sequence[tuple[int, int, bool]],
        tokens: Sequence[int] | None,
        hidden: NDArray[np.float32] | None,
        at: NDArray[np.int32] | None = None,
    ) -> None:
        n = len(row_specs)
        limits.check_rows(n, sum(output for _, _, output in row_specs))
        positions, seqs, outputs = zip(*row_specs, strict=True)
        limits.check_seqs(min(seqs), max(seqs))
        if tokens is not None:
            limits.check_tokens(min(tokens), max(tokens))
        if hidden is not None and hidden.shape != (n, limits.width):
            shapes = f"the shape {hidden.shape}, not ({n}, {limits.width})"
            raise LimitError(f"the hidden states of {n} rows have {shapes}")
        self._seqs = np.array(seqs, np.int32)
        pointers = self._seqs.ctypes.data + 4 * np.arange(n, dtype=np.uint64)
        if at is None:
            at = np.array(positions, np.int32)
        if tokens is None and at.ndim == 1:
            at = np.tile(at, _MOST_SECTIONS)
        self._kept = (
            np.ascontiguousarray(at, np.int32).ravel(),
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


def run_decode(handle: Any, batch: TokenBatch | EmbeddingBatch, of: str = "") -> None:
    """Decode a batch in a context. of: what it is of, for the error. Raises NoRoomError, DecodeError."""
    result = llama.llama_decode(handle, batch.batch)
    if result == 1:
        raise NoRoomError
    if result != 0:
        raise DecodeError(f"llama_decode{of} returned {result}: {log.reason()}")


# Returns the bare address: llama-cpp-python's own binding makes an object for each call. Waits for the
# decode, as llama_synchronize does.
get_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("llama_get_logits", ggml))


class LogitRows:
    """Views of the logits of a context with n_outputs_max rows of n_vocab."""

    def __init__(self, handle: Any, n_outputs_max: int, n_vocab: int) -> None:
        self._handle, self._shape = handle, (n_outputs_max, n_vocab)
        self._address, self._logits = 0, np.zeros((0, n_vocab), np.float32)

    def wait(self, n_outputs: int) -> NDArray[np.float32]:
        """The first rows of the last decode, shape (n_outputs, n_vocab), once it is finished. Raises
        DecodeError.
        """
        if not n_outputs:
            llama.llama_synchronize(self._handle)
            return np.zeros((0, self._shape[1]), np.float32)
        address = get_logits(self._handle)
        if not address:
            raise DecodeError("llama.cpp gave no logits")
        if address != self._address:  # reallocated; the buffer may hold fewer rows than the view
            flat: Any = (ctypes.c_float * (self._shape[0] * self._shape[1])).from_address(address)
            self._address, self._logits = address, np.ndarray(self._shape, np.float32, flat)
        return self._logits[:n_outputs]


# Rows of tensors in ggml's types: to floats and back, by ggml's own functions.


_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _Traits(ctypes.Structure):
    """struct ggml_type_traits of ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


def to_floats(rows: NDArray[np.uint8], type_name: str, n: int) -> NDArray[np.float32]:
    """Rows of n elements of a tensor type as floats, exactly as ggml's GET_ROWS reads them, shape (len(rows),
    n). rows: their bytes, shape (any, bytes of a row). Raises EngineError for a type without such a function.
    """
    rows = np.ascontiguousarray(rows)
    if rows.shape[1:] != (row_bytes(type_name, n),):
        raise EngineError(
            f"rows of {n} {type_name} have {row_bytes(type_name, n)} bytes, not {rows.shape[1:]}"
        )
    if type_name == "F32":
        return rows.view("<f4").copy()
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    function = ggml.ggml_get_type_traits(TYPE_NUMBERS[type_name]).contents.to_float
    if not function:
        raise EngineError(f"llama.cpp here does not read tensors of type {type_name}")
    floats = np.empty((len(rows), n), np.float32)
    _TO_FLOAT(function)(rows.ctypes.data, floats.ctypes.data, floats.size)
    return floats


def from_floats(rows: NDArray[np.float32], type_name: str) -> NDArray[np.uint8]:
    """Rows of floats in a tensor type, as llama.cpp's quantisation writes them without an importance matrix;
    shape (len(rows), bytes of a row). Raises UsageError for a type that is not possible.
    """
    kind, n = TYPE_BY_NAME[type_name.lower()], rows.shape[1]
    code, block = TYPE_NUMBERS[kind.name], kind.block_size
    if n % block:
        raise UsageError(f"rows of {n} elements do not divide into blocks of {block} ({type_name})")
    ggml.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    if ggml.ggml_quantize_requires_imatrix(code):
        raise UsageError(f"{type_name} needs an importance matrix", "choose another type, such as q4_0")
    rows = np.ascontiguousarray(rows, np.float32)
    encoded = np.zeros((len(rows), row_bytes(type_name, n)), np.uint8)
    quantize: Any = ggml.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 3, ctypes.c_void_p]
    if quantize(code, rows.ctypes.data, encoded.ctypes.data, 0, len(rows), n, None) != encoded.nbytes:
        raise EngineError(f"llama.cpp could not write rows of type {type_name}")
    return encoded
