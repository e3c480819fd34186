"""specllama and llama.cpp's llama-speculative-simple on the same files: decode rate and memory."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.engine.prompts import load_prompts
from scripts.figures import mean, median_interval

TYPES, COSTS = ("f16", "q8_0", "q4_0", "q4_k_m"), ("0.02", "0.07", "0.15")


def peer(args: argparse.Namespace) -> None:
    """The fixed policy against llama-speculative-simple: same files, n_max, threads and prompts, in turn."""
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
                e = median_interval(each)
                a, b = (statistics.median(x[0] for x in rows) for rows in (ours, theirs))
                speeds.append(a / b)
                rates = [sum(x[1] for x in rows) / len(rows) for rows in (ours, theirs)]
                print(
                    f"{kind:7} {cost}  {n_max:5}  {a:13.1f}  {b:13.1f}  {ratio:5.3f}"
                    f"  {e.low:.3f} - {e.high:.3f}  {rates[0]:.2f}, {rates[1]:.2f}",
                    flush=True,
                )
    print(f"geometric mean {mean(ratios):.3f}, worst {min(ratios):.3f}")
    below = sum(x < 1 for x in speeds)
    print(f"by the ratio of median speeds: worst {min(speeds):.3f}, {below} of {len(speeds)} cells below 1")


def run_ours(
    target: str, draft: str, prompt: str, n_max: int, args: argparse.Namespace
) -> tuple[float, float]:
    """(decode tokens/s, acceptance) of `specllama run`."""
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
    """The largest resident memory in MB of a process that the command starts, or of the command itself."""
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
