"""A context that makes vectors of texts, or scores: several texts in one decode, each in its own sequence.

Nothing is kept from one decode to the next. Knows token ids and rows of floats, no requests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow, DecodeError
from specllama.gguf.architectures import POOLING_TYPES
from specllama.llama.batches import DecodeLimits, LimitError, TokenBatch
from specllama.llama.library import llama, log
from specllama.llama.model import LlamaModel, NativeContext, context_params

MAX_TEXTS = 64  # of a decode


class EmbeddingContext(NativeContext):
    """Makes vectors with a model. n_ctx: tokens of the longest text. pooling: one of
    POOLING_TYPES. at_once: a text has to be computed in one decode; otherwise a long one is computed in parts
    of n_ubatch. Raises ResourceError if memory runs out.

    n_rows: most tokens of a decode. n_values: floats of a vector, 1 for scores. The model's settings have the
    threads and flash attention.
    """

    def __init__(self, model: LlamaModel, n_ctx: int, pooling: str, at_once: bool) -> None:
        self.model, s = model, model.settings
        params = context_params(s, n_ctx, MAX_TEXTS, 1, 0)
        n_rows = params.n_ctx if at_once else min(s.n_ubatch, params.n_ctx)
        params.n_batch = params.n_ubatch = max(
            n_rows, MAX_TEXTS
        )  # llama.cpp reserves a row for each sequence
        params.n_outputs_max = params.n_outputs_max_per_seq = params.n_batch
        params.embeddings = True
        params.pooling_type = POOLING_TYPES.index(pooling)
        self.open(model, params, n_ctx)
        model.apply_lora(self.handle)
        self.n_ctx, self.n_rows = n_ctx, int(llama.llama_n_batch(self.handle))
        self.n_threads = params.n_threads
        self.pooling = pooling
        self.n_values = 1 if self.pooling == "rank" else int(llama.llama_model_n_embd_out(model.handle))
        self._limits = DecodeLimits(self.n_rows, self.n_rows, model.n_vocab, MAX_TEXTS)
        self._batch = TokenBatch(self.n_rows)

    def embed(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """The vectors of texts as the model gives them, not normalised: each of shape (1, n_values), or with
        the pooling "none" (tokens of the text, n_values).

        texts: 1 to MAX_TEXTS, none empty, of n_rows tokens together; one alone may have n_ctx. Raises
        LimitError for others, DecodeError if llama.cpp fails.
        """
        if not 0 < len(texts) <= MAX_TEXTS or not all(0 < len(text) <= self.n_ctx for text in texts):
            raise LimitError(f"a decode has 1 to {MAX_TEXTS} texts of 1 to {self.n_ctx} tokens")
        if self.memory:
            llama.llama_memory_clear(self.memory, True)
        rows = [
            BatchRow(token, position, seq_id, True)
            for seq_id, text in enumerate(texts)
            for position, token in enumerate(text)
        ]
        if len(texts) > 1:
            self._limits.check_rows(len(rows), len(rows))
        for begin in range(0, len(rows), self.n_rows):
            self._decode(rows[begin : begin + self.n_rows])
        if self.pooling != "none":
            return [self._vector(llama.llama_get_embeddings_seq(self.handle, i)) for i in range(len(texts))]
        one_by_one = iter(range(len(rows)))
        vectors = [
            [self._vector(llama.llama_get_embeddings_ith(self.handle, next(one_by_one))) for _ in text]
            for text in texts
        ]
        return [np.concatenate(own) for own in vectors]

    def _decode(self, rows: Sequence[BatchRow]) -> None:
        tokens = [row.token for row in rows]
        self._limits.check_tokens(min(tokens), max(tokens))
        self._batch.fill(rows)
        if result := llama.llama_decode(self.handle, self._batch.batch):
            raise DecodeError(f"llama_decode returned {result}: {log.reason()}")
        llama.llama_synchronize(self.handle)

    def _vector(self, address: Any) -> NDArray[np.float32]:
        """A copy of a vector of llama.cpp's, shape (1, n_values)."""
        if not address:
            raise DecodeError("llama.cpp gave no vector")
        values = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(values, (1, self.n_values)).astype(np.float32)


def ranking_ids(model: LlamaModel, query: str, document: str) -> list[int]:
    """The ids by which a reranker compares a document with a query, as llama-server makes them: by the
    template "rerank" of the file, or [BOS] query [EOS] [SEP] document [EOS] as the vocabulary adds these.
    """
    template = llama.llama_model_chat_template(model.handle, b"rerank")
    if template:
        text = template.decode("utf-8", "replace").replace("{query}", query).replace("{document}", document)
        return model.tokenize(text, False, True)
    vocab = model.vocab
    sep = [int(llama.llama_vocab_sep(vocab))] if llama.llama_vocab_get_add_sep(vocab) else []
    eos = model.eos_id if model.eos_id >= 0 else int(llama.llama_vocab_sep(vocab))
    end = [eos] if llama.llama_vocab_get_add_eos(vocab) else []
    begin = [model.bos_id] if model.adds_bos else []
    first, second = (model.tokenize(text, False, False) for text in (query, document))
    return [*begin, *first, *end, *sep, *second, *end]


def normalised(vectors: NDArray[np.float32], norm: int) -> NDArray[np.float32]:
    """Vectors, shape (any, n_values), divided by their norm as llama.cpp's common_embd_normalize does: 2 the
    Euclidean one, 0 the largest number as 32760, -1 none, other numbers the p-norm.
    """
    if norm == -1:
        return vectors
    wide = vectors.astype(np.float64)
    if norm == 0:
        sums = np.abs(wide).max(axis=1) / 32760.0
    elif norm == 2:
        sums = np.sqrt((wide * wide).sum(axis=1))
    else:
        sums = (np.abs(wide) ** norm).sum(axis=1) ** (1.0 / norm)
    factors = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
    result: NDArray[np.float32] = (wide * factors[:, None]).astype(np.float32)
    return result
