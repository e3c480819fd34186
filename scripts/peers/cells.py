"""The cells of the comparison, and the order in which they are measured. Knows no files' contents."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from .points import Case, Point


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
    they depend on beside the settings of all. commit: of specllama; date: when.
    """

    cell: Cell
    key: str
    commit: str
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


def key(requests: Sequence[Case]) -> str:
    """What the figures of these requests depend on: prompts, and names and sizes of the files."""
    text = repr([(c.prompt, c.seed, [_file(p) for p in (c.target, c.draft) if p]) for c in requests])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file(path: Path) -> tuple[str, int]:
    return path.name, path.stat().st_size


def measure(
    tools: Path, requests: Sequence[Case], compared: Sequence[Point], runs: int, into: Figures
) -> None:
    """Every point on every request, the order of the points another one each time, and the seed another one
    in each run: with one seed a point that was lucky with its text would be chosen and praised for it.
    """
    rng = random.Random(0)
    for run in range(runs):
        for case in [replace(case, seed=case.seed + run * len(requests)) for case in requests]:
            for point in rng.sample(compared, len(compared)):
                found = point.run(tools, case)
                into.rates.setdefault(point.name, []).append(found.rate)
                into.wholes.setdefault(point.name, []).append(found.whole)
                if point.kind == "ours":
                    into.ttft_ms.setdefault(point.name, []).append(1000 * found.before)
    into.date = time.strftime("%Y-%m-%d")
