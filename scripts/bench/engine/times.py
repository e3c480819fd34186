"""Decode rate of the default, time to first token, time of a round outside llama.cpp, start-up."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.engine.prompts import load_prompts
from scripts.figures import mean
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings, ModelSettings
from specllama.worker.engine_core import EngineCore


def gain(args: argparse.Namespace) -> None:
    """Decode rate of `run` with its defaults over plain decoding of the same request, in turn."""
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
    print(f"geometric mean {mean(every):.2f}, worst {min(every):.2f}")


def decode(client: EngineClient, prompt: str, speculate: bool, args: argparse.Namespace) -> float:
    """Decode rate of one request, tokens/s."""
    params = {"max_tokens": args.n, "temperature": 0, "ignore_eos": True}
    request = protocol.Generate(client.next_id(), protocol.TextInput(prompt), params, speculate=speculate)
    stats = [event.stats for event in client.generate(request) if isinstance(event, protocol.Done)][-1]
    return (stats.n_predict - 1) / stats.decode_seconds


def ttft(args: argparse.Namespace) -> None:
    """Time to first token with a draft model and without, in turn, in one engine process each."""
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
                request = protocol.Generate(
                    client.next_id(), protocol.TextInput(words), {"max_tokens": 24, "temperature": 0}
                )
                for event in client.generate(request):
                    if isinstance(event, protocol.Done) and i:
                        times[name].append(event.stats.ttft_seconds)
    ratios = [a / b for a, b in zip(times["with"], times["without"], strict=True)]
    a, b = (1000 * statistics.median(times[name]) for name in ("with", "without"))
    print(
        f"first token with a draft {a:.1f} ms, without {b:.1f} ms; "
        f"ratio pair by pair, median {statistics.median(ratios):.3f}"
    )


def own_time(args: argparse.Namespace) -> None:
    """Time of a round outside llama_decode and llama_synchronize, messages included."""
    for temperature in (0.0, 0.8):
        for n_max in (0, 3, 7, 15):
            rounds = list(own_rounds(args, temperature, n_max))
            own = statistics.median(x for x, _ in rounds)
            drafted = statistics.mean(n for _, n in rounds)
            if temperature == 0:
                budget = 0.3 + 0.1 * drafted
            else:  # rows that are sampled from: one for each drafted token, one of the target
                budget = 0.5 + 0.2 * (drafted + 1)
            print(
                f"temperature {temperature} draft_max {n_max:2}: own time {1000 * own:.3f} ms a round, "
                f"{drafted:.1f} drafted a round, budget {budget:.2f} ms"
            )


def own_rounds(args: argparse.Namespace, temperature: float, n_max: int) -> Iterator[tuple[float, int]]:
    """(own seconds, drafted tokens) of each round of a generation."""
    done: list[protocol.Done] = []
    null = os.open(os.devnull, os.O_WRONLY)

    def send(message: protocol.Message) -> None:
        os.write(null, protocol.encode(message))
        if isinstance(message, protocol.Done):
            done.append(message)

    core = EngineCore(send)
    target = ModelSettings(path=args.model, n_ctx=2048, n_threads=args.threads)
    draft = ModelSettings(path=args.draft, n_ctx=2048, n_threads=args.threads) if n_max else None
    settings = LoadSettings(target=target, draft=draft, draft_max=n_max, drafters=("model",) if n_max else ())
    core.handle(protocol.Load(settings))
    loaded = core.loaded
    if loaded is None:
        sys.exit("the pair does not load")
    contexts = [c for c in (loaded.context, loaded.draft and loaded.draft.context) if c is not None]
    params = {"temperature": temperature, "top_k": 40, "max_tokens": 200, "ignore_eos": True, "seed": 3}
    for turn in range(2):  # the first one warms up
        core.handle(protocol.Generate(turn, protocol.TokenInput(list(range(1000, 1040))), params))
        core.step()
        while core.busy:
            stats = core.loaded_engine.running[0].generation.stats
            before, drafted = sum(c.decode_seconds for c in contexts), stats.n_drafted
            started = time.perf_counter()
            core.step()
            elapsed = time.perf_counter() - started
            if turn:
                yield elapsed - (sum(c.decode_seconds for c in contexts) - before), stats.n_drafted - drafted
    for context in reversed(contexts):
        context.close()
    for model in (loaded.draft and loaded.draft.model, loaded.model):
        if model is not None:
            model.close()


def startup(args: argparse.Namespace) -> None:
    """`specllama --help`, and `import specllama` over a bare interpreter."""
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
