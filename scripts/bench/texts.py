"""How many texts are the same with and without drafts, and what that costs.

usage: python -m scripts.bench.texts [-m TARGET] [-md DRAFT] [--exact] [--temps 0,0.8] [--texts N] [--turns N]
                                     [--before N] [-n TOKENS] [-c N] [-t N]

Conversations of --turns turns over the prompts of `specllama bench` and of PROMPTS, each once
with the default and once without drafts, in two processes that keep what they have evaluated. Every turn's
text is compared, token by token, and a conversation goes on with the text that drafts wrote. --before puts so
many tokens of filler in front. --exact asks for `--exact` in both. Without -m the demo model writes, with its
head.

The ratio of times is that of the decode times per token of all texts, without drafts over with drafts;
--plain adds the default without drafts and without --exact, which the cost of --exact is measured against.
SPECLLAMA_KERNELS=off measures llama.cpp's own kernels. Exit code 1 if --exact was given and a text differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

from scripts import cli
from specllama import LLM
from specllama.bench.runner import WORKLOADS
from specllama.errors import SpecllamaError

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
FOLLOW = ("Shorten that.", "Write it again with other names.", "What did you leave out?")
FILLER = "The library is open on weekdays from nine to five, and on Saturdays until noon. "


def questions() -> Iterator[str]:
    """Prompts of all workloads in turn, without end."""
    kinds = [itertools.cycle(texts) for texts in (*WORKLOADS.values(), *PROMPTS.values())]
    return (next(kind) for kind in itertools.cycle(kinds))


def chat(of: str, before: int) -> list[dict[str, str]]:
    # a token has more than 3 characters in such texts, so that at least `before` tokens stand in front
    return [{"role": "user", "content": FILLER * (before * 5 // len(FILLER)) + of}]


def engines(args: argparse.Namespace, stack: ExitStack) -> dict[str, LLM]:
    def engine(exact: bool, **more: object) -> LLM:
        options = {"max_num_seqs": 1, "max_model_len": args.ctx, "n_threads": args.threads, "memory": False}
        return stack.enter_context(LLM(args.model, exact=exact, **options, **more))

    found = {
        "drafts": engine(args.exact, speculative_model=args.draft),
        "none": engine(args.exact, drafters=()),
    }
    if args.plain:
        found["plain"] = engine(False, drafters=())
    return found


def measure(args: argparse.Namespace) -> int:
    """Prints what was found. Returns the number of texts that differ."""
    n, differ = 0, 0
    seconds, tokens, figures = Counter[str](), Counter[str](), Counter[str]()
    with ExitStack() as stack:
        models = engines(args, stack)
        for temperature in args.temps:
            for i, question in zip(range(args.texts), questions(), strict=False):
                messages = chat(question, args.before)
                for turn in range(args.turns):
                    params = {"temperature": temperature, "max_tokens": args.n, "seed": 1000 * turn + i}
                    got = {name: m.chat(messages, params)[0].outputs[0] for name, m in models.items()}
                    n += 1
                    differ += got["drafts"].token_ids != got["none"].token_ids
                    for name, output in got.items():
                        seconds[name] += output.stats.decode_seconds
                        tokens[name] += output.stats.n_predict - 1
                    stats = got["drafts"].stats
                    figures.update(drafted=stats.n_drafted, accepted=stats.n_accept)
                    messages += [
                        {"role": "assistant", "content": got["drafts"].text},
                        {"role": "user", "content": FOLLOW[turn % len(FOLLOW)]},
                    ]
        widths = {stats.exact_width} - {None}
    per = {name: seconds[name] / max(1, tokens[name]) for name in seconds}
    found = f"{figures['accepted']} of {figures['drafted']} drafted tokens accepted"
    print(f"{differ} of {n} texts differ; {found}")
    if widths:
        print(f"decodes of {widths.pop()} rows")
    print("ms per token: " + ", ".join(f"{name} {1000 * t:.2f}" for name, t in per.items()))
    print(f"with drafts {per['none'] / per['drafts']:.2f} times as fast as without")
    if "plain" in per:
        print(
            f"without drafts {per['plain'] / per['none']:.2f}, with drafts"
            f" {per['plain'] / per['drafts']:.2f} times as fast as plain decoding without --exact"
        )
    return differ


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", metavar="TARGET", help="default: the demo model")
    parser.add_argument("-md", "--draft", metavar="DRAFT")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--temps", type=lambda s: [float(t) for t in s.split(",")], default="0,0.8")
    parser.add_argument("--texts", type=cli.whole(1), default=50, help="conversations at each temperature")
    parser.add_argument("--turns", type=cli.whole(1), default=2)
    parser.add_argument("--before", type=cli.whole(0), default=0, help="tokens of filler in front")
    parser.add_argument("-n", type=cli.whole(2), default=160, help="tokens of a text")
    parser.add_argument("-c", "--ctx", type=cli.whole(64), default=2048, help="tokens of the context")
    parser.add_argument("-t", "--threads", type=cli.threads)
    args = parser.parse_args()
    sys.exit(1 if measure(args) and args.exact else 0)


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
