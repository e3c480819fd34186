"""In which order is measured, so that drift and load of the machine fall on all configurations alike."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from specllama.bench.samples import Config, Step, Unit

BLOCK = 4  # prompts that a configuration answers in a row


def order(units: Sequence[Unit], configs: Sequence[Config], runs: int, seed: int = 0) -> Iterator[Step]:
    """Every unit under every configuration, `runs` times, shuffled by a seed.

    A few units, of different workloads where there are several, are answered by all configurations in a
    random order before others follow: what is compared is measured close together, no prompt follows on
    itself (its cache would be there already), and what there is after an interruption covers all workloads.
    """
    rng = random.Random(seed)
    for run in range(1, runs + 1):
        temperatures = list(dict.fromkeys(unit.temperature for unit in units))
        rng.shuffle(temperatures)
        for turn in zip_longest(*(_blocks(units, t, rng) for t in temperatures), fillvalue=[]):
            for block in turn:
                for config in rng.sample(configs, len(configs)):
                    yield from (Step(run, unit, config) for unit in block)


def _blocks(units: Sequence[Unit], temperature: float, rng: random.Random) -> list[list[Unit]]:
    """The units of a temperature in blocks of different prompts, one of each workload in turn."""
    workloads: dict[str, list[Unit]] = {}
    for unit in units:
        if unit.temperature == temperature:
            workloads.setdefault(unit.workload, []).append(unit)
    shuffled = [rng.sample(prompts, len(prompts)) for prompts in workloads.values()]
    rng.shuffle(shuffled)
    mixed = [unit for turn in zip_longest(*shuffled) for unit in turn if unit is not None]
    blocks = [mixed[i : i + BLOCK] for i in range(0, len(mixed), BLOCK)]
    if len(blocks) > 1 and len(blocks[-1]) == 1:
        single = blocks.pop()
        blocks[-1] += single
    return blocks
