"""specllama beside llama.cpp's own speculative tools: same files, prompts, threads and token counts, in turn.

usage: bench_peers.py --pairs DIR [--types f16,q8_0,q4_0,q4_k_m] [--costs 0.02,0.07,0.15] [--prompts FILE]
                      [--per-workload N] [--temps 0,0.8] [--runs N] [--no-draft] [--out FILE.md]

The tools are built from the source package of the installed llama-cpp-python (once, about 8 minutes; --tools
DIR takes what is built already). --pairs holds what make_bench_pair.py made. The grid point that counts as
llama.cpp's best is chosen for each cell on every other run and compared on the rest; plain is one of the
points. Writes a table and all raw figures. Run nothing beside it: with other work on the machine llama.cpp's
tools wait for each other at every operation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from peers.build import tools
from peers.points import Case, Point, points

from specllama.machine import physical_cores

Rates = dict[str, list[float]]  # point to tokens/s, run after run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--types", type=words, default=words("f16,q8_0,q4_0,q4_k_m"))
    parser.add_argument("--costs", type=words, default=words("0.02,0.07,0.15"))
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-workload", type=int, default=1)
    parser.add_argument("--temps", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.8])
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--no-draft", action="store_true", help="n-grams and copies alone")
    parser.add_argument("--tools", type=Path, help="a directory with llama.cpp's tools")
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-t", "--threads", type=int, default=physical_cores())
    parser.add_argument("--out", type=Path, help="Markdown file; the raw figures go beside it as JSON")
    args = parser.parse_args()
    if args.runs < 2:
        parser.error("--runs must be 2 or more: half of the runs choose, the other half compares")
    bin_ = tools(args.tools)
    compared = points(not args.no_draft)
    cells = {}
    for label, case in cases(args):
        cells[label] = measure(bin_, case, compared, args.runs)
        print(line(label, summary(cells[label], compared)), flush=True)
    if args.out:
        write(args.out, cells, compared)
    print("\n".join(totals([summary(rates, compared) for rates in cells.values()])))


def words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def cases(args: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    """A label and the requests of each cell: weights, draft cost, workload, temperature."""
    prompts: dict[str, list[str]] = json.loads(args.prompts.read_text("utf-8"))
    for kind in args.types:
        for cost in args.costs:
            target = args.pairs / f"bench-target-{kind}.gguf"
            draft = args.pairs / f"bench-draft-{kind}-c{cost}.gguf"
            for workload, texts in prompts.items():
                for temperature in args.temps:
                    requests = [
                        Case(target, draft, text, args.n, temperature, 1 + i, args.threads)
                        for i, text in enumerate(texts[: args.per_workload])
                    ]
                    yield f"{kind} {cost} {workload} T={temperature:g}", requests


def measure(bin_: Path, requests: Sequence[Case], compared: Sequence[Point], runs: int) -> Rates:
    """Every point on every request, the order of the points another one each time."""
    rates: Rates = {point.name: [] for point in compared}
    rng = random.Random(0)
    for _ in range(runs):
        for case in requests:
            for point in rng.sample(compared, len(compared)):
                rates[point.name].append(point.rate(bin_, case))
    return rates


def summary(rates: Rates, compared: Sequence[Point]) -> dict[str, float | str]:
    """Medians of the runs that compare; the best point of llama.cpp's was chosen on the others."""
    chosen = {name: statistics.median(found[0::2]) for name, found in rates.items()}
    median = {name: statistics.median(found[1::2]) for name, found in rates.items()}
    grid = [point.name for point in compared if point.kind != "ours"]
    best = max(grid, key=lambda name: chosen[name])
    ours = median["specllama"]
    found: dict[str, float | str] = {
        "best": best, "over plain": ours / median["specllama plain"], "over best": ours / median[best],
        "over llama.cpp plain": ours / median["plain"], "t/s": ours,
    }  # fmt: skip
    if "n_max 3" in median:
        found["over default"] = ours / median["n_max 3"]
    return found


def line(label: str, found: dict[str, float | str]) -> str:
    default = f"{found['over default']:.2f} x its default, " if "over default" in found else ""
    return (
        f"{label:28} {found['t/s']:7.1f} t/s, {found['over plain']:.2f} x plain, {default}"
        f"{found['over best']:.2f} x {found['best']}"
    )


def totals(cells: Sequence[dict[str, float | str]]) -> list[str]:
    """Geometric means and worst cells."""
    out = []
    for name in ("over plain", "over llama.cpp plain", "over default", "over best"):
        found = [float(cell[name]) for cell in cells if name in cell]
        if found:
            mean = math.exp(statistics.mean(map(math.log, found)))
            out.append(f"{name}: geometric mean {mean:.2f}, worst {min(found):.2f}")
    for label, plain in (("plain", True), ("not plain", False)):
        found = [float(cell["over best"]) for cell in cells if (cell["best"] == "plain") is plain]
        if found:
            mean = math.exp(statistics.mean(map(math.log, found)))
            out.append(f"over llama.cpp's best where that is {label}: {mean:.2f} over {len(found)} cells")
    return out


def write(path: Path, cells: dict[str, Rates], compared: Sequence[Point]) -> None:
    """The table as Markdown with the command and the machine, and all figures as JSON."""
    found = {label: summary(rates, compared) for label, rates in cells.items()}
    rows = [
        f"| {label} | {cell['t/s']:.1f} | {cell['over plain']:.2f} | "
        + (f"{cell['over default']:.2f}" if "over default" in cell else "")
        + f" | {cell['over best']:.2f} | {cell['best']} |"
        for label, cell in found.items()
    ]
    command = "scripts/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    text = [
        "# specllama beside llama.cpp's own tools", "",
        f"`{command}`, {time.strftime('%Y-%m-%d')}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores.",
        "", *totals(list(found.values())), "",
        "| cell | specllama, t/s | x plain | x llama.cpp's default | x its best | which is |",
        "|---|---|---|---|---|---|", *rows, "", f"Raw figures: {path.with_suffix('.json').name}", "",
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text), "utf-8")
    path.with_suffix(".json").write_text(json.dumps({"command": command, "rates": cells}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
