"""llama.cpp for the scripts: quantise a GGUF, load it, decode, time decodes.

One sequence, one context, greedy sampling only. Knows nothing about specllama.
"""

from __future__ import annotations

import ctypes
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import llama_cpp as lc
import numpy as np
from numpy.typing import NDArray

FTYPES = {
    "f16": lc.LLAMA_FTYPE_MOSTLY_F16,
    "q8_0": lc.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": lc.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_0_pure": lc.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_k_m": lc.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}
LOG_LEVEL_ERROR = 4  # ggml.h; llama_cpp has no name for it


class ModelFileError(Exception):
    """llama.cpp cannot read, load or write the file."""


def _errors_only(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    if level == LOG_LEVEL_ERROR:
        print("llama.cpp:", text.decode(errors="replace").rstrip(), file=sys.stderr)


_log = lc.llama_log_callback(_errors_only)


def start_llama() -> None:
    """Initialise llama.cpp, and reduce its log to errors."""
    lc.llama_log_set(_log, ctypes.c_void_p(0))
    lc.llama_backend_init()


def quantize(source: Path, out: Path, kind: str, *, n_threads: int) -> None:
    """Write `source` (f16) to `out` as `kind`, a key of FTYPES; f16 is copied.

    Embeddings that serve as the output too get llama.cpp's choice: Q8_0 for q8_0, Q6_K for the 4-bit types
    (Q4_0 for q4_0_pure). Raises ModelFileError.
    """
    if kind == "f16":
        shutil.copyfile(source, out)
        return
    params = lc.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.pure = FTYPES[kind], n_threads, kind.endswith("_pure")
    if lc.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) != 0:
        raise ModelFileError(f"{source}: llama.cpp cannot quantise it to {kind}")


class Llm:
    """A loaded model with a context of `n_ctx` tokens on the CPU. Close it, or use it in `with`."""

    def __init__(self, path: Path, *, n_threads: int, n_ctx: int = 1024) -> None:
        model_params = lc.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = lc.llama_model_load_from_file(str(path).encode(), model_params)
        if not self.model:
            raise ModelFileError(f"{path}: llama.cpp cannot load it")
        params = lc.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = n_threads
        self.ctx = lc.llama_init_from_model(self.model, params)
        if not self.ctx:
            lc.llama_model_free(self.model)
            raise ModelFileError(f"{path}: llama.cpp cannot make a context of {n_ctx} tokens")
        self.vocab = lc.llama_model_get_vocab(self.model)
        self.memory = lc.llama_get_memory(self.ctx)
        self.n_vocab: int = lc.llama_vocab_n_tokens(self.vocab)
        self.n_params: int = lc.llama_model_n_params(self.model)
        self.n_ctx = n_ctx
        self.n_past = 0
        self._batch = lc.llama_batch_init(n_ctx, 0, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        lc.llama_batch_free(self._batch)
        lc.llama_free(self.ctx)
        lc.llama_model_free(self.model)

    def tokenize(self, text: str) -> list[int]:
        """Token ids, with the beginning-of-text token if the model adds one; control tokens are parsed."""
        data = text.encode()
        ids = (lc.llama_token * (len(data) + 2))()
        n = lc.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, True)
        return list(ids[:n])

    def set_threads(self, n_threads: int) -> None:
        """Set the threads of later decodes."""
        lc.llama_set_n_threads(self.ctx, n_threads, n_threads)

    def is_end(self, token: int) -> bool:
        return bool(lc.llama_vocab_is_eog(self.vocab, token))

    def decode(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append the tokens to the context; logits, (len(tokens), n_vocab), valid until the next call."""
        if self.n_past + len(tokens) > self.n_ctx:
            raise ValueError(f"{self.n_past} + {len(tokens)} tokens are more than the context's {self.n_ctx}")
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, self.n_past + i, 1, 1
            batch.seq_id[i][0] = 0
        if lc.llama_decode(self.ctx, batch) != 0:
            raise ModelFileError("llama.cpp cannot decode")
        lc.llama_synchronize(self.ctx)
        self.n_past += len(tokens)
        return np.ctypeslib.as_array(lc.llama_get_logits(self.ctx), (len(tokens), self.n_vocab))

    def truncate(self, n_past: int) -> None:
        """Keep the first `n_past` tokens of the context."""
        lc.llama_memory_seq_rm(self.memory, 0, n_past, -1)
        self.n_past = n_past

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Up to `n` greedy tokens after the prompt; ends after an end token."""
        self.truncate(0)
        out = [int(self.decode(prompt)[-1].argmax())]
        while len(out) < n and not self.is_end(out[-1]):
            out.append(int(self.decode(out[-1:])[-1].argmax()))
        return out

    def choices(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """The token with the largest logit after each of the tokens, from an empty context."""
        self.truncate(0)
        chosen: NDArray[np.int64] = self.decode(tokens).argmax(axis=1)
        return chosen

    def seconds(self, tokens: Sequence[int]) -> float:
        """Seconds of one decode of the tokens after the context, which is restored."""
        n_past = self.n_past
        start = time.perf_counter()
        self.decode(tokens)
        took = time.perf_counter() - start
        self.truncate(n_past)
        return took


def measure(
    llms: Mapping[str, Llm], widths: Sequence[int], *, rounds: int, n_past: int = 128, repeat: int = 3
) -> dict[str, dict[int, float]]:
    """t(n) of each model for each width n in milliseconds, at `n_past` tokens of context.

    The models take turns in every round, so that other load on the machine affects all alike. Of the `repeat`
    decodes of a turn the first is dropped, as the cache holds another model's weights; the result is the
    median of the others.
    """
    times: dict[tuple[str, int], list[float]] = {}
    for llm in llms.values():
        llm.truncate(0)
        llm.decode([i % llm.n_vocab for i in range(10, 10 + n_past)])
    for _ in range(rounds):
        for name, llm in llms.items():
            for n in widths:
                took = [llm.seconds([20 + i for i in range(n)]) for _ in range(repeat)]
                times.setdefault((name, n), []).extend(took[1:] or took)
    return {name: {n: 1000 * statistics.median(times[name, n]) for n in widths} for name in llms}
