"""Tiny random embedding models and rerankers as GGUF files, like those of tinygguf: their vectors mean
nothing, but depend on every token.

    bert      an encoder with learned positions and a WordPiece vocabulary, pooling mean, or cls, none, rank
    decoder   Qwen3's attention to earlier tokens, pooling last, or rank with a template "rerank" and a head
    nomic     an encoder with rotary positions (nomic-bert), pooling mean

Each is a function `(path, ...) -> path`.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.support.tinygguf import EPS, N_EMBD, N_EMBD_HEAD, N_FF, N_HEAD, N_HEAD_KV, Builder, written

RERANK = "<|im_start|>{query}<|im_end|>{document}<|im_end|>"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!"
N_CTX = 64  # of the encoders


def word_pieces() -> list[str]:
    """A WordPiece vocabulary as llama.cpp has it: ▁ begins words, and all letters can stand alone."""
    words = ["the", "cat", "sat", "on", "mat", "dog", "query", "document", "text", "zip", "what", "is"]
    return [*SPECIAL, *(f"▁{c}" for c in LETTERS), *LETTERS, *(f"▁{word}" for word in words)]


class _Encoder:
    """Builds an encoder's file; the tensors of Builder's random numbers."""

    def __init__(self, arch: str, path: Path | str, pooling: gguf.PoolingType, name: str, n_ctx: int) -> None:
        self.rng, self.path = np.random.default_rng(7), Path(path)
        self.writer = w = gguf.GGUFWriter(str(path), arch)
        tokens = word_pieces()
        w.add_name(name or f"tiny-{arch}")
        w.add_file_type(gguf.LlamaFileType.ALL_F32)
        w.add_context_length(n_ctx)
        w.add_embedding_length(N_EMBD)
        w.add_block_count(2)
        w.add_feed_forward_length(N_FF)
        w.add_head_count(N_HEAD)
        w.add_layer_norm_eps(EPS)
        w.add_causal_attention(False)
        w.add_pooling_type(pooling)
        w.add_vocab_size(len(tokens))
        w.add_tokenizer_model("bert")
        w.add_tokenizer_pre("default")
        w.add_token_list(tokens)
        w.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
        w.add_token_type_count(2)
        w.add_bos_token_id(2)
        w.add_eos_token_id(3)
        w.add_unk_token_id(1)
        w.add_sep_token_id(3)
        w.add_pad_token_id(0)
        self.matrix("token_embd", len(tokens), N_EMBD, N_EMBD**0.5)
        self.matrix("token_types", 2, N_EMBD)
        self.norm("token_embd_norm")

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        values = self.rng.standard_normal((n_out, n_in), dtype=np.float32)
        self.writer.add_tensor(f"{name}.weight", values * np.float32(gain / n_in**0.5))

    def norm(self, name: str) -> None:
        self.writer.add_tensor(f"{name}.weight", np.ones(N_EMBD, np.float32))
        self.writer.add_tensor(f"{name}.bias", np.zeros(N_EMBD, np.float32))

    def block(self, i: int) -> None:
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            self.matrix(f"blk.{i}.{name}", N_EMBD, N_EMBD, 1.5)
        self.matrix(f"blk.{i}.ffn_up", N_FF, N_EMBD)
        self.matrix(f"blk.{i}.ffn_down", N_EMBD, N_FF)
        self.norm(f"blk.{i}.attn_output_norm")
        self.norm(f"blk.{i}.layer_output_norm")

    def write(self) -> Path:
        return written(self.writer, self.path)


def bert(path: Path | str, pooling: str = "mean", name: str = "", n_ctx: int = N_CTX) -> Path:
    """With pooling "rank" it has a head that ranks, as bge-reranker-base."""
    b = _Encoder("bert", path, gguf.PoolingType[pooling.upper()], name, n_ctx)
    b.matrix("position_embd", n_ctx, N_EMBD, N_EMBD**0.5)
    for i in range(2):
        b.block(i)
    if pooling == "rank":
        b.matrix("cls", N_EMBD, N_EMBD)
        b.writer.add_tensor("cls.bias", np.zeros(N_EMBD, np.float32))
        b.matrix("cls.output", 1, N_EMBD)
        b.writer.add_tensor("cls.output.bias", np.zeros(1, np.float32))
    return b.write()


def nomic(path: Path | str, name: str = "nomic-embed-text-v1.5", n_ctx: int = 512) -> Path:
    """With rotary positions and a gate; its vectors may be shortened, by its name."""
    b = _Encoder("nomic-bert", path, gguf.PoolingType.MEAN, name, n_ctx)
    b.writer.add_rope_freq_base(1000.0)
    for i in range(2):
        b.block(i)
        b.matrix(f"blk.{i}.ffn_gate", N_FF, N_EMBD)
    return b.write()


def decoder(path: Path | str, pooling: str = "last", n_ctx: int = 1024) -> Path:
    """As Qwen3-Embedding; with pooling "rank" as Qwen3-Reranker."""
    b = Builder("qwen3", path, 3, 2, n_ctx_train=n_ctx)
    b.writer.add_pooling_type(gguf.PoolingType[pooling.upper()])
    b.heads(N_HEAD_KV, rope=True)
    b.writer.add_add_eos_token(True)
    for i in range(2):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i)
        for name in ("q", "k"):
            b.ones(f"blk.{i}.attn_{name}_norm", N_EMBD_HEAD)
        b.feed_forward(i)
    if pooling == "rank":
        b.writer.add_classifier_output_labels(["yes", "no"])
        b.writer.add_string("tokenizer.chat_template.rerank", RERANK)
        b.put("cls.output.weight", b.random(2, N_EMBD) * np.float32(1 / N_EMBD**0.5))
    return b.write()
