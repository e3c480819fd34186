"""The rows of logits of a context's last decode, as numpy arrays over llama.cpp's memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import DecodeError
from specllama.llama.library import ggml, llama

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
