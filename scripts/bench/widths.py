"""What one width for a text gains: the default, `--exact-width N` and plain decoding, text by text in turn.

usage: python -m scripts.bench.widths [-m TARGET] [-md DRAFT] [--widths 8,16] [--temps 0,0.8] [--texts N]
                                      [-n TOKENS] [--prompts FILE] [-c N] [-t N] [-ngl N] [--json]

Each configuration has a process of its own. All are loaded, have written a text, and have measured what an
idle engine measures before the first text counts, so that none disturbs another. The requests of a prompt
follow each other directly, every time in another order, and nothing is remembered between texts but the
acceptance of the pair. --prompts: a JSON object, workload to list of prompts that the draft was not trained
on; without it those of `scripts.bench.texts`. Without -m the embedded pair writes.

For each configuration and temperature it prints the speed over that of plain decoding of one row (median and
worst text), how many texts a second request for the same wrote again (again), and how many were the same
without drafts (alone): of --exact-width without drafts, of the default with one width W those of
--exact-width W, if W is among --widths, else those of plain decoding. --json prints every text's figures in a
line instead. Exit code 1 if a text differs that may not: any of --exact-width, or one of the default again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from statistics import median
from typing import NamedTuple

from scripts import cli
from scripts.bench.texts import questions
from specllama import LLM, CompletionOutput
from specllama.bench.runner import load_prompts
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import SpecllamaError

DEFAULT, PLAIN = "default", "plain"


class Text(NamedTuple):
    """A text of a configuration. over_plain: its speed over that of plain decoding. again, alone: whether it
    was written again, and without drafts; None where nothing says so. width: of all its decodes, None where
    that could change.
    """

    name: str
    temperature: float
    over_plain: float
    again: bool
    alone: bool | None
    width: int | None
    changes: list[tuple[int, int]]
    n_drafted: int
    n_accept: int


def engines(args: argparse.Namespace, stack: ExitStack) -> dict[str, LLM]:
    """All of them, loaded one after another; none has anything left to measure."""

    def engine(**more: object) -> LLM:
        options = {"max_num_seqs": 1, "max_model_len": args.ctx, "n_threads": args.threads, "memory": False}
        if args.n_gpu_layers is not None:
            options["n_gpu_layers"] = args.n_gpu_layers
        return stack.enter_context(LLM(args.model, **options, **more))

    made = {PLAIN: engine(drafters=()), DEFAULT: engine(speculative_model=args.draft)}
    for width in args.widths:
        made[f"exact {width}"] = engine(speculative_model=args.draft, exact=True, exact_width=width)
    for one in made.values():
        one.generate("def ", {"max_tokens": args.n, "ignore_eos": True})
        client = one._engine.client()
        while client.calibrate(1.0).unmeasured:
            pass
    return made


def measure(args: argparse.Namespace, models: dict[str, LLM]) -> Iterator[Text]:
    """The texts of all configurations, prompt by prompt."""
    named = load_prompts(args.prompts).values() if args.prompts else ()
    given = [prompt for prompts in named for prompt in prompts] or questions()
    every = list(islice(given, args.texts))
    names = list(models)
    for temperature in args.temps:
        for i, prompt in enumerate(every):
            params = {"temperature": temperature, "max_tokens": args.n, "seed": i, "ignore_eos": True}

            def write(name: str, speculate: bool = True) -> CompletionOutput:
                chat = [{"role": "user", "content": prompt}]  # noqa: B023
                return models[name].chat(chat, params, speculate=speculate)[0].outputs[0]  # noqa: B023

            at = i % len(names)
            first = {name: write(name) for name in (*names[at:], *names[:at])}
            again = {name: write(name) for name in reversed(names)}
            alone = {name: write(name, False) for name in names if name != DEFAULT}
            width = first[DEFAULT].stats.exact_width
            same_width = f"exact {width}" if width not in (None, 1) else PLAIN
            if same_width in alone:
                alone[DEFAULT] = alone[same_width]
            plain_tps = first[PLAIN].stats.decode_tps or 1.0
            for name, one in first.items():
                stats, other = one.stats, alone.get(name)
                yield Text(
                    name, temperature, (stats.decode_tps or 0.0) / plain_tps,
                    again[name].token_ids == one.token_ids,
                    other.token_ids == one.token_ids if other is not None else None,
                    stats.exact_width, stats.width_changes, stats.n_drafted, stats.n_accept,
                )  # fmt: skip


def share(values: list[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known)} of {len(known)}"


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", metavar="TARGET", default=str(EMBEDDED_TARGET))
    parser.add_argument("-md", "--draft", metavar="DRAFT", default=str(EMBEDDED_DRAFT))
    parser.add_argument("--widths", type=cli.whole_list(1), default="8,16")
    parser.add_argument("--temps", type=lambda s: [float(t) for t in s.split(",")], default="0,0.8")
    parser.add_argument("--texts", type=cli.whole(1), default=10, help="prompts at each temperature")
    parser.add_argument("--prompts", metavar="FILE")
    parser.add_argument("-n", type=cli.whole(2), default=160, help="tokens of a text")
    parser.add_argument("-c", "--ctx", type=cli.whole(64), default=2048, help="tokens of the context")
    parser.add_argument("-t", "--threads", type=cli.threads)
    parser.add_argument("-ngl", "--n-gpu-layers", metavar="N", help="a number, or all")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.n_gpu_layers not in (None, "all", "auto"):
        args.n_gpu_layers = cli.whole(0)(args.n_gpu_layers)
    groups = defaultdict[tuple[float, str], list[Text]](list)
    with ExitStack() as stack:
        for text in measure(args, engines(args, stack)):
            groups[text.temperature, text.name].append(text)
            if args.json:
                print(json.dumps(text._asdict()), flush=True)
    for (temperature, name), texts in sorted(groups.items()) if not args.json else ():
        speeds = [text.over_plain for text in texts]
        widths = sorted({text.width or 0 for text in texts})
        accepted = f"{sum(t.n_accept for t in texts)} of {sum(t.n_drafted for t in texts)} accepted"
        print(
            f"T={temperature:g} {name}: {median(speeds):.2f} x plain, worst {min(speeds):.2f}; again "
            f"{share([t.again for t in texts])}, alone {share([t.alone for t in texts])}; {accepted}; "
            f"widths {', '.join(map(str, widths))}, {sum(len(t.changes) for t in texts)} changes"
        )
    every = [text for texts in groups.values() for text in texts]
    wrong = [t for t in every if not t.again or (t.name not in (DEFAULT, PLAIN) and t.alone is False)]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
