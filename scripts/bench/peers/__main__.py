"""specllama against llama.cpp's own speculative tools, with the same files, prompts, threads and token
counts.

usage: python -m scripts.bench.peers --pairs DIR [--types f16,q8_0,q4_0,q4_k_m] [--costs 0.02,0.07,0.15]
                                     [--prompts FILE] [--per-workload N] [--temps 0,0.8] [--runs N]
                                     [--no-draft] [--short-grid] [--spec-type draft-eagle3|draft-mtp]
                                     [-n TOKENS] [-t THREADS] [--tools DIR] [--out FILE.md] [--minutes N]
                                     [--fresh]

The tools are built from the source package of the installed llama-cpp-python (once, about 8 minutes) unless
--tools names their directory. --pairs is a directory as scripts.bench.make_pair writes it, with --spec-type
one whose drafts are heads. A prompts file is a JSON object, workload to list of prompts without a chat
template; the default is the prompts of `specllama bench` in ChatML. The grid point that counts as llama.cpp's
best is chosen for each cell on every other run and compared on the rest; plain decoding is one of the points.

--out writes a table and, next to it, all figures as JSON, updated after every cell. The same command
continues an earlier one, however that ended, with the missing cells; --minutes ends it after the cell in
which the time is up. Cells are ordered so that the first ones cover all weights, workloads and temperatures.
Figures of earlier commits and of other machines are kept and mentioned; --fresh measures everything again.
Cells that differ only in their draft models are measured together. Run nothing else on the machine: under
other load the threads of llama.cpp's tools wait for each other at every operation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts import cli
from scripts.bench.peers import environment
from scripts.bench.peers.build import tools
from scripts.bench.peers.cells import Cell, Figures, key, measure, spread, together
from scripts.bench.peers.points import CHATML, HEADS, OURS, SIMPLE, Case, grid
from scripts.bench.peers.raw import OtherSettings, Raw, replace
from scripts.bench.peers.table import TITLE, line, markdown, summary, totals
from specllama.bench.runner import WORKLOADS
from specllama.models.memory.available import physical_cores

Prompts = Mapping[str, list[str]]
FIRST = "What is a list comprehension?"


def main() -> None:
    args = arguments()
    bin_ = tools(args.tools)
    compared = grid(not args.no_draft, args.short_grid, args.spec_type)
    prompts = load_prompts(args.prompts)
    if args.no_draft:
        args.costs = ["none"]
    cells = spread(args.types, args.costs, list(prompts), args.temps)
    settings = {
        "n": args.n, "runs": args.runs, "n_threads": args.threads, "per_workload": args.per_workload,
        "grid": "short" if args.short_grid else "whole", "points": [point.name for point in compared],
        "spec_type": args.spec_type, "peer": environment.peer(bin_), "binding": environment.binding(),
    }  # fmt: skip
    cases = {cell: requests(cell, prompts, args) for cell in cells}
    raw = Raw(args.out and args.out.with_suffix(".json"), settings, args.fresh)
    commit, machine = environment.commit(), environment.machine()
    details = {"command": environment.command(sys.argv)}
    todo = [cell for cell in cells if raw.known(cell, key(cases[cell])) is None]
    report_known(raw, cells, todo, commit, machine)
    for cell in todo:
        raw.figures.pop(cell, None)
    planned = len({*cells, *raw.figures})
    began, known, n = time.monotonic(), set[tuple[str, str]](), 0
    for alike in together(todo):
        for cell in alike:
            if (cell.kind, cell.cost) not in known:
                known.add((cell.kind, cell.cost))
                warm_up(bin_, cases[cell][0])
        found = [(cases[cell], Figures(cell, key(cases[cell]), commit, machine, "")) for cell in alike]
        measure(bin_, found, compared, args.runs)
        for _, figures in found:
            n += 1
            raw.add(figures, details)
            print(f"{n:3}/{len(todo)} {line(summary(figures))}", flush=True)
        write(args.out, raw, details, planned)
        if args.minutes and time.monotonic() - began > 60 * args.minutes and n < len(todo):
            print(f"{args.minutes:g} minutes are over; the same command continues with {len(todo) - n} cells")
            break
    write(args.out, raw, details, planned)
    print("\n".join(totals([summary(figures) for figures in raw.figures.values()])))


def arguments() -> argparse.Namespace:
    parser = cli.parser(__doc__)
    parser.add_argument("--pairs", type=Path, required=True, metavar="DIR")
    parser.add_argument("--types", type=words, default=words("f16,q8_0,q4_0,q4_k_m"))
    parser.add_argument("--costs", type=words, default=words("0.02,0.07,0.15"))
    parser.add_argument("--prompts", type=Path, metavar="FILE")
    parser.add_argument("--per-workload", type=int, default=1, help="prompts of each workload")
    parser.add_argument("--temps", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.8])
    parser.add_argument("--runs", type=int, default=4, help="of each way of decoding")
    parser.add_argument("--no-draft", action="store_true", help="n-gram types and the copy drafter only")
    parser.add_argument("--short-grid", action="store_true", help="9 of llama.cpp's points instead of 16")
    parser.add_argument("--spec-type", choices=(SIMPLE, *HEADS), default=SIMPLE, help="of the drafts")
    parser.add_argument("--tools", type=Path, help="directory with llama.cpp's tools")
    parser.add_argument("-n", type=int, default=64, help="tokens of an answer")
    parser.add_argument("-t", "--threads", type=int, default=physical_cores())
    parser.add_argument(
        "--out", type=cli.output, metavar="FILE.md", help="page to write; the raw figures go to FILE.json"
    )
    parser.add_argument("--minutes", type=float, default=0, help="start no cell after this time")
    parser.add_argument("--fresh", action="store_true", help="measure the cells of --out again")
    args = parser.parse_args()
    if args.runs < 2:
        parser.error("--runs must be 2 or more: half of the runs choose, the other half compares")
    if args.no_draft and args.spec_type != SIMPLE:
        parser.error("--no-draft leaves out the heads that --spec-type names")
    if min(args.per_workload, args.n, args.threads) < 1 or args.minutes < 0:
        parser.error("--per-workload, -n and --threads must be 1 or more, --minutes 0 or more")
    if args.out and (args.out.suffix == ".json" or not args.out.parent.is_dir()):
        parser.error(f"--out needs the name of a Markdown file in a directory that is there, not {args.out}")
    if args.out and args.out.exists() and not args.out.read_text("utf-8", "replace").startswith(TITLE):
        parser.error(f"{args.out} is not a page of scripts.bench.peers and is not overwritten")
    for kind in args.types:
        names = [f"bench-target-{kind}.gguf"]
        names += [] if args.no_draft else [f"bench-draft-{kind}-c{cost}.gguf" for cost in args.costs]
        for name in names:
            if not (args.pairs / name).is_file():
                made = ": python -m scripts.bench.make_pair makes it" if args.spec_type == SIMPLE else ""
                parser.error(f"{args.pairs} has no {name}{made}")
    return args


def words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def warm_up(bin_: Path, case: Case) -> None:
    """Run an unmeasured answer, from which specllama learns about the machine and the pair."""
    ours = next(point for point in grid(case.draft is not None) if point.name == OURS)
    ours.run(bin_, dataclasses.replace(case, prompt=CHATML.format(FIRST)))


def load_prompts(path: Path | None) -> Prompts:
    """Prompts without a chat template, by workload."""
    if path is None:
        return {name: [CHATML.format(text) for text in texts] for name, texts in WORKLOADS.items()}
    try:
        found = json.loads(path.read_text("utf-8"))
        return {name: [str(text) for text in texts] for name, texts in found.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise SystemExit(f"--prompts: {path} is not a JSON object of lists: {error}") from None


def requests(cell: Cell, prompts: Prompts, args: argparse.Namespace) -> list[Case]:
    """The requests of a cell."""
    target = args.pairs / f"bench-target-{cell.kind}.gguf"
    draft = None if args.no_draft else args.pairs / f"bench-draft-{cell.kind}-c{cell.cost}.gguf"
    return [
        Case(target, draft, text, args.n, cell.temperature, 1 + i, args.threads)
        for i, text in enumerate(prompts[cell.workload][: args.per_workload])
    ]


def report_known(raw: Raw, cells: list[Cell], todo: list[Cell], commit: str, machine: str) -> None:
    """Print how many cells are known, and how many of these come from other commits or machines."""
    if len(todo) < len(cells):
        print(f"{len(cells) - len(todo)} of {len(cells)} cells are known", file=sys.stderr)
    changed = [cell for cell in todo if cell in raw.figures]
    if changed:
        print(f"{len(changed)} are measured again: their prompts or files have changed", file=sys.stderr)
    known = [f for f in raw.figures.values() if f.cell not in todo]
    for other in sorted({f.commit for f in known} - {commit}):
        n = sum(f.commit == other for f in known)
        print(f"{n} with specllama {other}, this is {commit}; --fresh measures again", file=sys.stderr)
    for other in sorted({f.machine for f in known} - {machine}):
        n = sum(f.machine == other for f in known)
        print(f"{n} on another machine ({other}), this is {machine}; --fresh measures again", file=sys.stderr)


def write(out: Path | None, raw: Raw, details: Mapping[str, Any], planned: int) -> None:
    """Writes the page of all known figures to `out`, if there is one."""
    figures, settings = list(raw.figures.values()), raw.settings
    if out is None or not figures:
        return
    dates = sorted({f.date for f in figures})
    more = {
        "commits": sorted({f.commit for f in figures}),
        "dates": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        "peer_points": [name for name in settings["points"] if not name.startswith("specllama")],
        "planned": planned,
        "raw": out.with_suffix(".json").name,
    }
    replace(out, markdown(figures, {**details, **settings, **more}))


if __name__ == "__main__":
    cli.run(main, OtherSettings)
