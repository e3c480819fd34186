"""Which texts repeat themselves, as models do until the context is full; what people ask for does not."""

from __future__ import annotations

import json
import random

import pytest

from specllama.core.repetition import ENDED, EVERY, NOTICED, repeats
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Generation, Request

RANDOM = random.Random(1)
SENTENCES = [[100 * i + j for j in range(n)] for i, n in enumerate((19, 23, 12))]


def as_ids(text: str) -> list[int]:
    """A token for each character, which is the vocabulary with the longest repetitions."""
    return [ord(c) for c in text]


WANTED = {
    "counting": as_ids(", ".join(map(str, range(2000)))),
    "a table": as_ids("".join(f"| {a} | {b} | {a * b} |\n" for a in range(1, 13) for b in range(1, 13))),
    "objects": as_ids(json.dumps([{"id": i, "name": "Ann", "tags": [], "active": True} for i in range(200)])),
    "dated lines": as_ids("".join(2 * f"2024-05-{d:02} INFO server started\n" for d in range(1, 32))),
    "code": as_ids("".join(f"    self.{c}{d} = {c}{d}\n" for c in "abcdefgh" for d in "xyzuvw")),
    "bits": [RANDOM.choice((48, 49)) if i % 2 else 32 for i in range(3000)],
    "letters of DNA": [RANDOM.randrange(4) for _ in range(3000)],
    "a matrix of zeros": as_ids("[" + "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 10 + "]"),
    "the same line, fifty times": 50 * list(range(12)),
    "equal objects": 20 * list(range(40)),
    "a box": as_ids("+" + 30 * "-" + "+\n" + 20 * ("|" + 30 * " " + "|\n"))[:ENDED],
}


def ends_at(ids: list[int], n: int) -> int | None:
    return next((i for i in range(n, len(ids) + 1, EVERY) if repeats(ids[:i], n)), None)


@pytest.mark.parametrize("period", [1, 2, 19, 56, 82, 112])
def test_a_cycle_is_one_after_as_many_tokens(period: int) -> None:
    ids = [RANDOM.randrange(50_000) for _ in range(256)] + 2000 // period * list(range(period))
    assert ends_at(ids, NOTICED) is not None
    assert ENDED < (ends_at(ids, ENDED) or 0) <= 256 + ENDED + EVERY


def test_the_same_sentences_in_any_order_are_one() -> None:
    """As sampling at 0.8 writes them, which never has an exact period for long."""
    ids = [i for _ in range(150) for i in RANDOM.choice(SENTENCES[:2])] + SENTENCES[2]
    assert ends_at(ids, ENDED) is not None


@pytest.mark.parametrize("name", WANTED)
def test_what_people_ask_for_is_none(name: str) -> None:
    assert ends_at(WANTED[name], ENDED) is None


@pytest.mark.parametrize("n", [NOTICED, ENDED])
def test_a_new_token_in_every_period_is_enough_whatever_the_period(n: int) -> None:
    for period in range(2, 400, 7):
        ids = [1000 + i if i % period == 0 else i % period for i in range(n)]
        assert not repeats(ids, n), period


def test_a_text_ends_at_the_same_token_and_only_where_it_is_asked_for() -> None:
    def written(end_loops: bool) -> Generation:
        params = SamplingParams(temperature=0)
        request = Request([1], params, 0, end_loops=end_loops)
        generation = Generation(request, KeyedSampler(params, 0, 100), (), 3000)
        generation.history = [1]
        while generation.commit(generation.n_output % 7):
            pass
        return generation

    assert (written(True).finish_reason, written(True).n_output) == ("loop", ENDED)
    assert (written(False).finish_reason, written(False).n_output) == ("context", 2999)
