"""Functions of llama-ext.h, with which hidden states of a context are read.

llama.cpp exports them under C++ names and does not promise to keep them: they are looked up by name, and
without one of them heads cannot be used.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import DecodeError
from specllama.llama.embedding_batch import FLOATS
from specllama.llama.library import ggml

_CONTEXT, _LAYER, _BOOL = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool
_FUNCTIONS: dict[str, tuple[str, Any, list[Any]]] = {
    "set_nextn": ("_Z26llama_set_embeddings_nextnP13llama_contextbb", None, [_CONTEXT, _BOOL, _BOOL]),
    "get_nextn": ("_Z26llama_get_embeddings_nextnP13llama_context", FLOATS, [_CONTEXT]),
    "set_layer": ("_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, [_CONTEXT, _LAYER, _BOOL]),
    "set_offset": ("_Z28llama_set_nextn_layer_offsetP13llama_contexti", None, [_CONTEXT, ctypes.c_int32]),
    "get_layer": ("_Z30llama_get_embeddings_layer_inpP13llama_contextj", FLOATS, [_CONTEXT, _LAYER]),
}


class _Functions:
    """The functions of llama-ext.h by the names above. missing: those that this build does not export."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        for name, (symbol, result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(ggml, symbol)
            except AttributeError:
                self.missing.append(symbol)
                continue
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    set_nextn: Any
    get_nextn: Any
    set_layer: Any
    set_offset: Any
    get_layer: Any


ext = _Functions()


def unsupported() -> str:
    """Why heads cannot be used with this build of llama.cpp, "" if they can."""
    if not ext.missing:
        return ""
    return f"this build of llama.cpp does not export {ext.missing[0]}"


def rows_at(address: Any, n: int, width: int) -> NDArray[np.float32]:
    """A view of n rows of floats. Raises DecodeError where llama.cpp has none."""
    if not address:
        raise DecodeError("llama.cpp gave no hidden states")
    return np.ctypeslib.as_array(address, (n, width))


def set_nextn(handle: Any) -> None:
    """Let a context give out a row for each token of a decode, with an output or not."""
    ext.set_nextn(handle, True, False)


def nextn_rows(handle: Any) -> Any:
    """The address of the rows of the last decode."""
    return ext.get_nextn(handle)
