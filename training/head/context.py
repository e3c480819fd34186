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

from scripts.bench.llm import ModelFileError
from specllama.config.load import ModelSettings
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


class StreamContext:
    """A context whose sequences have caches of their own, n_ctx tokens each, and which gives the inputs of
    `layers` for every row of a decode. Raises ModelFileError.
    """

    def __init__(self, path: Path, layers: Sequence[int], n_seq: int, n_ctx: int, n_threads: int) -> None:
        self.model = LlamaModel(ModelSettings(path=str(path)))
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = n_ctx * n_seq, n_seq, False
        params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = n_threads
        self.handle = llama.llama_init_from_model(self.model.handle, params)
        if not self.handle:
            raise ModelFileError(f"{path}: llama.cpp cannot make a context of {n_seq} times {n_ctx} tokens")
        self.memory = llama.llama_get_memory(self.handle)
        self.layers, self.n_embd = tuple(layers), int(llama.llama_model_n_embd(self.model.handle))
        for layer in self.layers:
            _set_layer_inp(self.handle, layer, True)
        self._batch = llama.llama_batch_init(n_ctx, 0, 1)

    def clear(self, seq_id: int) -> None:
        """Remove all tokens of a sequence."""
        llama.llama_memory_seq_rm(self.memory, seq_id, -1, -1)

    def decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> NDArray[np.float32]:
        """Decode (token, position, seq_id, output) rows; the logits of those with an output, one row each,
        valid until the next decode.
        """
        batch = self._batch
        batch.n_tokens, n_outputs = len(rows), 0
        for i, (token, position, seq_id, output) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, output
            batch.seq_id[i][0] = seq_id
            n_outputs += output
        if llama.llama_decode(self.handle, batch) != 0:
            raise ModelFileError("llama.cpp cannot decode")
        llama.llama_synchronize(self.handle)
        return np.ctypeslib.as_array(llama.llama_get_logits(self.handle), (n_outputs, self.model.n_vocab))

    def layer_inputs(self, n: int) -> NDArray[np.float16]:
        """The layer inputs of the `n` rows of the last decode, (n, len(layers) * n_embd). The rows are in the
        order of the batch if they are of one sequence, or one of each sequence in the order of their ids.
        """
        found = np.empty((n, len(self.layers), self.n_embd), np.float16)
        for i, layer in enumerate(self.layers):
            flat = (ctypes.c_float * (n * self.n_embd)).from_address(_get_layer_inp(self.handle, layer))
            found[:, i] = np.ndarray((n, self.n_embd), np.float32, flat)
        return found.reshape(n, -1)
