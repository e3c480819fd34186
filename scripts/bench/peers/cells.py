"""The cells of the comparison, their order and their measurement."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench.peers.points import Case, Measured, Point


class Cell(NamedTuple):
    """Weights, draft cost, workload and temperature."""

    kind: str
    cost: str
    workload: str
    temperature: float

    @property
    def label(self) -> str:
        return f"{self.kind} {self.cost} {self.workload} T={self.temperature:g}"


@dataclass
class Figures:
    """The measurements of a cell.

    rates: way of decoding → tokens per second, run after run; wholes: the same for prompt and answer
    together; ttft_ms: time to first token, of specllama only. key: hash of the requests; commit: of
    specllama.
    """

    cell: Cell
    key: str
    commit: str
    machine: str
    date: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    wholes: dict[str, list[float]] = field(default_factory=dict)
    ttft_ms: dict[str, list[float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"cell": list(self.cell)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Figures:
        return cls(**{**data, "cell": Cell(*data["cell"])})


def spread(
    kinds: Sequence[str], costs: Sequence[str], workloads: Sequence[str], temperatures: Sequence[float]
) -> list[Cell]:
    """All cells, ordered so that any prefix covers weights, costs, workloads and temperatures evenly.

    Weights alternate, each with another cost; after each pass over all weights and costs, each pair of them
    gets the next workload and temperature.
    """
    pairs = [
        (kind, costs[(i + shift) % len(costs)]) for shift in range(len(costs)) for i, kind in enumerate(kinds)
    ]
    prompts = [(workload, t) for t in temperatures for workload in workloads]
    return [
        Cell(*pair, *prompts[(j + turn) % len(prompts)])
        for turn in range(len(prompts))
        for j, pair in enumerate(pairs)
    ]


def together(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Groups of cells that differ only in their draft models, which `measure` measures together; in order."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.kind, cell.workload, cell.temperature), []).append(cell)
    return list(found.values())


def key(requests: Sequence[Case]) -> str:
    """A hash of everything that the figures of these requests depend on: prompts, file names, the target's
    size. (A draft model's size depends on the machine: its cost there is the one in its name.)
    """
    text = repr([(c.prompt, c.seed, _file(c.target), c.draft and c.draft.name) for c in requests])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file(path: Path) -> tuple[str, int]:
    return path.name, path.stat().st_size


def measure(
    tools: Path, groups: Sequence[tuple[Sequence[Case], Figures]], compared: Sequence[Point], runs: int
) -> None:
    """Measures every point on every request, in random order. Each run has another seed: with a single one, a
    point with a lucky text would be chosen as the best and compared on the same text.

    groups: requests and figures of cells that differ only in their draft models. A point without a draft
    model decodes once for all of them.
    """
    rng = random.Random(0)
    every = [into for _, into in groups]
    for run in range(runs):
        for alike in zip(*(requests for requests, _ in groups), strict=True):
            cases = [replace(case, seed=case.seed + run * len(groups[0][0])) for case in alike]
            ways = [(point, cases[0], every) for point in compared if not point.drafts]
            ways += [
                (point, case, [into])
                for point in compared
                if point.drafts
                for case, into in zip(cases, every, strict=True)
            ]
            for point, case, those in rng.sample(ways, len(ways)):
                _keep(point, point.run(tools, case), those)
    for into in every:
        into.date = time.strftime("%Y-%m-%d")


def _keep(point: Point, found: Measured, those: Sequence[Figures]) -> None:
    for into in those:
        into.rates.setdefault(point.name, []).append(found.rate)
        into.wholes.setdefault(point.name, []).append(found.whole)
        if point.kind == "ours":
            into.ttft_ms.setdefault(point.name, []).append(1000 * found.before)
