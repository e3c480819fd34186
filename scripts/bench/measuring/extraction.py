"""Requests of one form, as a program that fills a table makes them, and requests that have nothing in common.

Values are words that nobody has seen: they stand in the prompt and are copied from there, only the form comes
again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from scripts.bench.measuring.adversaries import sources

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_QUESTION = "Extract the record as JSON.\n\n{}\n"


class Asked(NamedTuple):
    """A prompt and the answer to it."""

    prompt: str
    text: str


def word(rng: random.Random) -> str:
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 4)))


def record(rng: random.Random) -> Asked:
    """A sentence about somebody, and what is in it as JSON; the keys are always the same."""
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
    return Asked(_QUESTION.format(sentence), json.dumps(found, indent=2))


def records(n: int, seed: int) -> list[Asked]:
    """So many of one form, all different."""
    rng = random.Random(seed)
    return [record(rng) for _ in range(n)]


def unrelated(n: int, seed: int, n_words: int = 120) -> list[Asked]:
    """So many places of the standard library's sources, each in another module as far as there are enough."""
    rng, texts = random.Random(seed), sources(n, seed)

    def places() -> Iterator[Asked]:
        for i in range(n):
            words = texts[i % len(texts)].split(" ")
            at = rng.randrange(max(1, len(words) - 2 * n_words))
            yield Asked(" ".join(words[at : at + n_words]), " ".join(words[at + n_words : at + 2 * n_words]))

    return list(places())


WORKLOADS: dict[str, Callable[[int, int], list[Asked]]] = {"one form": records, "unrelated": unrelated}
