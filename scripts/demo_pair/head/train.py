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

from scripts.demo_pair.head import batches, export
from scripts.demo_pair.head.model import Head, Shape, accepted, draw, losses

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


@torch.no_grad()
def measure(
    head: Head, samples: Sequence[batches.Sample], table: Any, used: Any, n_step: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Counts of `accepted` by kind of prompt and temperature, and "all" of each temperature."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    head.eval()
    for sample in samples:
        batch = batches.make([sample], table, used, n_step)
        counts = accepted(head.steps(batch, n_step), batch)
        for kind in (sample.entry.kind, "all"):
            found[f"{kind} {sample.entry.temperature:g}"].append(counts)
    head.train()
    return {
        key: (sum(right for right, _ in counts), sum(tried for _, tried in counts))  # type: ignore[misc]
        for key, counts in sorted(found.items())
    }


def shares(counts: tuple[Tensor, Tensor]) -> str:
    right, tried = counts
    return " ".join(f"{r / max(1, t):.3f}" for r, t in zip(right.tolist(), tried.tolist(), strict=True))


def work(rank: int, a: argparse.Namespace) -> None:
    """One process of the training; the first one reports and saves."""
    torch.set_num_threads(a.threads)
    if a.processes > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
        dist.init_process_group("gloo", rank=rank, world_size=a.processes)
    torch.manual_seed(0)
    target = target_tensors(a.model)
    width = len(KEPT) * target["token_embd"].shape[1]
    samples = batches.load(a.texts, width)
    held_out = batches.load(a.held_out, width) if a.held_out else []
    used = batches.columns(a.layers, KEPT, target["token_embd"].shape[1])
    state = torch.load(a.out / "head.pt") if (a.out / "head.pt").exists() else None
    tokens = batches.choose_tokens(samples, a.draft_tokens, (0, 1, 2))
    table = batches.to_head(tokens, len(target["token_embd"]))
    head = Head(Shape(n_draft=len(tokens), n_ff=a.ff, n_head_kv=a.kv_heads), target["token_embd"], a.dropout)
    scale = torch.from_numpy(batches.feature_scale(samples, used))
    initialise(head, target, torch.from_numpy(tokens), scale, a.block)
    if state:
        take_over(head, tokens, state)
    optimizer = make_optimizer(head, a.rate)
    seconds, step, mean = state["seconds"] if state else 0.0, state["step"] if state else 0, None
    first_step = step
    if rank == 0:
        n = sum(s.entry.n - s.entry.n_prompt for s in samples)
        print(f"{len(samples)} texts, {n} tokens; {head.n_params / 1e6:.1f} M parameters", flush=True)
    source = endless(samples[rank :: a.processes], a.rows, seed=step * a.processes + rank)

    def save(kind: str) -> None:
        content = {
            "head": head.state_dict(), "tokens": torch.from_numpy(tokens), "seconds": seconds,
            "step": step, "shape": asdict(head.shape), "layers": a.layers,
        }  # fmt: skip
        torch.save(content, a.out / "head.new")
        (a.out / "head.new").replace(a.out / "head.pt")
        export.write_gguf(head, tokens, a.layers, a.model, a.out / "head.new.gguf", export.KINDS[kind])
        (a.out / "head.new.gguf").replace(a.out / "head.gguf")

    def report(some: Sequence[batches.Sample], n_step: int, kinds: str) -> None:
        for kind, counts in measure(head, some, table, used, n_step).items():
            if kind.startswith(kinds):
                print(f"held out, {kind}: {shares(counts)}", flush=True)

    saved = last = time.monotonic()
    while seconds < 60 * a.minutes:
        while a.pause and a.pause.exists():
            time.sleep(2)
            last = time.monotonic()
        n_step = a.steps if seconds > 60 * a.minutes * a.single else 1
        batch = batches.make(next(source), table, used, n_step)
        sample = draw(batch, len(tokens), a.others) if a.others else None
        found = losses(head.steps(batch, n_step, sample), sample.batch if sample else batch, a.first_choice)
        weights = STEP_WEIGHT ** torch.arange(n_step)
        ((found * weights).sum() / weights.sum()).backward()
        now = torch.tensor([time.monotonic() - last])
        last = time.monotonic()
        if a.processes > 1:
            average(head)
            dist.broadcast(now, 0)
        seconds += now.item()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = group["full"] * rate_now(step - first_step, seconds, a.minutes, a.decay)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        first = found[0].item()
        mean = first if mean is None else 0.98 * mean + 0.02 * first
        if rank == 0 and step % REPORT == 0:
            rest = " ".join(f"{loss:.2f}" for loss in found.tolist())
            print(f"{step}: {seconds:.0f} s, first step {mean:.3f}, last batch {rest}", flush=True)
        if rank == 0 and time.monotonic() - saved > 60 * a.save_minutes:
            saved = time.monotonic()
            save(a.type)
            report(held_out[::A_FEW], 2, "all")
    if rank == 0:
        save(a.type)
        report(held_out, HELD_OUT_STEPS, "")


def run(a: argparse.Namespace) -> None:
    """Train with the options of the command line, in a.processes processes: this one if a.rank says which it
    is, otherwise new ones.
    """
    if a.rank is not None or a.processes == 1:
        work(a.rank or 0, a)
    else:
        mp.spawn(work, (a,), nprocs=a.processes)
