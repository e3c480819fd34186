"""The prompts whose answers the head is trained on, and those that it is only measured on.

Both are made from word lists and from the standard library of the running Python; the choice depends on the
seed alone. Training has the kinds of the built-in workloads of `specllama bench` and general chat, without
the prompts of the workloads themselves. The held-out kinds ask for what no training prompt asks for.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specllama.bench.runner import WORKLOADS
from training import corpus
from training.head import topics

MAX_TEXT = 900  # characters of a quoted text
MAX_RAW = 500  # characters of a text to continue
# Parts of the built-in prompts. A training prompt has none of them.
RESERVED = re.compile(
    r"copytree|copyfile\b|os\.walk|lru_cache|textwrap\.dedent|insort|\bis prime|prime number"
    r"|between a list and|Lovelace|Hopper|Turing|sorted lists|words of a book"
    r"|should a file be closed|What can you help me with"
)


class Prompt(NamedTuple):
    """A conversation that ends with a user's message. messages: (role, text) pairs; a single pair with the
    role "" is a text to continue, without a chat template.
    """

    kind: str
    messages: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.messages)


class Source:
    """What prompts quote: functions, descriptions and texts about Python."""

    def __init__(self) -> None:
        self.functions = [f for path, text in corpus.stdlib_files() for f in corpus.functions(path, text)]
        found = corpus.descriptions()
        self.descriptions = found
        self.names = sorted(found)
        self.texts = sorted({t for t in found.values() if len(t) > 200}) + _language_topics()


def _language_topics() -> list[str]:
    """Paragraphs of the language reference that pydoc carries."""
    from pydoc_data.topics import topics as reference

    paragraphs = (p for text in reference.values() for p in re.split(r"\n\s*\n", text))
    short = (re.sub(r"\s*\n\s*", " ", p).strip() for p in paragraphs)
    return sorted({p for p in short if 200 < len(p) < MAX_TEXT and p.isascii() and p[0].isalpha()})


def _explain(rng: random.Random, s: Source) -> str:
    if rng.random() < 0.5:
        return rng.choice(corpus.EXPLAIN).format(q=rng.choice(s.names))
    first, second = rng.sample(topics.CONCEPTS, 2)
    return rng.choice(topics.CONCEPT_ASK).format(q=first, r=second)


def _source(rng: random.Random, s: Source) -> str:
    if rng.random() < 0.3:
        return rng.choice(corpus.SOURCE).format(q=rng.choice(s.names))
    return rng.choice(topics.WRITE).format(q=rng.choice(topics.TASKS))


def _product(rng: random.Random) -> str:
    fields = {
        "product": rng.choice(topics.PRODUCTS),
        "price": f"{rng.randrange(3, 900)}.{rng.randrange(100):02}",
        "quantity": str(rng.randrange(1, 60)),
        "color": rng.choice(("red", "blue", "green", "black", "white")),
        "in stock": rng.choice(("true", "false")),
        "warehouse": rng.choice(corpus.CITIES),
        "order": str(rng.randrange(10_000, 99_999)),
    }
    chosen = rng.sample(list(fields), rng.randrange(3, 7))
    return ", ".join(f"{name} {fields[name]}" for name in chosen)


def _json(rng: random.Random, s: Source) -> str:
    if rng.random() < 0.2:
        return rng.choice(corpus.SIGNATURE).format(src=corpus.block(rng.choice(s.functions).source))
    text = corpus.record(rng)[0] if rng.random() < 0.6 else _product(rng)
    return rng.choice((*corpus.RECORD, "Convert to a JSON object: {t}", "Give me this as JSON:\n{t}")).format(
        t=text
    )


def _edit(rng: random.Random, s: Source) -> str:
    function = rng.choice(s.functions)
    code = corpus.block(function.source)
    names = sorted({a.arg for a in function.node.args.args} - {"self", "cls"})
    if names and rng.random() < 0.6:
        return rng.choice(corpus.RENAME).format(a=rng.choice(names), b=rng.choice(corpus.NAMES), src=code)
    return rng.choice(topics.CODE_EDITS).format(t=code)


def _text_edit(rng: random.Random, s: Source) -> str:
    return rng.choice(topics.EDITS).format(t=rng.choice(s.texts))


def _reading(rng: random.Random, s: Source) -> str:
    return rng.choice(topics.READING).format(t=rng.choice(s.texts))


def _topic(rng: random.Random, _: Source) -> str:
    return rng.choice(topics.ASK).format(q=rng.choice(topics.TOPICS))


def _create(rng: random.Random, _: Source) -> str:
    first, second = rng.sample(topics.TOPICS, 2)
    return rng.choice(topics.CREATE).format(q=first, r=second)


def _practical(rng: random.Random, _: Source) -> str:
    return rng.choice(topics.PRACTICAL).format(
        dish=rng.choice(topics.DISHES),
        plan=rng.choice(topics.PLANS),
        product=rng.choice(topics.PRODUCTS),
        city=rng.choice(corpus.CITIES),
        job=rng.choice(corpus.JOBS),
        name=f"{rng.choice(corpus.FIRST_NAMES)} {rng.choice(corpus.LAST_NAMES)}",
    )


def _chat(rng: random.Random, _: Source) -> str:
    return rng.choice(topics.CHAT)


def _raw(rng: random.Random, s: Source) -> str:
    """The beginning of a source or of a text."""
    text = rng.choice(s.functions).source if rng.random() < 0.6 else rng.choice(s.texts)
    return text[: rng.randrange(80, MAX_RAW)]


def _follow_up(rng: random.Random, s: Source) -> tuple[tuple[str, str], ...]:
    """A question about a name of the standard library, its description, and another question."""
    name = rng.choice(s.names)
    question = rng.choice(corpus.EXPLAIN).format(q=name)
    return (
        ("user", question),
        ("assistant", s.descriptions[name]),
        ("user", rng.choice(topics.FOLLOW_UPS)),
    )


Make = Callable[[random.Random, Source], str]
# kind -> (how to make one, its share)
KINDS: dict[str, tuple[Make, float]] = {
    "explain": (_explain, 0.14),
    "source": (_source, 0.11),
    "json": (_json, 0.08),
    "edit": (_edit, 0.1),
    "text edit": (_text_edit, 0.05),
    "reading": (_reading, 0.05),
    "topic": (_topic, 0.14),
    "create": (_create, 0.14),
    "practical": (_practical, 0.12),
    "chat": (_chat, 0.03),
    "raw": (_raw, 0.04),
}


def training(n: int, seed: int = 1) -> Iterator[Prompt]:
    """`n` different prompts; every tenth has another system message, every tenth a second question."""
    rng, source, seen = random.Random(seed), Source(), set[Prompt]()
    kinds, shares = list(KINDS), [share for _, share in KINDS.values()]
    while len(seen) < n:
        (kind,) = rng.choices(kinds, shares)
        text = KINDS[kind][0](rng, source)
        if kind == "raw":
            prompt = Prompt(kind, (("", text),))
        else:
            head = (("system", rng.choice(topics.SYSTEMS)),) if rng.random() < 0.1 else ()
            turns: tuple[tuple[str, str], ...] = (("user", text),)
            if rng.random() < 0.1:
                turns = _follow_up(rng, source)
            prompt = Prompt(kind if len(turns) == 1 else "follow-up", (*head, *turns))
        if prompt in seen or RESERVED.search(prompt.text):
            continue
        seen.add(prompt)
        yield prompt


HELD_OUT: dict[str, Sequence[str]] = {
    "email": (
        "Write an email to a landlord about a broken heater.",
        "Write an email that asks a colleague for the minutes of Monday's meeting.",
        "Write a short letter of complaint about a delayed parcel.",
        "Write an email that declines an invitation politely.",
    ),
    "story": (
        "Write a story about a fox who finds a lantern.",
        "Write a dialogue between a baker and a customer who has lost a ring.",
        "Write a fairy tale with a dragon who is afraid of mice.",
        "Write the opening of a detective novel set in a lighthouse.",
    ),
    "table": (
        "Make a Markdown table of four planets with diameter and number of moons.",
        "Make a table that compares cats and dogs as pets.",
        "Write a CSV file with five invented employees: name, department, salary.",
        "Write an HTML page with a heading and a list of three links.",
    ),
    "shell": (
        "How do I find all files larger than 100 MB with the command line?",
        "Write a bash script that makes a backup of a folder with today's date.",
        "Write a SQL query that returns the ten customers with the most orders.",
        "Write a Dockerfile for a small Python web server.",
    ),
}


def held_out() -> list[Prompt]:
    """The built-in workloads of `specllama bench`, and prompts of other kinds than those of training."""
    named = {**{f"bench {name}": texts for name, texts in WORKLOADS.items()}, **HELD_OUT}
    return [Prompt(kind, (("user", text),)) for kind, texts in named.items() for text in texts]


def to_json(prompt: Prompt) -> str:
    return json.dumps([prompt.kind, prompt.messages])


def from_json(line: str) -> Prompt:
    kind, messages = json.loads(line)
    return Prompt(kind, tuple((role, text) for role, text in messages))
