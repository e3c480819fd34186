"""What a server is asked, and in which order: the same requests at every concurrency. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, zip_longest
from typing import Any

SPECULATIVE, PLAIN, SERVED = "speculative", "plain", "as served"
Prompt = tuple[str, str]  # its workload, its text


@dataclass(frozen=True, slots=True)
class Cell:
    """So many clients at once, each with its next request when it has its answer. run: from 1."""

    series: str
    concurrency: int
    run: int


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """What is to be measured. prompts: of the requests of a cell. raw: they are no messages but texts that
    are gone on with. first: number of the first run.
    """

    prompts: Sequence[Prompt]
    concurrencies: Sequence[int]
    runs: int
    n_tokens: int
    temperature: float
    raw: bool = False
    ignore_eos: bool = False
    first: int = 1


def prompts(workloads: Mapping[str, Sequence[str]], least: int, n: int | None = None) -> list[Prompt]:
    """n prompts, one of each workload in turn, from the first again where there are not enough; without n all
    of them, and as many more as make a multiple of `least`.
    """
    named = [[(name, text) for text in texts] for name, texts in workloads.items()]
    mixed = [prompt for turn in zip_longest(*named) for prompt in turn if prompt is not None]
    n = n or -(-len(mixed) // least) * least
    return list(islice(cycle(mixed), n))


def order(series: Sequence[str], wanted: ServingRequest, seed: int = 0) -> Iterator[Cell]:
    """Every concurrency of every series, `runs` times. What is compared follows on each other, in turns the
    one and the other first; the concurrencies are shuffled, so that drift of the machine falls on all.
    """
    rng = random.Random(seed)
    for run in range(wanted.first, wanted.first + wanted.runs):
        for i, concurrency in enumerate(rng.sample(wanted.concurrencies, len(wanted.concurrencies))):
            turned = series if (run + i) % 2 else list(reversed(series))
            yield from (Cell(name, concurrency, run) for name in turned)


def body(wanted: ServingRequest, cell: Cell, number: int, model: str) -> dict[str, Any]:
    """The JSON of the request of this number (from 0) in a cell.

    A number in front of the prompt, another one at every concurrency and in every run, keeps what the server
    has cached of earlier requests from being all that is measured; the series share it, so that they write
    the same texts.
    """
    mark = 10_000 + (cell.run * 7919 + cell.concurrency * 613 + number * 31) % 90_000
    text = f"({mark}) {wanted.prompts[number][1]}"
    asked: dict[str, Any] = {"model": model} if model else {}
    asked |= {"prompt": text} if wanted.raw else {"messages": [{"role": "user", "content": text}]}
    asked |= {"max_tokens": wanted.n_tokens, "temperature": wanted.temperature}
    asked |= {"seed": 1000 * cell.run + number, "stream": True, "stream_options": {"include_usage": True}}
    if wanted.ignore_eos:
        asked["ignore_eos"] = True
    if cell.series != SERVED:  # the memory would know each text by the second time that it is asked for
        asked["speculation"] = {"enabled": cell.series == SPECULATIVE, "memory": False}
    return asked
