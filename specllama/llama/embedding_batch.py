"""Batches of tokens with hidden states, or of hidden states alone, for llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import DecodeError
from specllama.errors import EngineError, UsageError
from specllama.gguf.parse import TYPE_BY_NAME, TYPE_NUMBERS, row_bytes
from specllama.llama.decode_limits import DecodeLimits
from specllama.llama.library import ggml, llama

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


# The rows of logits of a context's last decode, as numpy arrays over llama.cpp's memory.


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
    function = _traits(type_name).to_float
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


def _traits(type_name: str) -> _Traits:
    function: Any = ggml.ggml_get_type_traits
    function.restype, function.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    traits: _Traits = function(TYPE_NUMBERS[type_name]).contents
    return traits
