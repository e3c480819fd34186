"""Training of the head with several unrolled draft steps.

A run continues from the weights that an earlier one saved, with texts that were added since.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray
from torch import Tensor, nn

from training.head import batches, export
from training.head.model import Head, Shape, accepted, draw, losses

KEPT = (2, 15, 22, 29)  # layers whose inputs `write` keeps
STEP_WEIGHT = 0.8  # of a draft step's loss, relative to that of the step before
WARM_UP = 50  # updates
REPORT = 50  # updates between two lines of the log
HELD_OUT_STEPS = 4
A_FEW = 7  # one text in so many is measured during training


def target_tensors(path: Path) -> dict[str, Tensor]:
    """Embeddings, last norm and last block of the target, in f32."""
    reader = gguf.GGUFReader(path)
    last = max(int(t.name.split(".")[1]) for t in reader.tensors if t.name.startswith("blk."))
    names = {t.name: t for t in reader.tensors}
    wanted = {"token_embd": "token_embd.weight", "output_norm": "output_norm.weight"}
    parts = (
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    )
    wanted |= {part: f"blk.{last}.{part}.weight" for part in parts}
    return {
        key: torch.from_numpy(
            np.array(gguf.quants.dequantize(names[name].data, names[name].tensor_type), np.float32)
        )
        for key, name in wanted.items()
    }


@torch.no_grad()
def initialise(head: Head, target: dict[str, Tensor], tokens: Tensor, scale: Tensor, block: bool) -> None:
    """Start from the target: g is the highest of the layer inputs, divided by its scale, and the output is
    the target's embeddings of the head's tokens. block: whether the rest is the target's last block, in the
    same scale; otherwise it is random and adds nothing at first.
    """
    s = head.shape
    d = s.n_embd
    head.scale.copy_(scale)
    high = scale[-d:]
    relative = high / high.square().mean().sqrt()
    head.output.weight.copy_(target["token_embd"][tokens])
    head.output_norm.weight.copy_(target["output_norm"] * relative)
    nn.init.normal_(head.fc.weight, 0, 0.01)
    head.fc.weight[:, -d:] += torch.eye(d)
    for name in ("attn_q", "attn_k", "attn_v"):
        nn.init.normal_(head.get_submodule(name).weight, 0, (2 * d) ** -0.5)
    for name in ("ffn_gate", "ffn_up"):
        nn.init.normal_(head.get_submodule(name).weight, 0, d**-0.5)
    nn.init.zeros_(head.attn_output.weight)
    nn.init.zeros_(head.ffn_down.weight)
    head.attn_norm.weight.fill_(1.0)
    if not block:
        return
    head.attn_norm_2.weight.copy_(target["attn_norm"] * relative)
    head.ffn_norm.weight.copy_(target["ffn_norm"] * relative)
    for name in ("ffn_gate", "ffn_up"):
        head.get_submodule(name).weight.copy_(target[name][: s.n_ff])
    head.ffn_down.weight.copy_(target["ffn_down"][:, : s.n_ff] / high[:, None])
    head.attn_output.weight.copy_(target["attn_output"] / high[:, None])
    head.attn_q.weight[:, d:] = target["attn_q"]
    for name in ("attn_k", "attn_v"):
        heads = target[name].unflatten(0, (-1, s.n_embd_head))
        repeated = heads.repeat_interleave(s.n_head_kv // len(heads), 0)
        head.get_submodule(name).weight[:, d:] = repeated.flatten(0, 1)


@torch.no_grad()
def take_over(head: Head, tokens: NDArray[np.int64], state: dict[str, Any]) -> None:
    """Continue from saved weights, which may be of other tokens: the output keeps those it has in common."""
    weights = dict(state["head"])
    old = weights.pop("output.weight")
    head.load_state_dict(weights, strict=False)
    _, at, at_old = np.intersect1d(tokens, state["tokens"].numpy(), return_indices=True)
    head.output.weight[torch.from_numpy(at)] = old[torch.from_numpy(at_old)]


def make_optimizer(head: Head, rate: float) -> torch.optim.Optimizer:
    """AdamW: the output, which starts as the target's, learns slowly, or it forgets rare tokens."""
    output = [head.output.weight]
    matrices = [p for n, p in head.named_parameters() if p.dim() == 2 and n != "output.weight"]
    norms = [p for p in head.parameters() if p.dim() == 1]
    groups = [
        {"params": params, "lr": rate * share, "full": rate * share, "weight_decay": decay}
        for params, share, decay in ((output, 0.1, 0.0), (matrices, 1.0, 0.1), (norms, 2.0, 0.0))
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def rate_now(step: int, seconds: float, minutes: float, decay: float) -> float:
    """The share of the rate: it rises over the first updates of a run, and falls to zero over the last
    `decay` of the minutes.
    """
    left = 1 - seconds / (60 * minutes)
    return min(1.0, (step + 1) / WARM_UP, max(0.0, left / decay))


def endless(samples: Sequence[batches.Sample], n_rows: int, seed: int) -> Iterator[list[batches.Sample]]:
    rng = np.random.default_rng(seed)
    while True:
        yield from batches.shuffled(samples, n_rows, rng)


def average(head: Head) -> None:
    """Average the gradients over all processes."""
    grads = [p.grad for p in head.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))


class Training:
    """One process of a training: texts, head and progress. Only the first process reports and saves."""

    def __init__(self, rank: int, a: argparse.Namespace) -> None:
        self.rank, self.options = rank, a
        target = target_tensors(a.model)
        n_embd = target["token_embd"].shape[1]
        samples, held_out = (
            batches.load(folder, len(KEPT) * n_embd) if folder else [] for folder in (a.texts, a.held_out)
        )
        self.held_out = held_out
        self.used = batches.columns(a.layers, KEPT, n_embd)
        self.tokens = batches.choose_tokens(samples, a.draft_tokens, (0, 1, 2))
        self.table = batches.to_head(self.tokens, len(target["token_embd"]))
        shape = Shape(n_draft=len(self.tokens), n_ff=a.ff, n_head_kv=a.kv_heads)
        self.head = Head(shape, target["token_embd"], a.dropout)
        scale = torch.from_numpy(batches.feature_scale(samples, self.used))
        initialise(self.head, target, torch.from_numpy(self.tokens), scale, a.block)
        self.seconds, self.step = 0.0, 0
        if (path := a.out / "head.pt").exists():
            state = torch.load(path)
            take_over(self.head, self.tokens, state)
            self.seconds, self.step = state["seconds"], state["step"]
        self.first_step = self.step
        self.optimizer = make_optimizer(self.head, a.rate)
        self.source = endless(samples[rank :: a.processes], a.rows, self.step * a.processes + rank)
        self.mean: float | None = None  # of the first step's loss, over the last batches
        n = sum(entry.n - entry.n_prompt for entry, _ in samples)
        self.print(f"{len(samples)} texts, {n} tokens; {self.head.n_params / 1e6:.1f} M parameters")

    def print(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)

    def update(self) -> None:
        """One batch of every process."""
        a, head, started = self.options, self.head, time.monotonic()
        n_step = a.steps if self.seconds > 60 * a.minutes * a.single else 1
        batch = batches.make(next(self.source), self.table, self.used, n_step)
        sample = draw(batch, len(self.tokens), a.others) if a.others else None
        found = losses(head.steps(batch, n_step, sample), sample.batch if sample else batch, a.first_choice)
        weights = STEP_WEIGHT ** torch.arange(n_step)
        ((found * weights).sum() / weights.sum()).backward()
        took = torch.tensor([time.monotonic() - started])
        if a.processes > 1:
            average(head)
            dist.broadcast(took, 0)
        self.seconds += took.item()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        share = rate_now(self.step - self.first_step, self.seconds, a.minutes, a.decay)
        for group in self.optimizer.param_groups:
            group["lr"] = group["full"] * share
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        first = found[0].item()
        self.mean = first if self.mean is None else 0.98 * self.mean + 0.02 * first
        if self.step % REPORT == 0:
            rest = " ".join(f"{loss:.2f}" for loss in found.tolist())
            self.print(f"{self.step}: {self.seconds:.0f} s, first step {self.mean:.3f}, last batch {rest}")

    def save(self) -> None:
        """Write the weights and the head's file."""
        a = self.options
        content = {
            "head": self.head.state_dict(), "tokens": torch.from_numpy(self.tokens), "layers": a.layers,
            "shape": asdict(self.head.shape), "seconds": self.seconds, "step": self.step,
        }  # fmt: skip
        torch.save(content, a.out / "head.new")
        (a.out / "head.new").replace(a.out / "head.pt")
        kind = export.KINDS[a.type]
        export.write_gguf(self.head, self.tokens, a.layers, a.model, a.out / "head.new", kind)
        (a.out / "head.new").replace(a.out / "head.gguf")

    @torch.no_grad()
    def measure(self, samples: Sequence[batches.Sample], n_step: int, kinds: str = "") -> None:
        """Print the shares of accepted drafts, each step's of the rows where the steps before it were, by
        kind of prompt and temperature, for kinds that begin with `kinds`; "all" is one.
        """
        found: dict[str, list[Tensor]] = defaultdict(list)
        self.head.eval()
        for sample in samples:
            batch = batches.make([sample], self.table, self.used, n_step)
            counts = torch.stack(accepted(self.head.steps(batch, n_step), batch))
            for kind in (sample.entry.kind, "all"):
                found[f"{kind}, temperature {sample.entry.temperature:g}"].append(counts)
        self.head.train()
        for kind, every in sorted(found.items()):
            if kind.startswith(kinds):
                right, tried = torch.stack(every).sum(0)
                shares = " ".join(f"{share:.3f}" for share in (right / tried.clamp(min=1)).tolist())
                print(f"held out, {kind}: {shares}", flush=True)


def work(rank: int, a: argparse.Namespace) -> None:
    """One process of the training."""
    torch.set_num_threads(a.threads)
    if a.processes > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
        dist.init_process_group("gloo", rank=rank, world_size=a.processes)
    torch.manual_seed(0)
    training = Training(rank, a)
    saved = time.monotonic()
    while training.seconds < 60 * a.minutes:
        while a.pause and a.pause.exists():
            time.sleep(2)
        training.update()
        if rank == 0 and time.monotonic() - saved > 60 * a.save_minutes:
            saved = time.monotonic()
            training.save()
            training.measure(training.held_out[::A_FEW], 2, "all")
    if rank == 0:
        training.save()
        training.measure(training.held_out, HELD_OUT_STEPS)


def run(a: argparse.Namespace) -> None:
    """Train with the options of the command line, in a.processes processes: this one if a.rank says which it
    is, otherwise new ones.
    """
    if a.rank is not None or a.processes == 1:
        work(a.rank or 0, a)
    else:
        mp.spawn(work, (a,), nprocs=a.processes)
