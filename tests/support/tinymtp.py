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
from typing import Any, Literal

import numpy as np

from tests.support.tinygguf import N_EMBD, N_EMBD_HEAD, N_HEAD, N_HEAD_KV, Builder

Part = Literal["all", "trunk", "head", "promise"]
Block = Callable[[int, float], None]
_SHARED = ("token_embd.weight", "output.weight", "output_norm.weight")


def _keep(part: Part, n_layer: int) -> Callable[[str], bool]:
    """Which tensors a part of a model has. n_layer: of the trunk."""

    def keep(name: str) -> bool:
        in_head = name.startswith("blk.") and int(name.split(".")[1]) >= n_layer
        if part == "head":
            return in_head or name in _SHARED
        return part == "all" or not in_head

    return keep


class _Mtp(Builder):
    """Builds a part of a model of `n_layer` blocks and `n_mtp` MTP blocks. adds: as for `tinygguf.llama`."""

    def __init__(
        self,
        arch: str,
        path: Path | str,
        seed: int,
        n_layer: int,
        n_mtp: int,
        *,
        part: Part = "all",
        adds: Sequence[float] = (),
        copied: bool = False,
        head_noise: float = 0.0,
        **more: Any,
    ) -> None:
        self.n_layer, self.n_mtp, self.copied, self.head_noise = n_layer, n_mtp, copied, head_noise
        self.factors = tuple(adds) or (1.0,) * n_layer
        self.n_promised = 0 if part == "trunk" else n_mtp
        n_blocks, keep = n_layer + self.n_promised, _keep(part, n_layer)
        super().__init__(arch, path, seed, n_blocks, unit_rows=bool(adds), keep=keep, **more)
        self.heads(N_HEAD_KV, rope=True)
        if self.n_promised:
            self.writer.add_uint32(f"{arch}.nextn_predict_layers", self.n_promised)

    def window(self) -> None:
        """A window as large as the context for the first block, since one must have a window."""
        w = self.writer
        w.add_sliding_window(self.n_ctx_train)
        pattern = [True] + [False] * (self.n_layer - 1 + self.n_promised)
        w.add_array(f"{self.arch}.attention.sliding_window_pattern", pattern)
        w.add_float32(f"{self.arch}.rope.freq_base_swa", 10000.0)
        w.add_uint32(f"{self.arch}.expert_feed_forward_length", 0)

    def finish(self, block: Block, of_trunk: Callable[[int], Block] | None = None) -> Path:
        """Add all blocks, and write. block: adds the attention and feed-forward of one, with a factor on what
        it adds. of_trunk: that of each block of the trunk, where they differ.
        """
        for i, factor in enumerate(self.factors):
            (of_trunk(i) if of_trunk else block)(i, factor)
        for i in range(self.n_layer, self.n_layer + self.n_mtp):
            if self.copied:
                prefix = f"blk.{self.n_layer - 1}."
                for name, x in [(n, x) for n, x in self.tensors.items() if n.startswith(prefix)]:
                    self.put(f"blk.{i}.{name.removeprefix(prefix)}", x)
            else:
                block(i, 1.0)
            self._nextn(i)
        return self.write()

    def _nextn(self, i: int) -> None:
        """The tensors that mix embedding and hidden state; copied: the embedding alone."""
        mixed = self.random(N_EMBD, 2 * N_EMBD) / np.float32((2 * N_EMBD) ** 0.5)
        if self.copied:
            mixed *= np.float32(self.head_noise)
            mixed += np.eye(N_EMBD, 2 * N_EMBD, dtype=np.float32)
        self.put(f"blk.{i}.nextn.eh_proj.weight", mixed)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            self.ones(f"blk.{i}.nextn.{name}", N_EMBD)


def qwen35(
    path: Path | str, seed: int = 0, *, n_layer: int = 4, interval: int = 4, n_mtp: int = 1, **more: Any
) -> Path:
    """Gated delta nets, every `interval`-th block attention; n_layer must be a multiple of it."""
    b = _Mtp("qwen35", path, seed, n_layer, n_mtp, **more)
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

    return b.finish(attention, lambda i: delta_net if (i + 1) % interval else attention)


def mimo2(path: Path | str, seed: int = 0, *, n_layer: int = 2, n_mtp: int = 1, **more: Any) -> Path:
    """Plain attention."""
    b = _Mtp("mimo2", path, seed, n_layer, n_mtp, **more)
    b.window()

    def block(i: int, factor: float) -> None:
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        n_kv = N_HEAD_KV * N_EMBD_HEAD
        gains = np.repeat(np.float32((1.6, 1.6, 1.5)), (N_EMBD, n_kv, n_kv))[:, None]
        b.put(
            f"blk.{i}.attn_qkv.weight", b.random(N_EMBD + 2 * n_kv, N_EMBD) * gains / np.float32(N_EMBD**0.5)
        )
        b.matrix(f"blk.{i}.attn_output", N_EMBD, N_EMBD, factor)
        b.feed_forward(i, adds=factor)

    return b.finish(block)


def step35(path: Path | str, seed: int = 0, *, n_layer: int = 2, n_mtp: int = 3, **more: Any) -> Path:
    """Attention with a gate a head; each of the `n_mtp` heads drafts one step."""
    b = _Mtp("step35", path, seed, n_layer, n_mtp, **more)
    b.window()

    def block(i: int, factor: float) -> None:
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i, qk_norm=True, adds=2 * factor)
        b.matrix(f"blk.{i}.attn_gate", N_HEAD, N_EMBD)
        b.feed_forward(i, adds=factor)

    return b.finish(block)
