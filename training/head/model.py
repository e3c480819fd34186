"""The head as llama.cpp's architecture `eagle3` computes it, and its training step by step.

Knows nothing about files and optimisers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model import EPS


@dataclass(frozen=True)
class Shape:
    """Sizes of a head. n_features: layer inputs times the target's width; n_draft: tokens it can draft."""

    n_embd: int = 576
    n_head: int = 9
    n_head_kv: int = 3
    n_ff: int = 1536
    n_features: int = 3 * 576
    n_draft: int = 8192
    rope_base: float = 100_000.0

    @property
    def n_embd_head(self) -> int:
        return self.n_embd // self.n_head


@dataclass(frozen=True)
class Batch:
    """Texts padded to the same length. Row P of a text is the pair of its token P + 1 and the features of
    token P; the rows whose drafts are learnt are its last ones, and are padded on their own.

    tokens: (texts, rows), token P + 1 of row P. features: (texts, rows, n_features). rows: (texts, learnt),
    the learnt rows, 0 where padded. For draft step s of at most n_step, after learnt row P: next_tokens
    (texts, learnt, n_step) is token P + 1 + s; ids, weights: (texts, learnt, n_step, candidates), what the
    target would write after it, as ids of the head, and its probabilities, 0 where padded or not a token of
    the head; best: (texts, learnt, n_step), its first choice, -1 where padded, -2 if not a token of the head.
    """

    tokens: Tensor
    features: Tensor
    rows: Tensor
    next_tokens: Tensor
    ids: Tensor
    weights: Tensor
    best: Tensor


@dataclass(frozen=True)
class Sample:
    """Some tokens of the head, for a loss that costs less than with all of them.

    tokens: (n,), ids of the head: all that a batch has candidates for, then random others, which stand for
    the rest. shift: (n,), added to their logits: for the others the logarithm of how many tokens each stands
    for. batch: the batch with numbers in the sample instead of ids of the head.
    """

    tokens: Tensor
    shift: Tensor
    batch: Batch


def draw(batch: Batch, n_draft: int, n_others: int) -> Sample:
    """A sample for the batch with `n_others` random tokens, or fewer if there are no more."""
    needed = torch.zeros(n_draft, dtype=torch.bool)
    needed[batch.ids[batch.weights > 0]] = True
    needed[batch.best[batch.best >= 0]] = True
    certain, rest = needed.nonzero()[:, 0], (~needed).nonzero()[:, 0]
    others = rest[torch.randperm(len(rest))[:n_others]]
    tokens = torch.cat((certain, others))
    shift = torch.zeros(len(tokens))
    if len(others):
        shift[len(certain) :] = math.log(len(rest) / len(others))
    number = torch.zeros(n_draft, dtype=torch.long)
    number[tokens] = torch.arange(len(tokens))
    best = torch.where(batch.best >= 0, number[batch.best.clamp(min=0)], batch.best)
    return Sample(tokens, shift, replace(batch, ids=number[batch.ids], best=best))


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary positions for x, (texts, rows, heads, n_embd_head), adjacent channels paired; positions:
    (texts, rows).
    """
    size = x.shape[-1]
    frequency = base ** (-torch.arange(0, size, 2, device=x.device) / size)
    angle = (positions[..., None] * frequency)[:, :, None]
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Head(nn.Module):
    """One decoder layer over token embeddings, which are the target's, and features of the target."""

    token_embd: Tensor
    scale: Tensor

    def __init__(self, shape: Shape, token_embd: Tensor, dropout: float = 0.0) -> None:
        """dropout: in training, of what attention and the feed-forward output read."""
        super().__init__()
        self.dropout = dropout
        self.shape = s = shape
        self.register_buffer("scale", torch.ones(s.n_features))  # of features, which fc reads divided by it
        n_kv = s.n_head_kv * s.n_embd_head
        self.register_buffer("token_embd", token_embd, persistent=False)
        self.fc = nn.Linear(s.n_features, s.n_embd, bias=False)
        self.attn_norm = nn.RMSNorm(s.n_embd, EPS)
        self.attn_norm_2 = nn.RMSNorm(s.n_embd, EPS)
        self.attn_q = nn.Linear(2 * s.n_embd, s.n_embd, bias=False)
        self.attn_k = nn.Linear(2 * s.n_embd, n_kv, bias=False)
        self.attn_v = nn.Linear(2 * s.n_embd, n_kv, bias=False)
        self.attn_output = nn.Linear(s.n_embd, s.n_embd, bias=False)
        self.ffn_norm = nn.RMSNorm(s.n_embd, EPS)
        self.ffn_gate = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_up = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_down = nn.Linear(s.n_ff, s.n_embd, bias=False)
        self.output_norm = nn.RMSNorm(s.n_embd, EPS)
        self.output = nn.Linear(s.n_embd, s.n_draft, bias=False)

    def inputs(self, tokens: Tensor, g: Tensor) -> Tensor:
        """What attention reads: normed embeddings, then normed g; (texts, rows, 2 * n_embd)."""
        both = (self.attn_norm(F.embedding(tokens, self.token_embd)), self.attn_norm_2(g))
        return F.dropout(torch.cat(both, -1), self.dropout, self.training)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Both (texts, rows, n_head_kv, n_embd_head)."""
        s = self.shape
        k = self.attn_k(x).unflatten(-1, (s.n_head_kv, s.n_embd_head))
        v = self.attn_v(x).unflatten(-1, (s.n_head_kv, s.n_embd_head))
        return rotate(k, positions, s.rope_base), v

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        s = self.shape
        return rotate(self.attn_q(x).unflatten(-1, (s.n_head, s.n_embd_head)), positions, s.rope_base)

    def finish(self, attended: Tensor, g: Tensor) -> Tensor:
        """The next hidden rows, from attended values and the residual stream."""
        x = g + self.attn_output(attended)
        y = self.ffn_norm(x)
        y = F.dropout(F.silu(self.ffn_gate(y)) * self.ffn_up(y), self.dropout, self.training)
        return x + self.ffn_down(y)

    def steps(self, batch: Batch, n_step: int, sample: Sample | None = None) -> list[Tensor]:
        """Logits of draft steps 0 to n_step - 1, each (texts, learnt, n_draft), or with a sample (texts,
        learnt, tokens of the sample): after each learnt row the head reads the text's own next token and the
        hidden row of the step before, as when its drafts are all accepted.
        """
        output = self.output.weight if sample is None else self.output.weight[sample.tokens]
        shift = 0.0 if sample is None else sample.shift
        s, n_rep = self.shape, self.shape.n_head // self.shape.n_head_kv
        n_rows = batch.tokens.shape[1]
        at = torch.arange(n_rows, device=batch.tokens.device)
        g_all = self.fc(batch.features / self.scale)
        x_all = self.inputs(batch.tokens, g_all)
        k_all, v_all = self.keys_values(x_all, at.expand(batch.tokens.shape))
        k_all, v_all = (z.repeat_interleave(n_rep, 2).transpose(1, 2) for z in (k_all, v_all))
        hidden = at > batch.rows[..., None]  # (texts, learnt, rows): rows that a learnt row does not see

        def of_learnt(z: Tensor) -> Tensor:
            return z.gather(1, batch.rows[..., None].expand(-1, -1, z.shape[-1]))

        g, x = of_learnt(g_all), of_learnt(x_all)
        own: list[tuple[Tensor, Tensor]] = []  # keys and values of the steps before, of the same row
        logits = []
        for step in range(n_step):
            positions = batch.rows + step
            if step:
                x = self.inputs(batch.next_tokens[:, :, step], g)
                k, v = self.keys_values(x, positions)
                own.append((k.repeat_interleave(n_rep, 2), v.repeat_interleave(n_rep, 2)))
            q = self.queries(x, positions) / s.n_embd_head**0.5
            scores = q.transpose(1, 2) @ k_all.transpose(2, 3)
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
            more = [(q * k).sum(-1).transpose(1, 2)[..., None] for k, _ in own]
            share = torch.cat((scores, *more), -1).softmax(-1)
            attended = (share[..., :n_rows] @ v_all).transpose(1, 2)
            for i, (_, v) in enumerate(own):
                attended = attended + share[..., n_rows + i].transpose(1, 2)[..., None] * v
            g = self.finish(attended.flatten(2), g)
            logits.append(F.linear(self.output_norm(g), output) + shift)
        return logits

    @property
    def n_params(self) -> int:
        return sum(p.numel() for p in self.parameters())


def losses(logits: list[Tensor], batch: Batch, first_choice: float) -> Tensor:
    """Cross entropy in nats of each draft step, (steps,): against the target's probabilities, and with weight
    `first_choice` against its first choice.
    """
    out = []
    for step, rows in enumerate(logits):
        best, weights, ids = batch.best[:, :, step], batch.weights[:, :, step], batch.ids[:, :, step]
        use = best >= 0
        y = rows[use]
        log_sum = y.logsumexp(-1)
        weights = weights[use]
        soft = (weights * (log_sum[:, None] - y.gather(1, ids[use]))).sum(-1)
        hard = log_sum - y.gather(1, best[use][:, None])[:, 0]
        out.append(((1 - first_choice) * soft + first_choice * hard).mean())
    return torch.stack(out)


def accepted(logits: list[Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """Counts by draft step, each (steps,): rows whose drafts up to the step all are the target's first
    choice, and rows whose drafts before the step all are and for which the text goes on.
    """
    so_far = torch.ones_like(batch.best[:, :, 0], dtype=torch.bool)
    right, tried = [], []
    for step, rows in enumerate(logits):
        best = batch.best[:, :, step]
        so_far = so_far & (best != -1)
        tried.append(so_far.sum())
        so_far = so_far & (rows.argmax(-1) == best)
        right.append(so_far.sum())
    return torch.stack(right), torch.stack(tried)
