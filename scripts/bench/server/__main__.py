"""specllama serve beside llama.cpp's llama-server: same files, slots, threads and requests, in turn.

usage: -m scripts.bench.server -m TARGET [-md DRAFT] [--concurrency 1,4,8] [--runs N] [-n TOKENS]
                       [--requests N]
                       [-np SLOTS] [-t THREADS] [-c CTX] [--prompts FILE] [--tools DIR] [--out FILE.json]
                       [--no-overhead] [--no-peer]

In each run every server is started, sweeps over the concurrencies and is ended, forwards in one run and
backwards in the next. specllama answers each request by its default and plainly, in turn; llama-server is
started with the draft (its default length; the type has to be named, -md alone does not switch it on) and
without. All write -n tokens (ignore_eos), greedily. What is compared are tokens per second of all clients;
of ratios the medians over the runs are printed. While a server is swept another process asks its /health.

Behind the runs: the same plainly decoded requests through HTTP and by an engine process of this script's own,
in turn; the difference of their times between tokens is what the front adds. A client that does little beside
reads them.

--tools takes llama-server from a directory, without it it is built from the source package of the installed
llama-cpp-python (once, about 8 minutes). Figures are written to --out after every run. Nothing that was
learnt in earlier processes helps: specllama's cache directory is empty at first. Run nothing beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from scripts.bench.peers import about
from scripts.bench.peers.build import tools
from scripts.bench.peers.raw import replace
from scripts.bench.server.health import Health, p99
from scripts.bench.server.overhead import engine, overhead
from scripts.bench.server.programs import OURS, PEER_DRAFT, PEER_PLAIN, Files, Way, free_port, running
from scripts.bench.server.table import healths, label, lines, medians, ratios
from scripts.demo_pair import cli
from specllama.bench import workloads
from specllama.bench.serving.client import ServerClient, address
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

SCHEMA, SECONDS = "specllama.bench-servers/1", 600.0


def main() -> None:
    args = arguments()
    files = Files(args.model, args.draft, args.slots, args.threads, args.ctx, tools(args.tools))
    if args.peer and not (files.tools / "llama-server").exists():
        raise cli.BadInput(f"{files.tools} has no llama-server")
    found = workloads.load_prompts(str(args.prompts)) if args.prompts else workloads.WORKLOADS
    wanted = SweepSettings(
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
                cells, latencies = asyncio.run(swept(way, files, changed(wanted, first=run)))
                health.setdefault(way.name, []).append(p99(latencies))
                for cell in cells:
                    name, rate = label(way.name, cell.cell.series), tps(cell)
                    if rate is not None:
                        rates[name, cell.cell.concurrency, run] = rate
                        at = f"concurrency {cell.cell.concurrency}"
                        print(f"run {run}: {name}, {at}: {rate:.2f} t/s", file=sys.stderr)
            write(args, files, told(rates, health, added))
        if args.overhead:
            added = compared(files, wanted)
    found_all = told(rates, health, added)
    write(args, files, found_all)
    print("\n".join(lines(found_all)))


async def swept(
    way: Way, files: Files, wanted: SweepSettings
) -> tuple[list[ServingMeasurement], list[float]]:
    """The cells of a server that is started for them, and the latencies of its /health, ms."""
    port, cells = free_port(), list[ServingMeasurement]()
    with running(way.command(files, port), port) as url:
        async with ServerClient(address(url), "", "bench_server", SECONDS) as server:
            found = await server.about()
            series = [SPECULATIVE, PLAIN] if way == OURS and found.speculation else [SERVED]
            await warm_up(server, series, wanted, found.model)
            with Health(port) as health:
                await sweep(server, series, wanted, found.model, cells, lambda _cell, _n: None)
    problem = next((a.problem for m in cells for a in m.answers if a.problem is not None), None)
    if problem is not None:
        raise problem
    return cells, health.found


def compared(files: Files, wanted: SweepSettings) -> dict[str, Any]:
    """What HTTP adds to the time between tokens."""
    port = free_port()
    with running([*OURS.command(files, port), "--no-calibrate"], port), engine(files) as client:
        return overhead(port, client, wanted, files.target.stem)


def told(
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
    """The figures as JSON, where --out names a file."""
    if args.out is None:
        return
    settings = {
        "target": files.target.name, "draft": files.draft and files.draft.name, "n_slots": files.n_slots,
        "n_threads": files.n_threads, "n_ctx": files.n_ctx, "n": args.n, "runs": args.runs,
        "concurrency": args.concurrency, "machine": about.machine(), "commit": about.commit(),
        "binding": about.binding(), "peer": about.peer(files.tools) if args.peer else None,
        "command": about.command(sys.argv),
    }  # fmt: skip
    replace(args.out, json.dumps({"schema": SCHEMA, "settings": settings, **found}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("-m", "--model", type=Path, required=True, metavar="TARGET")
    parser.add_argument("-md", "--draft", type=Path, metavar="DRAFT")
    parser.add_argument("--concurrency", type=numbers, default=[1, 4, 8], help="(default 1,4,8)")
    parser.add_argument("--runs", type=cli.whole(1), default=5, help="of every server (default 5)")
    parser.add_argument("-n", type=cli.whole(2), default=64, help="tokens of an answer (default 64)")
    parser.add_argument("--requests", type=cli.whole(1), help="of each sweep's concurrency (default: 24)")
    parser.add_argument("-np", "--slots", type=cli.whole(1), default=4, help="(default 4)")
    parser.add_argument("-t", "--threads", type=cli.whole(1), default=physical_cores())
    parser.add_argument("-c", "--ctx", type=cli.whole(64), default=4096, help="of all slots (default 4096)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="as of `specllama bench --prompts`")
    parser.add_argument("--tools", type=Path, help="a directory with llama.cpp's tools")
    parser.add_argument("--no-overhead", dest="overhead", action="store_false", help="compare servers alone")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="without llama-server")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    if args.requests and args.requests < max(args.concurrency):
        parser.error(f"--requests {args.requests} are fewer than {max(args.concurrency)} clients")
    if args.requests and args.requests <= args.slots:
        parser.error(
            f"--requests must be above the {args.slots} slots, or plain answers find their prompts there"
        )
    if args.out and (args.out.is_dir() or not args.out.parent.is_dir()):
        parser.error(f"--out needs a file in a directory that is there, not {args.out}")
    for path in filter(None, (args.model, args.draft)):
        cli.gguf_file(path)
    return args


def numbers(text: str) -> list[int]:
    """A list of numbers of clients."""
    return sorted({cli.whole(1)(part) for part in text.split(",") if part.strip()}) or [1]


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
