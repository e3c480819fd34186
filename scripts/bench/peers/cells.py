"""The cells of the comparison, and the order in which they are measured. Knows no files' contents."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from .points import Case, Measured, Point


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
    """What was measured of a cell. rates: way of decoding to tokens per second, run after run; wholes: those
    of prompt and answer together; ttft_ms: from the request to the first token, specllama's alone. key: what
    they depend on beside the settings of all. commit: of specllama; machine: where; date: when.
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
    """All cells, ordered so that any beginning covers weights, costs, workloads and temperatures evenly.

    Weights take turns, each with another cost, and with every turn of all weights and costs the workload and
    the temperature of each are the next ones.
    """
    pairs = [
        (kind, costs[(i + shift) % len(costs)]) for shift in range(len(costs)) for i, kind in enumerate(kinds)
    ]
    asked = [(workload, t) for t in temperatures for workload in workloads]
    return [
        Cell(*pair, *asked[(j + turn) % len(asked)])
        for turn in range(len(asked))
        for j, pair in enumerate(pairs)
    ]


def together(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Those that differ in their draft models alone, which `measure` takes at once; in the given order."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.kind, cell.workload, cell.temperature), []).append(cell)
    return list(found.values())


def key(requests: Sequence[Case]) -> str:
    """What the figures of these requests depend on: prompts, the names of the files, and the target's size.
    (A draft model is made of the size that has the named cost on the machine.)
    """
    text = repr([(c.prompt, c.seed, _file(c.target), c.draft and c.draft.name) for c in requests])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file(path: Path) -> tuple[str, int]:
    return path.name, path.stat().st_size


def measure(
    tools: Path, asked: Sequence[tuple[Sequence[Case], Figures]], compared: Sequence[Point], runs: int
) -> None:
    """Every point on every request, the order of the points another one each time, and the seed another one
    in each run: with one seed a point that was lucky with its text would be chosen and praised for it.

    asked: the requests of cells that differ in their draft models alone, and where the figures go. A point
    that takes no draft model decodes once for all of them, in turn with the others.
    """
    rng = random.Random(0)
    every = [into for _, into in asked]
    for run in range(runs):
        for alike in zip(*(requests for requests, _ in asked), strict=True):
            cases = [replace(case, seed=case.seed + run * len(asked[0][0])) for case in alike]
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
