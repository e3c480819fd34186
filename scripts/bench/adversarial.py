"""Adversarial texts and drafts by the clock: decode time by default over plain, and what is lost in t(1).

usage: -m scripts.bench.adversarial [-m TARGET -md DRAFT] [--only NAME,NAME] [--texts N] [-n TOKENS]
                            [--runs N]
                            [--seed N] [-c N] [-t N] [--out FILE.json]

  ignorant   a draft model that knows nothing (the draft, its weights shuffled) and no copies, which could
             hide what it costs, on the target's own text
  sure       the same, and sure of it
  switching  text that switches between copied and new every 50 tokens
  dropping   the target's own greedy text, then a text that it would not write
  noise      random tokens

All texts are given (teacher-forced), so that plain and default write the same; each case is a process of its
own that knows nothing of earlier ones, plain and default in turn. Of each text the medians over the runs,
added up over the texts: wanted is at most 1.03. "Of pairs" is the geometric mean over the pairs of runs, with
its 95 % interval: where a machine's speed changes, many short texts (--texts 40 -n 80 --runs 1) say more than
few long ones. Promised is for the whole process, all texts and runs: at most 1 % and 4 t(1) more than plain
decoding takes, t(1) being the time of a plain decode of one token. What a request loses (or, with a minus,
wins) is in t(1) too. The texts are made from the standard library of this Python. Run nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.measuring.adversaries import dropping, noise, sources, switching
from scripts.bench.measuring.engine import Task, Timed, Times, Vocab, turns
from scripts.bench.measuring.figures import Losses, losses
from scripts.bench.measuring.ignorant import write_ignorant
from scripts.demo_pair import cli
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import SpecllamaError
from specllama.models.memory.available import physical_cores

IGNORANT = ("ignorant", "sure")
CASES = (*IGNORANT, "switching", "dropping", "noise")
WANTED = 1.03
PROMPT = 300  # tokens


def main() -> None:
    args = arguments()
    rng = random.Random(args.seed)
    raw: dict[str, list[list[tuple[float, float]]]] = {}
    print("case       plain t/s  x plain  worst   of pairs (+-)  loss of a request  of the process, promised")
    with tempfile.TemporaryDirectory() as scratch:
        tasks = texts(args, rng)
        for name in args.only:
            draft = args.draft
            if name in IGNORANT:
                draft = Path(scratch) / f"{name}.gguf"
                write_ignorant(args.draft, draft, args.seed, name == "sure")
            found = measure(args, draft, tasks[name], rng, name not in IGNORANT)
            raw[name] = [[(t.plain.decode_seconds, t.auto.decode_seconds) for t in times] for times in found]
            print(line(name, losses(raw[name], args.n)), flush=True)
    if args.out:
        about = {"model": args.model.name, "draft": args.draft.name, "n": args.n, "n_threads": args.threads}
        args.out.write_text(json.dumps({**about, "seconds of plain and default": raw}), "utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("-m", "--model", type=Path, default=EMBEDDED_TARGET, help="the target, a GGUF file")
    parser.add_argument("-md", "--draft", type=Path, default=EMBEDDED_DRAFT, help="its draft")
    parser.add_argument("--only", type=names, default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--texts", type=int, default=6, help="texts of each case (default 6)")
    parser.add_argument("-n", type=int, default=256, help="tokens of a text (default 256)")
    parser.add_argument("--runs", type=int, default=5, help="of each text, plain and default (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the texts and of the order")
    parser.add_argument("-c", "--ctx", type=int, default=2048, help="tokens of the context (default 2048)")
    parser.add_argument("-t", "--threads", type=int, default=physical_cores())
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="all times, raw")
    args = parser.parse_args()
    if min(args.texts, args.runs, args.threads) < 1 or args.n < 2:
        parser.error("--texts, --runs and --threads must be 1 or more, -n 2 or more")
    if args.n + PROMPT + 16 > args.ctx:
        parser.error(f"-n {args.n} and a prompt do not fit: use -c {args.n + PROMPT + 16} or more")
    for path in (args.model, args.draft):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    return args


def names(text: str) -> list[str]:
    """Cases with commas."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for name in found:
        if name not in CASES:
            raise argparse.ArgumentTypeError(f"no case {name!r}; there are {', '.join(CASES)}")
    return found or list(CASES)


def texts(args: argparse.Namespace, rng: random.Random) -> dict[str, list[Task]]:
    """The tasks of all cases: the target's own texts are written here, plainly."""
    vocab = Vocab(args.model)
    ids = [vocab.ids(text) for text in sources(2 * args.texts, args.seed)]
    words = vocab.words()
    prompts = [vocab.prompt("")[:1] + text[:PROMPT] for text in ids[: args.texts]]
    others = [(text * (1 + args.n // len(text)))[: args.n] for text in reversed(ids)]
    vocab.close()
    with Timed(args.model, None, args.threads, args.ctx) as engine:
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
) -> list[list[Times]]:
    """Times of each text, run after run, in one process that begins without knowledge."""
    found: dict[str, list[Times]] = {task.name: [] for task in tasks}
    with Timed(args.model, draft, args.threads, args.ctx, copies) as engine:
        engine.write(tasks[0], auto=False)  # the first answer finds a cold machine
        for _, task in turns(tasks, args.runs, rng):
            found[task.name].append(engine.both(task, rng))
    return list(found.values())


def line(name: str, v: Losses) -> str:
    """A case in words."""
    return (
        f"{name:10} {1 / v.t1:9.1f}  {v.ratio:7.3f}  {v.worst:5.2f}  {v.pairs:.3f} {v.error:7.3f}  "
        f"{v.each:+12.1f} t(1)  "
        f"{v.lost:+10.1f} of {v.may:.1f} t(1), {'kept' if v.kept else 'broken'}"
        + (f"; above {WANTED}" if v.ratio > WANTED else "")
    )


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
