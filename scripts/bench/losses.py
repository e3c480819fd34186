"""The loss of the default against plain decoding on texts with few repeats, and its causes.

usage: python -m scripts.bench.losses [-m TARGET] [-n TOKENS] [--pairs N] [--seed N] [-c N] [-t N]
                                      [--out FILE.json]

Twenty short prompts in a chat (questions, stories, facts, code), greedy, each answered by the default without
a draft model (`-md none`) and plainly, --pairs times, in random order in one engine process. Request history
is off, as the prompts repeat. Times are per token, so that answers of different lengths can be compared.

The ratio is the median over the prompts of the median over their pairs of decode times, default over plain,
with its 95 % bootstrap interval (prompts and pairs are resampled). The difference of the times is attributed
exactly:

  planner    the policy and the drafters: time of a round outside decoding and sampling
  sampling   sampling, which checks each draft token
  wide       decodes of several rows, minus t(1) for each token that they gave; negative where drafts pay
  narrow     decodes of a single row, minus t(1) each: the effect of drafting on plain rounds, and noise

t(1) is the mean time of a plain decode of the same prompt. All of them together may cost 1 % and 4 t(1) for
the process (the speculation budget). Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts import cli
from scripts.bench.measuring.engine import PlainAndAuto, Task, TimedEngine, turns
from scripts.figures import OVERHEAD_SHARE, OVERHEAD_TOKENS, mean
from specllama.bench.intervals import Estimate, estimate
from specllama.core.stats import RunStats
from specllama.data import EMBEDDED_TARGET
from specllama.errors import SpecllamaError
from specllama.models.memory.available import physical_cores

PROMPTS = {
    "question": (
        "Why is the sky blue during the day and red in the evening?",
        "How does a refrigerator keep food cold?",
        "What is the difference between weather and climate?",
        "Why do cats purr?",
        "How do I remove a coffee stain from a wool carpet?",
    ),
    "story": (
        "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
        "Write a story about a robot that learns to paint.",
        "Tell me about a child who discovers a door behind the bookshelf.",
        "Write the opening of a mystery set on a night train through the mountains.",
        "Describe a market in a desert town on the morning of a festival.",
    ),
    "facts": (
        "Tell me about the history of the printing press.",
        "What are the main causes of the First World War?",
        "Describe the life cycle of a butterfly.",
        "What is known about the planet Neptune?",
        "Explain how vaccines protect the body.",
    ),
    "code": (
        "Write a Python function that returns the n-th Fibonacci number.",
        "Explain what a hash table is and when to use one.",
        "Write a shell command that finds all files larger than ten megabytes.",
        "How does binary search work?",
        "Write a SQL query that counts the orders of each customer.",
    ),
}
CAUSES = ("planner", "sampling", "wide", "narrow")


@dataclass(frozen=True)
class Loss:
    """The difference between a default and a plain answer to the same prompt.

    ratio: decode time per token, default over plain. t1: seconds of a plain decode of one row. plain: seconds
    per token of the plain answer. causes: the difference in seconds per token of the default's answer, by
    CAUSES. n_drafted, n_accept, n_tokens: of the default's answer.
    """

    ratio: float
    t1: float
    plain: float
    causes: Mapping[str, float]
    n_drafted: int
    n_accept: int
    n_tokens: int


def loss(plain: RunStats, auto: RunStats) -> Loss | None:
    """The loss of a pair; None if an answer has no decode."""
    n_plain, n = plain.n_predict - 1, auto.n_predict - 1  # the prompt gives the first token
    if min(n_plain, n) < 1:
        return None
    t1 = plain.verify_seconds / n_plain
    n_narrow, narrow = auto.round_seconds.get(1, (0, 0.0))
    wide = auto.verify_seconds - narrow
    shares, base = auto.time_shares, plain.time_shares

    def outside(of: Mapping[str, float]) -> float:
        return of["draft"] + of["other"]

    return Loss(
        ratio=(auto.decode_seconds / n) / (plain.decode_seconds / n_plain),
        t1=t1,
        plain=plain.decode_seconds / n_plain,
        causes={
            "planner": outside(shares) / n - outside(base) / n_plain,
            "sampling": shares["sampling"] / n - base["sampling"] / n_plain,
            "wide": (wide - t1 * (n - n_narrow)) / n,
            "narrow": (narrow - t1 * n_narrow) / n,
        },
        n_drafted=auto.n_drafted,
        n_accept=auto.n_accept,
        n_tokens=n,
    )


def ratio(losses: Sequence[Sequence[Loss]]) -> Estimate | None:
    """The median of the ratios over prompts, with its interval. losses: by prompt."""
    return estimate([[[one.ratio for one in of_prompt] for of_prompt in losses]])


def shares(losses: Sequence[Loss]) -> dict[str, float]:
    """The loss by cause, as shares of plain decoding's time for the same tokens."""
    plain = sum(one.plain * one.n_tokens for one in losses) or 1.0
    return {c: sum(one.causes[c] * one.n_tokens for one in losses) / plain for c in CAUSES}


def measure(args: argparse.Namespace) -> dict[str, dict[str, list[PlainAndAuto]]]:
    """kind → prompt → its pairs of statistics."""
    rng, kinds = random.Random(args.seed), {p: kind for kind, prompts in PROMPTS.items() for p in prompts}
    tasks = [Task(prompt, prompt, n=args.n, ignore_eos=False) for prompt in kinds]
    found: dict[str, dict[str, list[PlainAndAuto]]] = {
        kind: {p: [] for p in PROMPTS[kind]} for kind in PROMPTS
    }
    with TimedEngine(args.model, None, args.threads, args.ctx) as engine:
        for auto in (False, True):  # the first answers warm up
            engine.write(tasks[0], auto)
        for _, task in turns(tasks, args.pairs, rng):
            found[kinds[task.name]][task.name].append(engine.both(task, rng))
    return found


def report(found: Mapping[str, Mapping[str, Sequence[PlainAndAuto]]]) -> list[str]:
    """The lines of the table, and the totals."""
    form = "{:10}{:>9}{:>9}{:>16}" + "{:>10}" * len(CAUSES) + "{:>10}{:>10}"
    lines = [form.format("", "t(1) ms", "default", "95 %", *CAUSES, "drafted", "accepted")]
    every: list[list[Loss]] = []
    for kind, prompts in found.items():
        losses = [[one for pair in pairs if (one := loss(*pair))] for pairs in prompts.values()]
        losses = [of_prompt for of_prompt in losses if of_prompt]
        every += losses
        lines.append(_line(form, kind, losses))
    lines.append(_line(form, "all", every))
    flat = [one for of_prompt in every for one in of_prompt]
    if flat:
        t1 = mean(one.t1 for one in flat)
        lost = sum(sum(one.causes.values()) * one.n_tokens for one in flat) / t1
        allowed = OVERHEAD_SHARE * sum(one.plain * one.n_tokens for one in flat) / t1 + OVERHEAD_TOKENS
        lines.append(f"lost {lost:.1f} t(1) of {allowed:.1f} that are allowed for {len(flat)} answers")
    return lines


def _line(form: str, name: str, losses: Sequence[Sequence[Loss]]) -> str:
    e, flat = ratio(losses), [one for of_prompt in losses for one in of_prompt]
    if e is None:
        return f"{name:10} nothing was measured"
    interval = "-" if e.low is None or e.high is None else f"{e.low:.3f} - {e.high:.3f}"
    percent = [f"{100 * share:+.2f} %" for share in shares(flat).values()]
    drafted, accepted = (sum(getattr(one, name) for one in flat) for name in ("n_drafted", "n_accept"))
    t1 = 1000 * mean(one.t1 for one in flat)
    return form.format(name, f"{t1:.2f}", f"{e.value:.3f}", interval, *percent, drafted, accepted)


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", type=Path, default=EMBEDDED_TARGET, help="a GGUF file")
    parser.add_argument("-n", type=cli.whole(2), default=200, help="tokens of an answer")
    parser.add_argument("--pairs", type=cli.whole(1), default=5, help="of answers for each prompt")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("-c", "--ctx", type=cli.whole(64), default=1024, help="tokens of the context")
    parser.add_argument("-t", "--threads", type=cli.whole(1), default=physical_cores())
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="raw statistics")
    args = parser.parse_args()
    cli.gguf_file(args.model)
    found = measure(args)
    print("\n".join(report(found)))
    if args.out:
        pairs = {
            prompt: [{"plain": p.plain.to_dict(), "auto": p.auto.to_dict()} for p in of_prompt]
            for prompts in found.values()
            for prompt, of_prompt in prompts.items()
        }
        about = {"model": args.model.name, "n": args.n, "n_threads": args.threads}
        args.out.write_text(json.dumps({**about, "pairs": pairs}, indent=1), "utf-8")


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
