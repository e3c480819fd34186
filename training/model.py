"""The two transformers, as llama.cpp's architecture `llama` computes them; the small one widened to the big.

Knows nothing about training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-5
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer: width, blocks, heads, heads of keys and values, feed-forward size."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int

    @property
    def n_embd_head(self) -> int:
        return self.n_embd // self.n_head


TARGET = Shape(n_embd=512, n_layer=4, n_head=8, n_head_kv=4, n_ff=1280)
DRAFT = Shape(n_embd=256, n_layer=2, n_head=4, n_head_kv=2, n_ff=512)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions for x of shape (batch, tokens, heads, n_embd_head), adjacent channels paired."""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = cos[: x.shape[1], None], sin[: x.shape[1], None]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).type_as(x)


class Block(nn.Module):
    """Attention and gated feed-forward, each after a norm, and added to the residual stream."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        n_kv = s.n_head_kv * s.n_embd_head
        self.attn_norm = nn.RMSNorm(s.n_embd, EPS)
        self.attn_q = nn.Linear(s.n_embd, s.n_embd, bias=False)
        self.attn_k = nn.Linear(s.n_embd, n_kv, bias=False)
        self.attn_v = nn.Linear(s.n_embd, n_kv, bias=False)
        self.attn_output = nn.Linear(s.n_embd, s.n_embd, bias=False)
        self.ffn_norm = nn.RMSNorm(s.n_embd, EPS)
        self.ffn_gate = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_up = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_down = nn.Linear(s.n_ff, s.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s, y = self.shape, self.attn_norm(x)
        q, k, v = (p(y).unflatten(-1, (-1, s.n_embd_head)) for p in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (z.repeat_interleave(s.n_head // s.n_head_kv, 2) for z in (k, v))
        a = F.scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v)), is_causal=True)
        x = x + self.attn_output(a.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Transformer(nn.Module):
    """Token ids (batch, tokens) to logits (batch, tokens, n_vocab); output and embeddings are tied."""

    cos: Tensor
    sin: Tensor

    def __init__(self, n_vocab: int, shape: Shape, n_ctx: int) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(n_vocab, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.RMSNorm(shape.n_embd, EPS)
        frequency = ROPE_BASE ** (-torch.arange(0, shape.n_embd_head, 2).float() / shape.n_embd_head)
        angle = torch.arange(n_ctx).float()[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                to_stream = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, 0, 0.02 / (math.sqrt(2 * shape.n_layer) if to_stream else 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.output_norm(x) @ self.token_embd.weight.t()

    @property
    def n_params(self) -> int:
        return sum(p.numel() for p in self.parameters())


@torch.no_grad()
def widen(small: Transformer, big: Transformer) -> None:
    """Initialise the big model to compute nearly what the small one does: its channels, heads and blocks come
    first, the rest has small weights.

    An RMSNorm over additional channels that are near zero gives larger values, by the square root of the
    ratio of widths: the copied norm weights compensate for that.
    """
    d = small.shape.n_embd
    ratio = math.sqrt(d / big.shape.n_embd)
    big.token_embd.weight[:, d:] *= 0.02
    big.token_embd.weight[:, :d] = small.token_embd.weight
    big.output_norm.weight[:d] = small.output_norm.weight * ratio
    for i, block in enumerate(big.blocks):
        if i < len(small.blocks):
            _widen_block(small.blocks[i], block, ratio)
        else:
            block.attn_output.weight *= 0.1
            block.ffn_down.weight *= 0.1


def _widen_block(small: nn.Module, big: nn.Module, ratio: float) -> None:
    for name, module in big.named_children():
        old, new = small.get_submodule(name).weight, module.weight
        if new.dim() == 1:
            new[: len(old)] = old * ratio
            continue
        n_out, n_in = old.shape
        if name in ("attn_output", "ffn_down"):  # they write to the residual stream: new weights start small
            new[:, n_in:] *= 0.1
            new[n_out:, :n_in] *= 0.05
        new[:n_out, n_in:] *= 0.05
        new[:n_out, :n_in] = old
