#!/usr/bin/env python3
"""Measure what the engine promises: lossless text, the fixed policy against llama.cpp's tool, first token,
own time, start-up, memory. Figures are medians; what is compared runs in turn. Run nothing beside it.

usage: -m scripts.bench.engine COMMAND ...

       lossless  -m TARGET -md DRAFT [--prompts FILE] [--per-workload N] [--draft-max 1-16]
       peer      --peer LLAMA-SPECULATIVE-SIMPLE --pairs DIR [--types ...] [--costs ...]
       gain      -m TARGET -md DRAFT     (run's default against plain decoding, by workload)
       ttft      -m TARGET -md DRAFT
       own-time  -m TARGET -md DRAFT     (with a 128k vocabulary, of bench.make_pair)
       startup
       memory    --peer LLAMA-SPECULATIVE-SIMPLE -m TARGET -md DRAFT

A prompts file is a JSON object, workload to list of prompts; without one a few about the standard library are
used.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.measuring import CHATML
from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, Drafter
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import Sampler
from specllama.core.sequence import Generation, Request
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.worker.calibrate import margin_change
from specllama.worker.engine_core import EngineCore

PROMPTS = {
    "explain": ["What does shutil.copytree do?", "Explain os.walk."],
    "source": ["Show the source of textwrap.dedent."],
    "json": ["Turn this into JSON: name Ada Lovelace, age 36, city London, active true"],
    "edit": [
        "Rename `value` to `item` in this code:\n"
        "```python\ndef put(self, value):\n    self.queue.append(value)\n```"
    ],
}
TYPES, COSTS = ("f16", "q8_0", "q4_0", "q4_k_m"), ("0.02", "0.07", "0.15")


def load_prompts(path: str | None, per_workload: int) -> list[tuple[str, str]]:
    """(workload, rendered prompt), `per_workload` of each."""
    if path is None:
        return [(w, CHATML.format(p)) for w, ps in PROMPTS.items() for p in ps[:per_workload]]
    return [(w, p) for w, ps in json.loads(Path(path).read_text()).items() for p in ps[:per_workload]]


@dataclass
class Pair:
    """A loaded pair, engines over it are made per run; caches are emptied between runs."""

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
    """Speculative against plain text, token for token; each divergence with its margin; and the control."""
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
    """Score a plain text in batches of 2..16 and count choices that change. No drafter takes part."""
    history, n_prompt = plain.history, plain.n_prompt
    chooser = Sampler(request.params, request.seed, pair.target.n_vocab)
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
            alone = single[row.pos]
            changes.append(margin_change(alone, batched))
            flipped += chooser.choose(alone, known).token != chooser.choose(batched, known).token
            n += 1
        at, width = at + len(rows), width % 16 + 1
    return n, flipped


def margin_at(pair: Pair, plain: Generation, index: int, request: Request) -> float:
    """The margin of the plain choice of output token `index`, on a row decoded alone."""
    history = plain.history[: plain.n_prompt + index]
    pair.context.truncate(0, 0)
    if len(history) > 1:
        pair.context.decode([BatchRow(t, i, 0, False) for i, t in enumerate(history[:-1])])
    row = pair.context.decode([BatchRow(history[-1], len(history) - 1, 0, True)])[0]
    chooser = Sampler(request.params, request.seed, pair.target.n_vocab)
    return chooser.choose(row, history, margin=True).margin


def peer(args: argparse.Namespace) -> None:
    """The fixed policy against llama-speculative-simple: same files, n_max, threads, prompts; runs in
    turn.
    """
    prompts = load_prompts(args.prompts, args.per_workload)
    ratios: list[float] = []
    speeds: list[float] = []
    print("type    cost  n_max  specllama t/s  llama.cpp t/s  ratio  95 % interval  accept ours, theirs")
    for kind in args.types:
        for cost in args.costs:
            target = f"{args.pairs}/bench-target-{kind}.gguf"
            draft = f"{args.pairs}/bench-draft-{kind}-c{cost}.gguf"
            for n_max in args.draft_max:
                ours: list[tuple[float, float]] = []
                theirs: list[tuple[float, float]] = []
                for turn in range(args.runs):
                    for number, (_, prompt) in enumerate(prompts):
                        both = [(ours, run_ours), (theirs, run_peer)]
                        for rows, once in both if (turn + number) % 2 == 0 else reversed(both):
                            rows.append(once(target, draft, prompt, n_max, args))
                each = [a[0] / b[0] for a, b in zip(ours, theirs, strict=True)]
                ratio = statistics.median(each)
                ratios.append(ratio)
                low, high = interval(each)
                a, b = (statistics.median(x[0] for x in rows) for rows in (ours, theirs))
                speeds.append(a / b)
                rates = [sum(x[1] for x in rows) / len(rows) for rows in (ours, theirs)]
                print(
                    f"{kind:7} {cost}  {n_max:5}  {a:13.1f}  {b:13.1f}  {ratio:5.3f}"
                    f"  {low:.3f} - {high:.3f}  {rates[0]:.2f}, {rates[1]:.2f}",
                    flush=True,
                )
    print(f"geometric mean {math.exp(statistics.mean(map(math.log, ratios))):.3f}, worst {min(ratios):.3f}")
    below = sum(x < 1 for x in speeds)
    print(f"by the ratio of median speeds: worst {min(speeds):.3f}, {below} of {len(speeds)} cells below 1")


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % interval of the median, by the bootstrap (Efron 1979, percentiles)."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[round(draws * 0.025)], medians[round(draws * 0.975) - 1]


def run_ours(
    target: str, draft: str, prompt: str, n_max: int, args: argparse.Namespace
) -> tuple[float, float]:
    """(decode tokens/s, acceptance) of the command."""
    command = [
        sys.executable, "-m", "specllama", "run", "--json", "--raw", "-m", target, "-md", draft, "-t",
        str(args.threads), "-c", "2048", "-n", str(args.n), "--temp", "0", "--ignore-eos", "--drafters",
        "model",
        "--draft-max", str(n_max), "--no-calibrate", "-p", prompt,
    ]  # fmt: skip
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return out["decode_tps"], out["n_accept"] / max(1, out["n_drafted"])


def run_peer(
    target: str, draft: str, prompt: str, n_max: int, args: argparse.Namespace
) -> tuple[float, float]:
    """(decode tokens/s, acceptance) of llama.cpp's tool, by its own clock."""
    command = [
        args.peer, "-m", target, "-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max",
        str(n_max),
        "-t", str(args.threads), "-td", str(args.threads), "-c", "2048", "-n", str(args.n), "--temp", "0",
        "--ignore-eos", "-p", prompt,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, errors="replace")
    text = done.stdout + done.stderr
    speed = re.search(r"decoded\s+\d+ tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+)", text)
    accept = re.search(r"accept\s+=\s+([\d.]+)%", text)
    if not speed:
        sys.exit(f"{args.peer} printed no speed:\n{text[-2000:]}")
    return float(speed[1]), float(accept[1]) / 100 if accept else 0.0


def gain(args: argparse.Namespace) -> None:
    """Decode rate of `run` as it is by default over plain decoding of the same request, runs in turn."""
    from specllama.client.client import EngineClient

    rates: dict[str, list[tuple[float, float]]] = {}
    target = ModelSettings(path=args.model, n_ctx=2048, n_threads=args.threads)
    draft = ModelSettings(path=args.draft, n_ctx=2048, n_threads=args.threads)
    with EngineClient() as client:
        client.load(LoadSettings(target=target, draft=draft, memory=False))  # each prompt comes twice
        for _ in range(args.runs):
            for workload, prompt in load_prompts(args.prompts, args.per_workload):
                both = [decode(client, prompt, speculate, args) for speculate in (True, False)]
                rates.setdefault(workload, []).append((both[0], both[1]))
    for workload, pairs in rates.items():
        ratio = statistics.median(a / b for a, b in pairs)
        plain = statistics.median(b for _, b in pairs)
        print(f"{workload:8} {ratio:5.2f} x plain ({plain:.1f} t/s)")
    every = [a / b for pairs in rates.values() for a, b in pairs]
    print(f"geometric mean {math.exp(statistics.mean(map(math.log, every))):.2f}, worst {min(every):.2f}")


def decode(client: Any, prompt: str, speculate: bool, args: argparse.Namespace) -> float:
    """Decode rate of one request, tokens/s."""
    params = {"max_tokens": args.n, "temperature": 0, "ignore_eos": True}
    request = m.Generate(client.next_id(), prompt=prompt, params=params, speculate=speculate)
    stats = [event.stats for event in client.generate(request) if isinstance(event, m.Done)][-1]
    return (stats.n_predict - 1) / stats.decode_seconds


def ttft(args: argparse.Namespace) -> None:
    """Request to first token with and without a draft, both loaded, in turn, in one engine process each."""
    from specllama.client.client import EngineClient

    times: dict[str, list[float]] = {"with": [], "without": []}
    prompt = load_prompts(args.prompts, 1)[0][1]
    with EngineClient() as one, EngineClient() as two:
        target = ModelSettings(path=args.model, n_ctx=2048, n_threads=args.threads)
        draft = ModelSettings(path=args.draft, n_ctx=2048, n_threads=args.threads)
        one.load(LoadSettings(target=target, draft=draft))
        two.load(LoadSettings(target=target, drafters=()))
        for i in range(args.runs):
            words = f"{i} " * 40 + prompt  # no prefix of an earlier request
            turns = (("with", one), ("without", two))
            for name, client in turns if i % 2 else reversed(turns):
                request = m.Generate(
                    client.next_id(), prompt=words, params={"max_tokens": 24, "temperature": 0}
                )
                for event in client.generate(request):
                    if isinstance(event, m.Done) and i:
                        times[name].append(event.stats.ttft_seconds)
    ratios = [a / b for a, b in zip(times["with"], times["without"], strict=True)]
    a, b = (1000 * statistics.median(times[name]) for name in ("with", "without"))
    print(
        f"first token with a draft {a:.1f} ms, without {b:.1f} ms; "
        f"ratio pair by pair, median {statistics.median(ratios):.3f}"
    )


def own_time(args: argparse.Namespace) -> None:
    """What a round costs beside llama_decode and llama_synchronize, messages included."""
    for temperature in (0.0, 0.8):
        for n_max in (0, 3, 7, 15):
            rounds = list(own_rounds(args, temperature, n_max))
            own = statistics.median(x for x, _ in rounds)
            drafted = statistics.mean(n for _, n in rounds)
            if temperature == 0:
                budget = 0.3 + 0.1 * drafted
            else:  # rows: those that the draft chose from, and one of the target (it looks at more)
                budget = 0.5 + 0.2 * (drafted + 1)
            print(
                f"temperature {temperature} draft_max {n_max:2}: own time {1000 * own:.3f} ms a round, "
                f"{drafted:.1f} drafted a round, budget {budget:.2f} ms"
            )


def own_rounds(args: argparse.Namespace, temperature: float, n_max: int) -> Iterator[tuple[float, int]]:
    """(own seconds, drafted tokens) of each round of a generation."""
    done: list[m.Done] = []
    null = os.open(os.devnull, os.O_WRONLY)

    def send(message: m.Message) -> None:
        os.write(null, m.encode(message))
        if isinstance(message, m.Done):
            done.append(message)

    host = EngineCore(send)
    target = ModelSettings(path=args.model, n_ctx=2048, n_threads=args.threads)
    draft = ModelSettings(path=args.draft, n_ctx=2048, n_threads=args.threads) if n_max else None
    settings = LoadSettings(target=target, draft=draft, draft_max=n_max, drafters=("model",) if n_max else ())
    host.handle(m.Load(settings))
    loaded = host.loaded
    if loaded is None:
        sys.exit("the pair does not load")
    contexts = [c for c in (loaded.context, loaded.draft and loaded.draft.context) if c is not None]
    params = {"temperature": temperature, "top_k": 40, "max_tokens": 200, "ignore_eos": True, "seed": 3}
    for turn in range(2):  # the first one warms up
        host.handle(m.Generate(turn, ids=list(range(1000, 1040)), params=params))
        host.step()
        while host.busy:
            running = host.running[0].generation.stats
            before, drafted = sum(c.decode_seconds for c in contexts), running.n_drafted
            started = time.perf_counter()
            host.step()
            took = time.perf_counter() - started
            if turn:
                yield took - (sum(c.decode_seconds for c in contexts) - before), running.n_drafted - drafted
    for context in reversed(contexts):
        context.close()
    for model in (loaded.draft and loaded.draft.model, loaded.model):
        if model is not None:
            model.close()


def startup(args: argparse.Namespace) -> None:
    """`specllama --help`, and `import specllama` above a bare interpreter."""
    commands = {
        "specllama --help": [str(Path(sys.executable).parent / "specllama"), "--help"],
        "import specllama": [sys.executable, "-c", "import specllama; specllama.SamplingParams"],
        "bare python": [sys.executable, "-c", "pass"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(args.runs):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            times[name].append(time.perf_counter() - started)
    for name, values in times.items():
        print(f"{name:18} {1000 * statistics.median(values):6.1f} ms")
    extra = [a - b for a, b in zip(times["import specllama"], times["bare python"], strict=True)]
    print(f"import alone       {1000 * statistics.median(extra):6.1f} ms")


def memory(args: argparse.Namespace) -> None:
    """Peak resident memory of the engine process and of llama.cpp's tool, same files and sizes."""
    prompt = load_prompts(args.prompts, 1)[0][1]
    ours = [
        sys.executable, "-m", "specllama", "run", "--raw", "--json", "-m", args.model, "-md", args.draft,
        "-c", "2048", "-t", str(args.threads), "-n", "64", "--temp", "0", "--draft-max", "3",
        "--no-calibrate", "-p", prompt,
    ]  # fmt: skip
    theirs = [
        args.peer, "-m", args.model, "-md", args.draft, "--spec-type", "draft-simple", "-c", "2048",
        "-t", str(args.threads), "-n", "64", "--temp", "0", "-p", prompt,
    ]  # fmt: skip
    peaks = {
        name: statistics.median(peak(command) for _ in range(3))
        for name, command in (("ours", ours), ("theirs", theirs))
    }
    print(
        f"engine process {peaks['ours']:.0f} MB, {Path(args.peer).name} {peaks['theirs']:.0f} MB, "
        f"difference {peaks['ours'] - peaks['theirs']:.0f} MB"
    )


def peak(command: Sequence[str]) -> float:
    """MB of the largest resident process below (or of) a command."""
    import psutil

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            most = max(most, *(p.memory_info().rss for p in family))
        except psutil.Error:
            pass
        time.sleep(0.01)
    return most / 1e6


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


def numbers(text: str) -> list[int]:
    """ "1,2,8-11" to a list."""
    out = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        out += range(int(low), int(high or low) + 1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["lossless", "peer", "gain", "ttft", "own-time", "startup", "memory"])
    parser.add_argument("-m", "--model", default=str(EMBEDDED_TARGET))
    parser.add_argument("-md", "--draft", default=str(EMBEDDED_DRAFT))
    parser.add_argument("--prompts")
    parser.add_argument("--per-workload", type=int, default=1)
    parser.add_argument("--draft-max", type=numbers, default=None)
    parser.add_argument("--peer", help="path of llama-speculative-simple, built from the same source")
    parser.add_argument("--pairs", help="directory that python -m scripts.bench.make_pair wrote")
    parser.add_argument("--types", type=lambda s: s.split(","), default=list(TYPES))
    parser.add_argument("--costs", type=lambda s: s.split(","), default=list(COSTS))
    parser.add_argument("-n", type=int, default=64, help="tokens of a generation")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--show", type=int, default=20, help="divergences to list")
    parser.add_argument("-fa", "--flash-attn", default="auto")
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    if args.draft_max is None:
        args.draft_max = list(range(1, 17)) if args.what == "lossless" else [3, 7, 15]
    if args.what in ("peer", "memory") and not args.peer:
        parser.error(f"{args.what} needs --peer")
    if args.what == "peer" and not args.pairs:
        parser.error("peer needs --pairs")
    {
        "lossless": lossless, "peer": peer, "gain": gain, "ttft": ttft, "own-time": own_time,
        "startup": startup, "memory": memory,
    }[args.what](args)  # fmt: skip


if __name__ == "__main__":
    main()
