"""Rows of tensors in ggml's types: to floats and back, by ggml's own functions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.errors import EngineError, UsageError
from specllama.gguf.types import TYPE_BY_NAME, TYPE_NUMBERS, row_bytes
from specllama.llama.library import ggml

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
