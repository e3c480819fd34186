"""Time of renames without a draft model: specllama's copy drafter against llama.cpp's n-gram types.

usage: python -m scripts.bench.renames [-m TARGET] [--cases N] [--runs N] [--seed N] [-c N] [-t N]
                                       [--tools DIR | --no-peers] [--minutes N] [--out FILE.json]

A variable of a function of the standard library of this Python gets another name (by the syntax tree). The
prompt is the code and the instruction, the text the renamed code, which is teacher-forced, so that any target
can be measured.

specllama drafts, decodes and samples each token of it. llama.cpp's tools cannot be forced, but a grammar that
admits only this text, token by token, makes them write the same ids. The grammar takes about the same time
for each token, so it is part of their plain decoding too, whose time is that of decoding and sampling. The
gains are compared: specllama's default over its plain decoding, without a grammar, against llama.cpp's
n-grams over its plain decoding, with the grammar; and the same with llama.cpp's sampling time, grammar
included, subtracted from both of its times, which gives an upper bound of its gain. Absolute rates in tokens
per second include the grammar.

Figures are medians of interleaved runs. specllama's engine stays loaded and learns from text to text, as in a
chat, but its cache is empty at first. The tools are built once (8 minutes) unless --tools names their
directory; --no-peers measures specllama alone; --minutes starts no text after that time. A run of a text
takes about a minute on a small machine. Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts import cli
from scripts.bench.measuring import CHATML
from scripts.bench.measuring.engine import Task, TimedEngine, Vocab, turns
from scripts.bench.measuring.renames import Rename, renames
from scripts.bench.peers.build import tools
from scripts.bench.peers.points import Case, Measured, Point, literal, ngrams
from scripts.figures import mean, ranged
from specllama.data import EMBEDDED_TARGET
from specllama.errors import SpecllamaError
from specllama.models.memory.available import physical_cores

OURS, OUR_PLAIN, THEIR_PLAIN = "specllama", "specllama plain", "plain"
BARE = " without sampling"
MAX_PROMPT = 2000  # tokens; llama.cpp's tool decodes a prompt in one batch
Rates = dict[str, list[float]]  # way of decoding → tokens per second, run after run


@dataclass(frozen=True)
class RenameTask:
    """A rename with its prompt, and the ids of prompt and text."""

    rename: Rename
    prompt: str
    task: Task
    ids: Sequence[int]


def main() -> None:
    args = arguments()
    bin_ = None if args.no_peers else tools(args.tools)
    cases = written(args)
    if not cases:
        raise SystemExit("no rename fits the context: use a larger -c")
    found = measure(args, cases, bin_)
    cases = [case for case in cases if found[case.rename.where]]
    for case in cases:
        print(line(case, medians(found[case.rename.where])))
    print("\n".join(totals([medians(found[case.rename.where]) for case in cases])))
    if args.out:
        raw = [
            {**asdict(c.rename), "n_tokens": len(c.ids), "tokens_per_second": found[c.rename.where]}
            for c in cases
        ]
        about = {"model": args.model.name, "runs": args.runs, "seed": args.seed, "n_threads": args.threads}
        args.out.write_text(json.dumps({**about, "cases": raw}, indent=1), "utf-8")


def arguments() -> argparse.Namespace:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", type=Path, default=EMBEDDED_TARGET, help="the target, a GGUF file")
    parser.add_argument("--cases", type=int, default=24, help="renames")
    parser.add_argument("--runs", type=int, default=5, help="of each way of decoding")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of functions and names")
    parser.add_argument("--tools", type=Path, help="a directory with llama.cpp's tools")
    parser.add_argument("--no-peers", action="store_true", help="specllama alone")
    parser.add_argument("-c", "--ctx", type=int, default=4096, help="tokens of the context")
    parser.add_argument("-t", "--threads", type=int, default=physical_cores())
    parser.add_argument("--minutes", type=float, default=0, help="start no text after this time")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="raw figures")
    args = parser.parse_args()
    if min(args.cases, args.runs, args.threads) < 1 or args.minutes < 0:
        parser.error("--cases, --runs and --threads must be 1 or more, --minutes above 0")
    if not args.model.is_file():
        parser.error(f"there is no file {args.model}")
    return args


def written(args: argparse.Namespace) -> list[RenameTask]:
    """The renames that fit the context, with their ids."""
    vocab, found = Vocab(args.model), []
    for rename in renames(2 * args.cases, args.seed):
        prompt = CHATML.format(rename.instruction)
        prompt_ids, ids = vocab.prompt(prompt), vocab.ids(rename.answer)
        if len(prompt_ids) <= MAX_PROMPT and len(prompt_ids) + len(ids) < args.ctx:
            found.append(RenameTask(rename, prompt, Task(rename.where, prompt_ids, ids), ids))
    vocab.close()
    return found[: args.cases]


def measure(args: argparse.Namespace, cases: Sequence[RenameTask], bin_: Path | None) -> dict[str, Rates]:
    """The rates of each rename, decoded in every way before the next one, in random order."""
    rng = random.Random(args.seed)
    by_name = {case.rename.where: case for case in cases}
    found: dict[str, Rates] = {name: defaultdict(list) for name in by_name}
    with (
        TimedEngine(args.model, None, args.threads, args.ctx) as engine,
        tempfile.TemporaryDirectory() as scratch,
    ):
        engine.write(cases[0].task, auto=False)  # the first answer warms up
        began = time.monotonic()
        for _, task in turns([case.task for case in cases], args.runs, rng):
            if args.minutes and time.monotonic() - began > 60 * args.minutes:
                print(f"{args.minutes:g} minutes are over")
                break
            rates, times = found[task.name], engine.both(task, rng)
            rates[OURS].append(times.auto.decode_tps or 0.0)
            rates[OUR_PLAIN].append(times.plain.decode_tps or 0.0)
            if bin_ is not None:
                measure_peers(by_name[task.name], args, bin_, Path(scratch), rng, rates)
    return found


def measure_peers(
    case: RenameTask, args: argparse.Namespace, bin_: Path, scratch: Path, rng: random.Random, rates: Rates
) -> None:
    """Measures llama.cpp's tools on a rename. Ends the script if they write another text."""
    grammar = scratch / "text.gbnf"
    grammar.write_text(literal(case.ids), "utf-8")
    n = len(case.ids) + 8  # the grammar ends the text
    once = Case(args.model, None, case.prompt, n, 0.0, 1, args.threads, args.ctx, grammar)
    points = [Point(THEIR_PLAIN, "plain"), *ngrams()]
    for point in rng.sample(points, len(points)):
        run: Measured = point.run(bin_, once)
        if case.rename.answer not in run.text:
            raise SystemExit(f"{point.name} wrote another text for {case.rename.where}:\n{run.text[-2000:]}")
        rates[point.name].append(run.rate)
        rates[point.name + BARE].append(run.n / (run.seconds - run.sampling))


def medians(rates: Rates) -> dict[str, float]:
    return {way: statistics.median(found) for way, found in rates.items()}


def gains(median: Mapping[str, float], bare: bool = False) -> dict[str, float]:
    """The gain of each n-gram type of llama.cpp over its plain decoding."""
    end = BARE if bare else ""
    return {p.name: median[p.name + end] / median[THEIR_PLAIN + end] for p in ngrams() if p.name in median}


def line(case: RenameTask, median: Mapping[str, float]) -> str:
    """A line for a rename."""
    gain, theirs = median[OURS] / median[OUR_PLAIN], gains(median)
    text = f"{case.rename.where:44.44} {len(case.ids):5} tokens  {gain:5.2f} x plain"
    if theirs:
        best = max(theirs, key=lambda name: theirs[name])
        text += f"  llama.cpp {theirs[best]:5.2f} x ({best})"
    return text


def totals(cells: Sequence[Mapping[str, float]]) -> list[str]:
    """The lines of the totals: geometric means over the renames, smallest and largest."""
    ours = [cell[OURS] / cell[OUR_PLAIN] for cell in cells]
    rate = mean(cell[OURS] for cell in cells)
    row = "{:18} {:22} {:9} {:9} {:22} {:22}".format
    out = [
        f"{len(cells)} renames; geometric means, with the smallest and the largest in brackets",
        row("", "x its plain decoding", "the same*", "tokens/s", "specllama's gain over", "the same*"),
        row("specllama", ranged(ours), "", f"{rate:.1f}", "", ""),
    ]
    for name in gains(cells[0]):
        theirs, bare = ([gains(cell, b)[name] for cell in cells] for b in (False, True))
        over, over_bare = ([a / b for a, b in zip(ours, each, strict=True)] for each in (theirs, bare))
        rate = mean(cell[name] for cell in cells)
        out.append(
            row(name, ranged(theirs), f"{mean(bare):.2f}", f"{rate:.1f}", ranged(over), ranged(over_bare))
        )
    if gains(cells[0]):
        best, best_bare = (
            [a / max(gains(cell, b).values()) for a, cell in zip(ours, cells, strict=True)]
            for b in (False, True)
        )
        out.append(row("best of each text", "", "", "", ranged(best), ranged(best_bare)))
        plain = mean(cell[OUR_PLAIN] / cell[THEIR_PLAIN] for cell in cells)
        bare_plain = mean(cell[OUR_PLAIN] / cell[THEIR_PLAIN + BARE] for cell in cells)
        out.append("* without the time that llama.cpp spends on sampling, grammar included")
        out.append(f"plain over llama.cpp's plain: {plain:.2f}, over its decodes alone {bare_plain:.2f}")
    return [line.rstrip() for line in out]


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
