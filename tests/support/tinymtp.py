"""Tiny random GGUF models with multi-token prediction (MTP), the head inside or in a file of its own.

    qwen35    recurrent and attention with rollback, one MTP block: 641 kB
    mimo2     attention, one MTP block
    step35    attention, several MTP blocks, one for each draft step

Each writes the whole model (`part="all"`), the model without its head ("trunk"), the head in a file of its
own as in mtp-*.gguf ("head"), or a header that promises a head without the tensors ("promise"). Vocabularies
are those of `tinygguf`; the numbers of the trunk do not depend on the part.

A random head guesses right once in some hundred tokens. With `copied=True` the head's block is a copy of the
target's last, and reads the embedding: it is perfect if the blocks before add nothing, `adds=(0, ..., 0, 1)`,
and the text still depends on the context. With 0.1 instead of 0 it is right now and then, and recurrent
states matter. `head_noise` mixes random numbers into what the head reads: 0.1 costs some acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from tests.support.tinygguf import N_EMBD, N_EMBD_HEAD, N_FF, N_HEAD, N_HEAD_KV, N_VOCAB, Builder

Part = Literal["all", "trunk", "head", "promise"]
_SHARED = ("token_embd.weight", "output.weight", "output_norm.weight")


def _keep(part: Part, n_layer: int) -> Callable[[str], bool]:
    """Which tensors a part of a model has. n_layer: of the trunk."""

    def keep(name: str) -> bool:
        in_head = name.startswith("blk.") and int(name.split(".")[1]) >= n_layer
        if part == "head":
            return in_head or name in _SHARED
        return part == "all" or not in_head

    return keep


def _open(
    arch: str,
    path: Path | str,
    seed: int,
    part: Part,
    n_layer: int,
    n_mtp: int,
    adds: Sequence[float],
    **shape: int | float,
) -> Builder:
    promised = 0 if part == "trunk" else n_mtp
    b = Builder(
        arch,
        path,
        seed,
        int(shape["n_vocab"]),
        shape["noise"],
        int(shape["n_ctx_train"]),
        n_layer + promised,
        unit_rows=bool(adds),
        keep=_keep(part, n_layer),
    )
    b.heads(N_HEAD_KV, rope=True)
    b.writer.add_feed_forward_length(N_FF)
    if promised:
        b.writer.add_uint32(f"{arch}.nextn_predict_layers", promised)
    return b


def _nextn(b: Builder, i: int, *, copied: bool, head_noise: float) -> None:
    """The tensors of MTP block `i` that mix embedding and hidden state; copied: the embedding alone."""
    mixed = b.random(N_EMBD, 2 * N_EMBD) / np.float32((2 * N_EMBD) ** 0.5)
    if copied:
        mixed *= np.float32(head_noise)
        mixed += np.eye(N_EMBD, 2 * N_EMBD, dtype=np.float32)
    b.put(f"blk.{i}.nextn.eh_proj.weight", mixed)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        b.ones(f"blk.{i}.nextn.{name}", N_EMBD)


def _copy_block(b: Builder, source: int, to: int) -> None:
    prefix = f"blk.{source}."
    for name, x in [(n, x) for n, x in b.tensors.items() if n.startswith(prefix)]:
        b.put(f"blk.{to}.{name.removeprefix(prefix)}", x)


def _finish(
    b: Builder, block: Callable[[int, float], None], n_layer: int, n_mtp: int, copied: bool, head_noise: float
) -> Path:
    """Adds the MTP blocks and writes. block: adds the attention and feed-forward of one."""
    for i in range(n_layer, n_layer + n_mtp):
        if copied:
            _copy_block(b, n_layer - 1, i)
        else:
            block(i, 1.0)
        _nextn(b, i, copied=copied, head_noise=head_noise)
    return b.write()


def qwen35(
    path: Path | str,
    seed: int = 0,
    *,
    n_vocab: int = N_VOCAB,
    noise: float = 0.0,
    n_ctx_train: int = 2048,
    n_layer: int = 4,
    interval: int = 4,
    n_mtp: int = 1,
    part: Part = "all",
    adds: Sequence[float] = (),
    copied: bool = False,
    head_noise: float = 0.0,
) -> Path:
    """Gated delta nets, every `interval`-th block attention; n_layer must be a multiple of it."""
    b = _open(
        "qwen35",
        path,
        seed,
        part,
        n_layer,
        n_mtp,
        adds,
        n_vocab=n_vocab,
        noise=noise,
        n_ctx_train=n_ctx_train,
    )
    d_state, n_groups, n_heads = 16, 2, 4
    n_key, n_value = d_state * n_groups, d_state * n_heads
    w = b.writer
    w.add_array("qwen35.rope.dimension_sections", [4, 2, 2, 0])
    w.add_uint32("qwen35.full_attention_interval", interval)
    w.add_ssm_conv_kernel(4)
    w.add_ssm_inner_size(n_value)
    w.add_ssm_state_size(d_state)
    w.add_ssm_time_step_rank(n_heads)
    w.add_ssm_group_count(n_groups)

    def attention(i: int, factor: float) -> None:
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.matrix(f"blk.{i}.attn_q", 2 * N_HEAD * N_EMBD_HEAD, N_EMBD, 1.6)  # queries and gates
        b.matrix(f"blk.{i}.attn_k", N_HEAD_KV * N_EMBD_HEAD, N_EMBD, 1.6)
        b.matrix(f"blk.{i}.attn_v", N_HEAD_KV * N_EMBD_HEAD, N_EMBD, 1.5)
        b.matrix(f"blk.{i}.attn_output", N_EMBD, N_HEAD * N_EMBD_HEAD, 2 * factor)
        b.put(f"blk.{i}.attn_q_norm.weight", np.full(N_EMBD_HEAD, 1.6, np.float32))
        b.put(f"blk.{i}.attn_k_norm.weight", np.full(N_EMBD_HEAD, 1.6, np.float32))
        b.feed_forward(i, "post_attention_norm", factor)

    def delta_net(i: int, factor: float) -> None:
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.matrix(f"blk.{i}.attn_qkv", 2 * n_key + n_value, N_EMBD)
        b.matrix(f"blk.{i}.attn_gate", n_value, N_EMBD)
        b.put(f"blk.{i}.ssm_conv1d.weight", b.random(2 * n_key + n_value, 4) / np.float32(2))
        b.put(f"blk.{i}.ssm_dt.bias", np.full(n_heads, -1, np.float32))
        b.put(f"blk.{i}.ssm_a", np.full(n_heads, -1, np.float32))
        b.matrix(f"blk.{i}.ssm_beta", n_heads, N_EMBD)
        b.matrix(f"blk.{i}.ssm_alpha", n_heads, N_EMBD)
        b.ones(f"blk.{i}.ssm_norm", d_state)
        b.matrix(f"blk.{i}.ssm_out", N_EMBD, n_value, 2 * factor)
        b.feed_forward(i, "post_attention_norm", factor)

    for i in range(n_layer):
        (delta_net if (i + 1) % interval else attention)(i, adds[i] if adds else 1.0)
    return _finish(b, attention, n_layer, n_mtp, copied, head_noise)


def mimo2(
    path: Path | str,
    seed: int = 0,
    *,
    n_vocab: int = N_VOCAB,
    noise: float = 0.0,
    n_ctx_train: int = 2048,
    n_layer: int = 2,
    n_mtp: int = 1,
    part: Part = "all",
    adds: Sequence[float] = (),
    copied: bool = False,
    head_noise: float = 0.0,
) -> Path:
    """Plain attention; the first block's window is as large as the context, since one must have a window."""
    b = _open(
        "mimo2", path, seed, part, n_layer, n_mtp, adds, n_vocab=n_vocab, noise=noise, n_ctx_train=n_ctx_train
    )
    _window(b, "mimo2", n_ctx_train, [True] + [False] * (n_layer - 1 + (0 if part == "trunk" else n_mtp)))

    def block(i: int, factor: float) -> None:
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        n_kv = N_HEAD_KV * N_EMBD_HEAD
        gains = np.repeat(np.float32((1.6, 1.6, 1.5)), (N_EMBD, n_kv, n_kv))[:, None]
        b.put(
            f"blk.{i}.attn_qkv.weight", b.random(N_EMBD + 2 * n_kv, N_EMBD) * gains / np.float32(N_EMBD**0.5)
        )
        b.matrix(f"blk.{i}.attn_output", N_EMBD, N_EMBD, factor)
        b.feed_forward(i, adds=factor)

    for i in range(n_layer):
        block(i, adds[i] if adds else 1.0)
    return _finish(b, block, n_layer, n_mtp, copied, head_noise)


def step35(
    path: Path | str,
    seed: int = 0,
    *,
    n_vocab: int = N_VOCAB,
    noise: float = 0.0,
    n_ctx_train: int = 2048,
    n_layer: int = 2,
    n_mtp: int = 3,
    part: Part = "all",
    adds: Sequence[float] = (),
    copied: bool = False,
    head_noise: float = 0.0,
) -> Path:
    """Attention with a gate a head; each of the `n_mtp` heads drafts one step."""
    b = _open(
        "step35",
        path,
        seed,
        part,
        n_layer,
        n_mtp,
        adds,
        n_vocab=n_vocab,
        noise=noise,
        n_ctx_train=n_ctx_train,
    )
    _window(b, "step35", n_ctx_train, [True] + [False] * (n_layer - 1 + (0 if part == "trunk" else n_mtp)))

    def block(i: int, factor: float) -> None:
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i, qk_norm=True, adds=2 * factor)
        b.matrix(f"blk.{i}.attn_gate", N_HEAD, N_EMBD)
        b.feed_forward(i, adds=factor)

    for i in range(n_layer):
        block(i, adds[i] if adds else 1.0)
    return _finish(b, block, n_layer, n_mtp, copied, head_noise)


def _window(b: Builder, arch: str, n_swa: int, pattern: Sequence[bool]) -> None:
    b.writer.add_sliding_window(n_swa)
    b.writer.add_array(f"{arch}.attention.sliding_window_pattern", list(pattern))
    b.writer.add_float32(f"{arch}.rope.freq_base_swa", 10000.0)
    b.writer.add_uint32(f"{arch}.expert_feed_forward_length", 0)
