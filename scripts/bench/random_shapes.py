"""Models of random weights in the shapes of well-known ones, for measurements of time and memory.

usage: python -m scripts.bench.random_shapes SHAPE PATH

What they write means nothing. Weights are Q4_0, those of mixtures of experts the types of Q4_K_M and of
gpt-oss (experts in MXFP4, the others Q8_0). "cells" has a small model's weights and the cache of a large one:
its texts are read quickly, and their states are large. Mixtures have six layers (in Q8_0 three), each of the
size that it has in Qwen3-30B-A3B and gpt-oss-20b, and the demo model's number of tokens: decodes of more
layers take as many times as long, and a file with all of them does not fit into most machines.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray

from scripts import cli
from scripts.bench.random_vocab import CHATML, CONTROL, MERGES, tokens

_PATTERN_VALUES = 1 << 22  # random values, quantised and repeated in large tensors
Kind = gguf.GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a llama model, or with n_expert of a qwen3moe. n_embd_head: of a head; the cache has
    2 · n_layer · n_head_kv of them for each token. n_ff: of an expert. kinds: of matrices that are read
    whole, of experts, and of the output, `down` and `v` where they have another one.
    """

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_vocab: int = 32_000
    n_expert: int = 0
    n_expert_used: int = 0
    kinds: tuple[Kind, Kind, Kind] = Kind.Q4_0, Kind.Q4_0, Kind.Q4_0

    @property
    def bytes_per_token(self) -> int:
        """Of the cache in F16."""
        return 4 * self.n_layer * self.n_head_kv * self.n_embd_head


SHAPES = {
    "cells": Shape(32, 128, 256, 8, 8, 256, 2000),
    "draft": Shape(2, 128, 256, 4, 2, 64, 2000),
    "draft-49k": Shape(2, 128, 256, 4, 2, 64, 49_152),
    "1b": Shape(16, 2048, 8192, 32, 8, 64),
    "3b": Shape(28, 3072, 8192, 24, 8, 128),
    "8b": Shape(32, 4096, 14_336, 32, 8, 128),
    "30b-a3b": Shape(6, 2048, 768, 32, 4, 128, 49_152, 128, 8, (Kind.Q4_K, Kind.Q4_K, Kind.Q6_K)),
    "30b-a3b-q8_0": Shape(3, 2048, 768, 32, 4, 128, 49_152, 128, 8, (Kind.Q8_0,) * 3),
    "gpt-oss-20b": Shape(6, 2880, 2880, 64, 8, 64, 49_152, 32, 4, (Kind.Q8_0, Kind.MXFP4, Kind.Q8_0)),
}


def write(path: Path, shape: Shape, seed: int = 0, n_ctx_train: int = 32_768) -> Path:
    """Write a model of this shape."""
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, "qwen3moe" if shape.n_expert else "llama", use_temp_file=True)
    _metadata(w, path.stem, shape, n_ctx_train)
    patterns: dict[tuple[int, Kind], NDArray[np.uint8]] = {}

    def put(name: str, kind: Kind, *sizes: int) -> None:
        """sizes: in numpy's order."""
        n_in = sizes[-1]
        if (n_in, kind) not in patterns:
            patterns[n_in, kind] = _rows(rng, n_in, kind)
        rows, n_rows = patterns[n_in, kind], int(np.prod(sizes[:-1]))
        begin = int(rng.integers(0, len(rows)))
        data = np.resize(np.roll(rows, begin, axis=0), (n_rows, rows.shape[1]))
        w.add_tensor(f"{name}.weight", data.reshape(*sizes[:-1], rows.shape[1]), raw_dtype=kind)

    def ones(name: str, n: int) -> None:
        w.add_tensor(f"{name}.weight", np.ones(n, np.float32))

    d, q, kv = shape.n_embd, shape.n_head * shape.n_embd_head, shape.n_head_kv * shape.n_embd_head
    whole, of_experts, higher = shape.kinds
    put("token_embd", whole, shape.n_vocab, d)
    put("output", higher, shape.n_vocab, d)
    ones("output_norm", d)
    experts, ending = ((shape.n_expert,), "_exps") if shape.n_expert else ((), "")
    for i in range(shape.n_layer):
        ones(f"blk.{i}.attn_norm", d)
        ones(f"blk.{i}.ffn_norm", d)
        more = i % 2 == 0  # Q4_K_M gives half of the layers more bits
        put(f"blk.{i}.attn_q", whole, q, d)
        put(f"blk.{i}.attn_k", whole, kv, d)
        put(f"blk.{i}.attn_v", higher if more else whole, kv, d)
        put(f"blk.{i}.attn_output", whole, d, q)
        if experts:
            ones(f"blk.{i}.attn_q_norm", shape.n_embd_head)
            ones(f"blk.{i}.attn_k_norm", shape.n_embd_head)
            router = rng.standard_normal((shape.n_expert, d), np.float32) / np.float32(d**0.5)
            w.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router)
        put(f"blk.{i}.ffn_gate{ending}", of_experts, *experts, shape.n_ff, d)
        put(f"blk.{i}.ffn_up{ending}", of_experts, *experts, shape.n_ff, d)
        down = higher if more and of_experts is whole else of_experts
        put(f"blk.{i}.ffn_down{ending}", down, *experts, d, shape.n_ff)
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
    if shape.n_expert:
        w.add_expert_feed_forward_length(shape.n_ff)
        w.add_expert_count(shape.n_expert)
        w.add_expert_used_count(shape.n_expert_used)
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


def _rows(rng: np.random.Generator, n_in: int, kind: Kind) -> NDArray[np.uint8]:
    """Quantised rows, shape (n, bytes of a row), of n_in values of the size 1/√n_in."""
    n = max(1, _PATTERN_VALUES // n_in)
    values = rng.standard_normal((n, n_in), np.float32) / np.float32(n_in**0.5)
    block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows = np.empty((n, n_in // block * n_bytes), np.uint8)
    to = rows.ctypes.data_as(ctypes.c_void_p), values.ctypes.data_as(ctypes.c_void_p)
    quantize = llama_cpp.llama_cpp._lib.ggml_quantize_chunk  # found through llama.cpp, which is linked to it
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    quantize(kind, to[1], to[0], 0, n, n_in, None)
    return rows


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    print(write(given.path, SHAPES[given.shape]), given.path.stat().st_size)


if __name__ == "__main__":
    cli.run(main, OSError)
