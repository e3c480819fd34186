"""Whether drafting changes a text: every divergence from the plain text with its margin, and a control."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.engine.prompts import load_prompts
from scripts.figures import quantile
from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, Drafter
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Generation, Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.worker.calibrate import margin_change


@dataclass
class Pair:
    """A loaded pair. Each generation has a new engine and starts with empty caches."""

    target: LlamaModel
    context: LlamaContext
    draft: LlamaModel
    drafting: LlamaContext
    ends: frozenset[int]
    own: LlamaContext | None = None

    @classmethod
    def load(cls, args: argparse.Namespace, n_ctx: int = 2048) -> Pair:
        t = LlamaModel(ModelSettings(path=args.model, n_threads=args.threads, flash_attn=args.flash_attn))
        d = LlamaModel(ModelSettings(path=args.draft, n_threads=args.threads, flash_attn=args.flash_attn))
        return cls(t, LlamaContext(t, n_ctx), d, LlamaContext(d, n_ctx), t.end_ids)

    def generate(self, request: Request, kind: str, n_max: int) -> Generation:
        self.context.truncate(0, 0)
        drafters: list[Drafter] = []
        if kind in ("copy", "both"):
            drafters.append(CopyDrafter())
        if kind in ("model", "both"):
            self.drafting.truncate(0, 0)
            drafters.append(ModelDrafter(self.drafting, self.target.n_vocab, False, self.ends))
        if kind == "target":
            if self.own is None:
                self.own = LlamaContext(self.target, self.context.n_ctx)
            self.own.truncate(0, 0)
            drafters.append(ModelDrafter(self.own, self.target.n_vocab, False, self.ends))
        engine = Engine(self.context, Fixed(drafters, n_max), end_ids=self.ends, clock=time.perf_counter)
        generation = engine.submit(request)
        while engine.busy:
            engine.step()
        return generation


def lossless(args: argparse.Namespace) -> None:
    """Compares speculative with plain text, token by token, and prints each divergence with its margin."""
    pair = Pair.load(args)
    prompts = load_prompts(args.prompts, args.per_workload)
    settings = [(0.0, 1), *((0.8, seed) for seed in (1, 2, 3))]
    n_tokens = n_runs = n_control = control_flips = 0
    changes: list[float] = []
    margins: list[float] = []
    flips: list[tuple[str, float]] = []
    own_rejected = 0
    for workload, prompt in prompts:
        ids = pair.target.tokenize(prompt, False, True)
        for temperature, seed in settings:
            params = SamplingParams(temperature=temperature, max_tokens=args.n)
            request = Request(ids, params, seed)
            plain = pair.generate(request, "none", 0)
            n, flipped = control(pair, plain, request, changes)
            n_control, control_flips = n_control + n, control_flips + flipped
            if seed == 1:
                itself = pair.generate(request, "target", 4)
                own_rejected += itself.stats.n_drafted - itself.stats.n_accept
            for kind in ("model", "copy", "both"):
                for n_max in args.draft_max:
                    got = pair.generate(request, kind, n_max)
                    n_runs, n_tokens = n_runs + 1, n_tokens + len(plain.output)
                    at = next(
                        (i for i, (a, b) in enumerate(zip(plain.output, got.output, strict=False)) if a != b),
                        None,
                    )
                    if at is not None or len(plain.output) != len(got.output):
                        margin = margin_at(pair, plain, at or 0, request)
                        flips.append((f"{workload} T={temperature} {kind} k={n_max} token {at}", margin))
                        margins.append(margin)
    epsilon = quantile(changes, 0.999)
    print(f"{Path(args.model).name} + {Path(args.draft).name}: {n_runs} runs, {n_tokens} tokens")
    print(f"  epsilon {epsilon:.3g} (99.9 % of {len(changes)} rows, batches of 2..16 against single rows)")
    print(
        f"  divergences {len(flips)}, of these with a margin above 2 epsilon: "
        f"{sum(x > 2 * epsilon for x in margins)}"
    )
    print(f"  control: {control_flips} of {n_control} tokens change when plain text is scored in batches")
    print(f"  target as its own draft: {own_rejected} tokens rejected")
    for text, margin in flips[: args.show]:
        print(f"    {text}: margin {margin:.2g}")


def control(pair: Pair, plain: Generation, request: Request, changes: list[float]) -> tuple[int, int]:
    """Scores a plain text in batches of 2 to 16 rows and counts choices that change, without a drafter."""
    history, n_prompt = plain.history, plain.n_prompt
    sampler = KeyedSampler(request.params, request.seed, pair.target.n_vocab)
    context, flipped, n = pair.context, 0, 0
    single: dict[int, Any] = {}
    context.truncate(0, 0)
    context.decode([BatchRow(t, i, 0, False) for i, t in enumerate(history[:n_prompt])])
    for i in range(n_prompt, len(history) - 1):
        single[i] = context.decode([BatchRow(history[i], i, 0, True)])[0].copy()
    at, width = n_prompt, 2
    context.truncate(0, n_prompt)
    while at < len(history) - 1:
        rows = [BatchRow(history[i], i, 0, True) for i in range(at, min(at + width, len(history) - 1))]
        for row, batched in zip(rows, context.decode(rows), strict=True):
            known = history[: row.pos + 1]
            reference = single[row.pos]
            changes.append(margin_change(reference, batched))
            flipped += sampler.choose(reference, known).token != sampler.choose(batched, known).token
            n += 1
        at, width = at + len(rows), width % 16 + 1
    return n, flipped


def margin_at(pair: Pair, plain: Generation, index: int, request: Request) -> float:
    """The margin of the plain choice of output token `index`, on a row that is decoded alone."""
    history = plain.history[: plain.n_prompt + index]
    pair.context.truncate(0, 0)
    if len(history) > 1:
        pair.context.decode([BatchRow(t, i, 0, False) for i, t in enumerate(history[:-1])])
    row = pair.context.decode([BatchRow(history[-1], len(history) - 1, 0, True)])[0]
    sampler = KeyedSampler(request.params, request.seed, pair.target.n_vocab)
    return sampler.choose(row, history, margin=True).margin
