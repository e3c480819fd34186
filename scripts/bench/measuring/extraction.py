"""Requests of one form, such as those of a program that fills a table, and unrelated requests.

The values are made-up words that are copied from the prompt; only the form repeats.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from scripts.bench.measuring.adversarial_texts import sources

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_QUESTION = "Extract the record as JSON.\n\n{}\n"


class Exchange(NamedTuple):
    """A prompt and its answer."""

    prompt: str
    text: str


def word(rng: random.Random) -> str:
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 4)))


def record(rng: random.Random) -> Exchange:
    """A sentence about a person, and its content as JSON with the same keys each time."""
    found = {
        "first_name": word(rng).title(),
        "family_name": word(rng).title(),
        "date_of_birth": f"{rng.randint(1930, 2005)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        "address": {"street": f"{word(rng).title()} Street {rng.randint(1, 99)}", "city": word(rng).title()},
        "employee_number": rng.randint(1000, 99999),
        "department": rng.choice(["accounting", "research", "sales", "support"]),
        "is_active": rng.random() < 0.7,
    }
    where = found["address"]
    assert isinstance(where, dict)
    sentence = (
        f"{found['first_name']} {found['family_name']}, born {found['date_of_birth']}, lives in "
        f"{where['street']}, {where['city']}. Number {found['employee_number']}, {found['department']}, "
        f"{'still with us' if found['is_active'] else 'has left'}."
    )
    return Exchange(_QUESTION.format(sentence), json.dumps(found, indent=2))


def records(n: int, seed: int) -> list[Exchange]:
    """`n` different exchanges of one form."""
    rng = random.Random(seed)
    return [record(rng) for _ in range(n)]


def unrelated(n: int, seed: int, n_words: int = 120) -> list[Exchange]:
    """`n` excerpts of the standard library's sources, each of another module if there are enough."""
    rng, texts = random.Random(seed), sources(n, seed)

    def excerpts() -> Iterator[Exchange]:
        for i in range(n):
            words = texts[i % len(texts)].split(" ")
            at = rng.randrange(max(1, len(words) - 2 * n_words))
            yield Exchange(
                " ".join(words[at : at + n_words]), " ".join(words[at + n_words : at + 2 * n_words])
            )

    return list(excerpts())


WORKLOADS: dict[str, Callable[[int, int], list[Exchange]]] = {"one form": records, "unrelated": unrelated}
