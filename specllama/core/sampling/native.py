"""The most usual choice, and the probability of a token, by compiled functions (llama/native/sampling.cpp).

After a decode, little of what numpy executes for a choice is left in the processor's caches: it then takes
five times as long as in a loop. The results are those of sampler.py but for the last bit of a score.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from specllama.core.interfaces import Row

UNKNOWN = -1  # where only numpy knows, or says what is wrong
MAX_BIASES = 64
Biases = Mapping[int, float]  # by token
_MASK64 = (1 << 64) - 1


class _SamplingParams(ctypes.Structure):
    """sampling_params of sampling.cpp."""

    _fields_ = (
        ("top_p", ctypes.c_double),
        ("log_min_p", ctypes.c_double),
        ("temperature", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("top_k", ctypes.c_int32),
        ("n_biases", ctypes.c_int32),
        ("bias_ids", ctypes.c_int32 * MAX_BIASES),
        ("biases", ctypes.c_float * MAX_BIASES),
    )


class NativeFunctions:
    """Those of a library that is compiled from sampling.cpp. Raises AttributeError where it lacks them."""

    def __init__(self, library: Any) -> None:
        self.choose, self.probability = library.specllama_choose, library.specllama_probability
        self.choose.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64]
        self.probability.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        self.probability.restype = ctypes.c_double


functions: NativeFunctions | None = None  # of this process


class NativeChoice:
    """The choice by biases, top-k, top-p, min-p and temperature, with keyed noise; at most MAX_BIASES."""

    def __init__(
        self, top_k: int, top_p: float, log_min_p: float, temperature: float, seed: int, biases: Biases
    ) -> None:
        scales = top_p, log_min_p, temperature
        n = top_k, len(biases)
        self._params = _SamplingParams(*scales, seed & _MASK64, *n, (*biases,), (*biases.values(),))
        self._pointer = ctypes.byref(self._params)

    def choose(self, row: Row, position: int) -> int:
        """The token; UNKNOWN where that is left to numpy. row: logits, shape (n_vocab,)."""
        if functions is None or (logits := _pointer(row)) is None:
            return UNKNOWN
        return int(functions.choose(logits, len(row), self._pointer, position))


def probability(row: Row, token: int) -> float | None:
    """The token's probability in the softmax of the row, None where that is left to numpy."""
    if functions is None or (logits := _pointer(row)) is None:
        return None
    return float(functions.probability(logits, len(row), token))


def _pointer(row: Any) -> Any:
    """To a row's memory, None unless it is a writable block of 32-bit numbers."""
    if row.itemsize != ctypes.sizeof(ctypes.c_float):
        return None
    try:
        return ctypes.byref(ctypes.c_float.from_buffer(row))
    except (TypeError, ValueError):
        return None
