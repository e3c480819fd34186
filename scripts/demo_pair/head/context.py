"""The target for writing texts: many sequences at once, each with a cache of its own, and layer inputs.

specllama's own contexts share one cache between sequences, in which every row of a decode passes over the
cells of all; with tens of long sequences that takes most of the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.config.load import ModelSettings
from specllama.llama.context import LlamaContext
from specllama.llama.library import ggml, llama
from specllama.llama.model import LlamaModel


def _bind(name: str, result: Any, *args: Any) -> Any:
    """A function of llama.cpp's staging interface, exported under its C++ name."""
    return ctypes.CFUNCTYPE(result, *args)((name, ggml))


_set_layer_inp = _bind(
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    None,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_bool,
)
_get_layer_inp = _bind(
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32
)


class StreamContext(LlamaContext):
    """A context whose sequences have caches of their own, n_ctx / n_seq_max tokens each, and which returns
    the inputs of `layers` for every row of a decode.
    """

    def __init__(self, path: Path, layers: Sequence[int], n_seq: int, n_ctx: int, n_threads: int) -> None:
        settings = ModelSettings(path=str(path), n_threads=n_threads, n_batch=n_ctx, n_ubatch=512)
        super().__init__(LlamaModel(settings), n_ctx * n_seq, n_seq, n_seq)
        self.layers, self.n_embd = tuple(layers), int(llama.llama_model_n_embd(self.model.handle))
        for layer in self.layers:
            _set_layer_inp(self.handle, layer, True)

    def _params(self, *args: Any) -> llama.llama_context_params:
        params = super()._params(*args)
        params.kv_unified = False
        return params

    def features(self, n: int) -> NDArray[np.float16]:
        """The layer inputs of the `n` rows of the last decode, (n, len(layers) * n_embd). The rows are in the
        order of the batch if they are of one sequence, or one of each sequence in the order of their ids.
        """
        found = np.empty((n, len(self.layers), self.n_embd), np.float16)
        for i, layer in enumerate(self.layers):
            address = _get_layer_inp(self.handle, layer)
            flat = (ctypes.c_float * (n * self.n_embd)).from_address(address)
            found[:, i] = np.ndarray((n, self.n_embd), np.float32, flat)
        return found.reshape(n, -1)
