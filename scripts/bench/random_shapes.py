"""Models of random Q4_0 weights in the shapes of well-known ones, for measurements of time and memory.

usage: python -m scripts.bench.random_shapes SHAPE PATH

What they write means nothing. "cells" has a small model's weights and the cache of a large one: its texts are
read quickly, and their states are large.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from scripts import cli
from scripts.bench.random_vocab import CHATML, CONTROL, MERGES, tokens

_BLOCK, _BLOCK_BYTES = 32, 18  # values of a Q4_0 block, and its bytes: a scale in f16 and the values
_STD = 4.6  # of values from 0 to 15
_PATTERN_BLOCKS = 1 << 18  # random blocks, repeated in large tensors


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a llama model. n_embd_head: of a head; the cache has 2 · n_layer · n_head_kv of them for
    each token.
    """

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_vocab: int = 32_000

    @property
    def bytes_per_token(self) -> int:
        """Of the cache in F16."""
        return 4 * self.n_layer * self.n_head_kv * self.n_embd_head


SHAPES = {
    "cells": Shape(32, 128, 256, 8, 8, 256, 2000),
    "draft": Shape(2, 128, 256, 4, 2, 64, 2000),
    "1b": Shape(16, 2048, 8192, 32, 8, 64),
    "3b": Shape(28, 3072, 8192, 24, 8, 128),
    "8b": Shape(32, 4096, 14_336, 32, 8, 128),
}


def write(path: Path, shape: Shape, seed: int = 0, n_ctx_train: int = 32_768) -> Path:
    """Write a model of this shape."""
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, "llama")
    _metadata(w, path.stem, shape, n_ctx_train)
    patterns: dict[int, NDArray[np.uint8]] = {}

    def put(name: str, n_out: int, n_in: int) -> None:
        if n_in not in patterns:
            patterns[n_in] = _blocks(rng, n_in)
        n = n_out * n_in // _BLOCK
        begin = int(rng.integers(0, _PATTERN_BLOCKS))
        rows = np.resize(np.roll(patterns[n_in], begin, axis=0), (n, _BLOCK_BYTES))
        data = rows.reshape(n_out, n_in // _BLOCK * _BLOCK_BYTES)
        w.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    d, q, kv = shape.n_embd, shape.n_head * shape.n_embd_head, shape.n_head_kv * shape.n_embd_head
    put("token_embd", shape.n_vocab, d)
    put("output", shape.n_vocab, d)
    w.add_tensor("output_norm.weight", np.ones(d, np.float32))
    for i in range(shape.n_layer):
        for norm in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{norm}.weight", np.ones(d, np.float32))
        sizes = {"attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q)}
        sizes |= {"ffn_gate": (shape.n_ff, d), "ffn_up": (shape.n_ff, d), "ffn_down": (d, shape.n_ff)}
        for name, (n_out, n_in) in sizes.items():
            put(f"blk.{i}.{name}", n_out, n_in)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _metadata(w: gguf.GGUFWriter, name: str, shape: Shape, n_ctx_train: int) -> None:
    w.add_name(name)
    w.add_description("Random weights, for measurements only")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    w.add_context_length(n_ctx_train)
    w.add_embedding_length(shape.n_embd)
    w.add_block_count(shape.n_layer)
    w.add_feed_forward_length(shape.n_ff)
    w.add_head_count(shape.n_head)
    w.add_head_count_kv(shape.n_head_kv)
    w.add_key_length(shape.n_embd_head)
    w.add_value_length(shape.n_embd_head)
    w.add_rope_dimension_count(shape.n_embd_head)
    w.add_layer_norm_rms_eps(1e-5)
    words = tokens(shape.n_vocab)
    w.add_vocab_size(len(words))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(words)
    normal = [gguf.TokenType.NORMAL] * (len(words) - len(CONTROL))
    w.add_token_types([gguf.TokenType.CONTROL] * len(CONTROL) + normal)
    w.add_token_merges(list(MERGES))
    w.add_bos_token_id(0)
    w.add_eos_token_id(CONTROL.index("<|im_end|>"))
    w.add_add_bos_token(True)
    w.add_chat_template(CHATML)


def _blocks(rng: np.random.Generator, n_in: int) -> NDArray[np.uint8]:
    """Random Q4_0 blocks, shape (n, _BLOCK_BYTES), of values of the size 1/√n_in."""
    blocks = rng.integers(0, 256, (_PATTERN_BLOCKS, _BLOCK_BYTES), np.uint8)
    scale = np.array([1 / (_STD * n_in**0.5)], np.float16)
    blocks[:, :2] = scale.view(np.uint8)
    return blocks


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    print(write(given.path, SHAPES[given.shape]), given.path.stat().st_size)


if __name__ == "__main__":
    main()
