"""Decode time of the default over plain decoding on texts and drafts that are hard to speculate on.

usage: python -m scripts.bench.adversarial [-m TARGET -md DRAFT] [--only NAME,NAME] [--texts N] [-n TOKENS]
                                           [--runs N] [--seed N] [-c N] [-t N] [--out FILE.json]

  random     a draft model with random weights (the draft, shuffled) on the target's own text, without the
             copy drafter, which could hide its cost
  confident  the same, with confident predictions
  switching  text that switches between copied and new every 50 tokens
  dropping   the target's own greedy text, then a text that it would not write
  noise      random tokens

All texts are teacher-forced, so that both ways write the same text. Each case runs in a new process with an
empty cache, plain and default in turn. "x plain" is the ratio of the sums of the texts' medians over the
runs; it should be at most 1.03. "pairs" is the geometric mean over the pairs of runs with half of its 95 %
interval: if the machine's speed changes, many short texts (--texts 40 -n 80 --runs 1) say more than few long
ones. The allowance is for the whole process, all texts and runs: at most 1 % and 4 t(1) more than plain
decoding, where t(1) is the time of a plain decode of one token. Losses are in t(1), gains are negative. The
texts are made from the standard library of this Python. Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts import cli
from scripts.bench.measuring.adversarial_texts import STRETCH, dropping, noise, sources, switching
from scripts.bench.measuring.engine import PlainAndAuto, Task, TimedEngine, Vocab, turns
from scripts.bench.measuring.random_draft import write_random_draft
from scripts.figures import Overhead, overhead
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import SpecllamaError
from specllama.models.memory.available import physical_cores

RANDOM = ("random", "confident")
CASES = (*RANDOM, "switching", "dropping", "noise")
TARGET_RATIO = 1.03
PROMPT = 300  # tokens


def main() -> None:
    args = arguments()
    rng = random.Random(args.seed)
    raw: dict[str, list[list[tuple[float, float]]]] = {}
    print("case       plain t/s  x plain  worst     pairs (+-)    loss of a request  of the process, allowed")
    with tempfile.TemporaryDirectory() as scratch:
        tasks = texts(args, rng)
        for name in args.only:
            draft = args.draft
            if name in RANDOM:
                draft = Path(scratch) / f"{name}.gguf"
                write_random_draft(args.draft, draft, args.seed, name == "confident")
            found = measure(args, draft, tasks[name], rng, name not in RANDOM)
            raw[name] = [[(t.plain.decode_seconds, t.auto.decode_seconds) for t in times] for times in found]
            print(line(name, overhead(raw[name], args.n)), flush=True)
    if args.out:
        about = {"model": args.model.name, "draft": args.draft.name, "n": args.n, "n_threads": args.threads}
        args.out.write_text(json.dumps({**about, "seconds of plain and default": raw}), "utf-8")


def arguments() -> argparse.Namespace:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", type=Path, default=EMBEDDED_TARGET, help="the target, a GGUF file")
    parser.add_argument("-md", "--draft", type=Path, default=EMBEDDED_DRAFT, help="its draft")
    parser.add_argument("--only", type=names, default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--texts", type=cli.whole(1), default=6, metavar="N", help="texts of each case")
    parser.add_argument("-n", type=cli.whole(STRETCH), default=256, metavar="TOKENS", help="tokens of a text")
    parser.add_argument(
        "--runs", type=cli.whole(1), default=5, metavar="N", help="of each text, plain and default"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the texts and their order")
    parser.add_argument("-c", "--ctx", type=int, default=2048, help="tokens of the context")
    parser.add_argument("-t", "--threads", type=cli.whole(1), default=physical_cores(), metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="raw times")
    args = parser.parse_args()
    if args.n + PROMPT + 16 > args.ctx:
        parser.error(f"-n {args.n} and a prompt do not fit: use -c {args.n + PROMPT + 16} or more")
    for path in (args.model, args.draft):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    return args


def names(text: str) -> list[str]:
    """A comma-separated list of cases."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for name in found:
        if name not in CASES:
            raise argparse.ArgumentTypeError(f"no case {name!r}; there are {', '.join(CASES)}")
    return found or list(CASES)


def texts(args: argparse.Namespace, rng: random.Random) -> dict[str, list[Task]]:
    """The tasks of all cases. The target writes its own texts here, plainly."""
    vocab = Vocab(args.model)
    ids = [vocab.ids(text) for text in sources(2 * args.texts, args.seed)]
    words = vocab.words()
    prompts = [vocab.prompt("")[:1] + text[:PROMPT] for text in ids[: args.texts]]
    others = [(text * (1 + args.n // len(text)))[: args.n] for text in reversed(ids)]
    vocab.close()
    with TimedEngine(args.model, None, args.threads, args.ctx) as engine:
        own = [engine.write(Task("own", prompt, n=args.n), auto=False)[0] for prompt in prompts]
    written = {
        "own": own,
        "switching": [switching(p, other, args.n, rng) for p, other in zip(prompts, others, strict=False)],
        "dropping": [dropping(text, other, args.n) for text, other in zip(own, others, strict=False)],
        "noise": [noise(words, args.n, rng) for _ in prompts],
    }
    return {
        name: [
            Task(str(i), prompt, text)
            for i, (prompt, text) in enumerate(zip(prompts, written.get(name, own), strict=True))
        ]
        for name in CASES
    }


def measure(
    args: argparse.Namespace, draft: Path, tasks: Sequence[Task], rng: random.Random, copies: bool
) -> list[list[PlainAndAuto]]:
    """Times of each text, run after run, in a new process."""
    found: dict[str, list[PlainAndAuto]] = {task.name: [] for task in tasks}
    with TimedEngine(args.model, draft, args.threads, args.ctx, copies) as engine:
        engine.write(tasks[0], auto=False)  # the first answer warms up
        for _, task in turns(tasks, args.runs, rng):
            found[task.name].append(engine.both(task, rng))
    return list(found.values())


def line(name: str, v: Overhead) -> str:
    """A line of the table."""
    return (
        f"{name:10} {1 / v.t1:9.1f}  {v.ratio:7.3f}  {v.worst:5.2f}  {v.pairs:.3f} {v.error:7.3f}  "
        f"{v.each:+12.1f} t(1)  "
        f"{v.lost:+10.1f} of {v.allowed:.1f} t(1), {'kept' if v.kept else 'exceeded'}"
        + (f"; above {TARGET_RATIO}" if v.ratio > TARGET_RATIO else "")
    )


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
