"""A multi-token head for a llama model by least squares: no training, a minute on two cores.

The head's input projection maps the embedding of token i + 1 and the target's hidden state of token i to the
hidden state of token i + 1, all normed; its feed-forward layer, whose inner weights are random, adds what a
linear map leaves (an extreme learning machine: Huang, Zhu, Siew, Neurocomputing 70, 2006). Its attention adds
nothing. Such a head accepts less than a trained one of its size; it exists to be measured with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import llama_cpp as lc
import numpy as np
from numpy.typing import NDArray

from scripts.demo_pair.llm import ModelFileError

Matrix = NDArray[np.float32]
N_CTX = 512
RIDGE = 1e-3  # of the mean of the diagonal


def fit(target: Path, texts: Sequence[str], n_tokens: int, n_ff: int, seed: int = 0) -> dict[str, Matrix]:
    """The tensors of an MTP block for `mimo2_of`, fitted to the hidden states of at most `n_tokens` tokens of
    the texts. target: a llama model in f16. n_ff: the feed-forward size. Raises ModelFileError.
    """
    reader = gguf.GGUFReader(str(target))
    tensors = {t.name: np.asarray(t.data, np.float32) for t in reader.tensors if t.name.count(".") == 1}
    weight = tensors["output_norm.weight"]
    embeddings = _normed(tensors["token_embd.weight"])
    n_embd = len(weight)
    rng = np.random.default_rng(seed)
    gate, up = (rng.standard_normal((n_ff, n_embd), np.float32) / np.float32(n_embd**0.5) for _ in range(2))
    rows = [(embeddings[ids[1:]], _normed(h / weight)) for ids, h in _hidden(target, texts, n_tokens)]
    x = np.concatenate([np.concatenate((e, h[:-1]), 1) for e, h in rows])
    y = np.concatenate([h[1:] for _, h in rows])
    project = _least_squares(x, y)
    hidden = x @ project
    z = _normed(hidden)
    a = z @ gate.T
    inner = a / (1 + np.exp(-a)) * (z @ up.T)
    down = _least_squares(inner, y - hidden)
    ones = np.ones(n_embd, np.float32)
    return {
        "nextn.eh_proj": np.ascontiguousarray(project.T),
        "attn_output": np.zeros((n_embd, n_embd), np.float32),
        "ffn_gate": gate,
        "ffn_up": up,
        "ffn_down": np.ascontiguousarray(down.T),
        "nextn.enorm": ones,
        "nextn.hnorm": ones,
        "nextn.shared_head_norm": weight,
    }


def widened(head: dict[str, Matrix], n_ff: int, seed: int = 1) -> dict[str, Matrix]:
    """The head with a feed-forward size of `n_ff`: the further channels cost time and add exactly 0."""
    more = n_ff - len(head["ffn_gate"])
    rng, n_embd = np.random.default_rng(seed), head["ffn_gate"].shape[1]
    noise = rng.standard_normal((max(0, more), n_embd), np.float32) * np.float32(0.02)
    zeros = np.zeros((n_embd, max(0, more)), np.float32)
    return head | {
        "ffn_gate": np.concatenate((head["ffn_gate"], noise)),
        "ffn_up": np.concatenate((head["ffn_up"], noise)),
        "ffn_down": np.concatenate((head["ffn_down"], zeros), 1),
    }


def _hidden(target: Path, texts: Sequence[str], n_tokens: int) -> Iterator[tuple[list[int], Matrix]]:
    """(ids, hidden states after the output norm, shape (len(ids), n_embd)) of the texts' beginnings."""
    model = lc.llama_model_load_from_file(str(target).encode(), lc.llama_model_default_params())
    if not model:
        raise ModelFileError(f"{target}: llama.cpp cannot load it")
    params = lc.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
    params.embeddings, params.pooling_type = True, lc.LLAMA_POOLING_TYPE_NONE
    context = lc.llama_init_from_model(model, params)
    batch, n_embd = lc.llama_batch_init(N_CTX, 0, 1), lc.llama_model_n_embd(model)
    vocab, memory = lc.llama_model_get_vocab(model), lc.llama_get_memory(context)
    try:
        for text in texts:
            if n_tokens <= 0:
                return
            data = text.encode()
            found = (lc.llama_token * (len(data) + 2))()
            n = lc.llama_tokenize(vocab, data, len(data), found, len(found), True, True)
            ids = list(found[: min(n, N_CTX)])
            if len(ids) < 2:
                continue
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
                batch.seq_id[i][0] = 0
            lc.llama_memory_clear(memory, True)
            if lc.llama_decode(context, batch) != 0:
                raise ModelFileError("llama.cpp cannot decode")
            found_at = ctypes.cast(lc.llama_get_embeddings(context), ctypes.POINTER(ctypes.c_float))
            yield ids, np.ctypeslib.as_array(found_at, (len(ids), n_embd)).copy()
            n_tokens -= len(ids)
    finally:
        lc.llama_batch_free(batch)
        lc.llama_free(context)
        lc.llama_model_free(model)


def _normed(x: Matrix) -> Matrix:
    """Rows divided by their root mean square."""
    normed: Matrix = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return normed


def _least_squares(x: Matrix, y: Matrix) -> Matrix:
    """The matrix b that makes x @ b nearest to y, with a small ridge."""
    square = (x.T @ x).astype(np.float64)
    square[np.diag_indices_from(square)] += RIDGE * square.diagonal().mean()
    solved: Matrix = np.linalg.solve(square, (x.T @ y).astype(np.float64)).astype(np.float32)
    return solved
