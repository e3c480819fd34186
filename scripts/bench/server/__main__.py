"""`specllama serve` against llama.cpp's llama-server, with the same files, slots, threads and requests.

usage: python -m scripts.bench.server -m TARGET [-md DRAFT] [--concurrency 1,4,8] [--runs N] [-n TOKENS]
                                      [--requests N] [-np SLOTS] [-t THREADS] [-c CTX] [--prompts FILE]
                                      [--tools DIR] [--out FILE.json] [--no-overhead] [--no-peer]

In each run every server is started, swept over the concurrencies and stopped, in alternating order. specllama
answers each request with its default and plainly, in turn; llama-server runs with the draft model (with its
default length; it needs --spec-type, -md alone does nothing) and without. All write -n tokens greedily
(ignore_eos). Servers are compared by the tokens per second of all clients; ratios are medians over the runs.
During a sweep another process polls /health.

After the runs, the same requests are decoded plainly through HTTP and by an engine process of this script, in
turn; the difference of their times between tokens is the overhead of the HTTP front. A minimal
client reads them.

--tools names a directory with llama-server; without it, the tools are built from the source package of the
installed llama-cpp-python (once, about 8 minutes). Figures are written to --out after every run. specllama's
cache directory is empty at first: nothing is known from earlier processes. Run nothing else on the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts import cli
from scripts.bench.peers import environment
from scripts.bench.peers.build import tools
from scripts.bench.peers.raw import replace
from scripts.bench.server.overhead import engine, overhead
from scripts.bench.server.programs import OURS, PEER_DRAFT, PEER_PLAIN, Files, Way, free_port, running
from scripts.bench.server.table import healths, label, lines, medians, ratios
from scripts.figures import quantile
from scripts.health import HealthPoller
from specllama.bench import workloads
from specllama.bench.serving.client import ServerClient, parse_address
from specllama.bench.serving.summary import tps
from specllama.bench.serving.sweep import (
    PLAIN,
    SERVED,
    SPECULATIVE,
    ServingMeasurement,
    SweepSettings,
    prompts,
    sweep,
    warm_up,
)
from specllama.errors import SpecllamaError
from specllama.models.memory.available import physical_cores

SCHEMA, TIMEOUT = "specllama.bench-servers/1", 600.0


def main() -> None:
    args = arguments()
    files = Files(args.model, args.draft, args.slots, args.threads, args.ctx, tools(args.tools))
    if args.peer and not (files.tools / "llama-server").exists():
        raise cli.BadInput(f"{files.tools} has no llama-server")
    found = workloads.load_prompts(str(args.prompts)) if args.prompts else workloads.WORKLOADS
    settings = SweepSettings(
        prompts=prompts(found, max(args.concurrency), args.requests),
        concurrencies=args.concurrency,
        runs=1,
        n_tokens=args.n,
        temperature=0.0,
        ignore_eos=True,
    )
    ways = [OURS, *([PEER_DRAFT] if args.draft else []), PEER_PLAIN] if args.peer else [OURS]
    rates: dict[tuple[str, int, int], float] = {}
    health: dict[str, list[float | None]] = {}
    added: dict[str, Any] | None = None
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SPECLLAMA_CACHE"] = cache
        for run in range(1, args.runs + 1):
            for way in ways if run % 2 else reversed(ways):
                cells, latencies = asyncio.run(swept(way, files, dataclasses.replace(settings, first=run)))
                health.setdefault(way.name, []).append(quantile(latencies, 0.99) if latencies else None)
                for cell in cells:
                    name, rate = label(way.name, cell.cell.series), tps(cell)
                    if rate is not None:
                        rates[name, cell.cell.concurrency, run] = rate
                        at = f"concurrency {cell.cell.concurrency}"
                        print(f"run {run}: {name}, {at}: {rate:.2f} t/s", file=sys.stderr)
            write(args, files, figures(rates, health, added))
        if args.overhead:
            added = compared(files, settings)
    found_all = figures(rates, health, added)
    write(args, files, found_all)
    print("\n".join(lines(found_all)))


async def swept(
    way: Way, files: Files, settings: SweepSettings
) -> tuple[list[ServingMeasurement], list[float]]:
    """Starts a server and sweeps it; returns the cells and the latencies of /health in ms."""
    port, cells = free_port(), list[ServingMeasurement]()
    with running(way.command(files, port), port) as url:
        async with ServerClient(parse_address(url), "", "scripts.bench.server", TIMEOUT) as server:
            found = await server.info()
            series = [SPECULATIVE, PLAIN] if way == OURS and found.speculation else [SERVED]
            await warm_up(server, series, settings, found.model)
            with HealthPoller("127.0.0.1", port, 0.05) as health:
                await sweep(server, series, settings, found.model, cells, lambda _cell, _n: None)
    problem = next((a.problem for m in cells for a in m.answers if a.problem is not None), None)
    if problem is not None:
        raise problem
    return cells, [1000 * r.seconds for r in health.replies if r.status == 200]


def compared(files: Files, settings: SweepSettings) -> dict[str, Any]:
    """The overhead of HTTP between tokens."""
    port = free_port()
    with running([*OURS.command(files, port), "--no-calibrate"], port), engine(files) as client:
        return overhead(port, client, settings, files.target.stem)


def figures(
    rates: dict[tuple[str, int, int], float],
    health: dict[str, list[float | None]],
    added: dict[str, Any] | None,
) -> dict[str, Any]:
    """All figures."""
    return {
        "medians": medians(rates),
        "ratios": ratios(rates),
        "health": healths(health),
        "overhead": added,
        "cells": [
            {"way": name, "concurrency": c, "run": run, "tps": rate} for (name, c, run), rate in rates.items()
        ],
    }


def write(args: argparse.Namespace, files: Files, found: dict[str, Any]) -> None:
    """Writes the figures as JSON to --out, if it is given."""
    if args.out is None:
        return
    about = {
        "target": files.target.name, "draft": files.draft and files.draft.name, "n_slots": files.n_slots,
        "n_threads": files.n_threads, "n_ctx": files.n_ctx, "n": args.n, "runs": args.runs,
        "concurrency": args.concurrency, "machine": environment.machine(), "commit": environment.commit(),
        "binding": environment.binding(), "peer": environment.peer(files.tools) if args.peer else None,
        "command": environment.command(sys.argv),
    }  # fmt: skip
    replace(args.out, json.dumps({"schema": SCHEMA, "settings": about, **found}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True, metavar="TARGET")
    parser.add_argument("-md", "--draft", type=Path, metavar="DRAFT")
    parser.add_argument("--concurrency", type=cli.whole_list(1), default=[1, 4, 8])
    parser.add_argument("--runs", type=cli.whole(1), default=5, help="of every server")
    parser.add_argument("-n", type=cli.whole(2), default=64, help="tokens of an answer")
    parser.add_argument("--requests", type=cli.whole(1), help="at each concurrency")
    parser.add_argument("-np", "--slots", type=cli.whole(1), default=4)
    parser.add_argument("-t", "--threads", type=cli.whole(1), default=physical_cores())
    parser.add_argument(
        "-c",
        "--ctx",
        type=cli.whole(64),
        default=4096,
        help="tokens of the context of all slots",
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="as for `specllama bench --prompts`")
    parser.add_argument("--tools", type=Path, help="directory with llama.cpp's tools")
    parser.add_argument(
        "--no-overhead", dest="overhead", action="store_false", help="do not measure the overhead of HTTP"
    )
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="do not measure llama-server")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    if args.requests and args.requests < max(args.concurrency):
        parser.error(f"--requests {args.requests} are fewer than {max(args.concurrency)} clients")
    if args.requests and args.requests <= args.slots:
        parser.error(
            f"--requests must be above the {args.slots} slots, or prompts of plain answers are in the cache"
        )
    if args.out and (args.out.is_dir() or not args.out.parent.is_dir()):
        parser.error(f"--out needs a file in an existing directory, not {args.out}")
    for path in filter(None, (args.model, args.draft)):
        cli.gguf_file(path)
    return args


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
