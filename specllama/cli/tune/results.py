"""What a `tune` has measured so far, from the parts that the engine process reports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.cli.measuring import PartialResults
from specllama.client.protocol import LoadInfo
from specllama.config.load import ModelSettings
from specllama.core.policy.break_even import BreakEven

COPY = "copy alone"


@dataclass(slots=True)
class DraftResult:
    """A draft, or copying alone (path None).

    problem: why it was not used, "" if it was. step: seconds for a token of the draft model. forecast: as
    Forecast.to_dict gives it; None before everything is measured.
    """

    name: str
    path: str | None
    problem: str = ""
    model: Mapping[str, Any] | None = None
    step: float | None = None
    points: Sequence[Mapping[str, Any]] = ()
    break_even: Sequence[BreakEven] = ()
    forecast: Mapping[str, Any] | None = None

    @property
    def speedup(self) -> float | None:
        """Predicted, relative to plain decoding; None without a prediction."""
        return self.forecast["speedup"] if self.forecast else None

    def to_dict(self) -> dict[str, Any]:
        forecast = self.forecast or {"speedup": None, "acceptance": None, "workloads": {}}
        return {
            "name": self.name,
            "path": self.path,
            "problem": self.problem,
            "model": self.model,
            "step_seconds": self.step,
            "step_points": list(self.points),
            "break_even": [
                {"k": b.k, "acceptance": b.acceptance, "decode": b.decode, "step": b.step}
                for b in self.break_even
            ],
            **forecast,
        }


class TuneResults(PartialResults):
    """What a `tune` has measured so far.

    drafts: those to be compared, in the order of their indexes. copies: whether text is copied.
    """

    def __init__(
        self, drafts: Sequence[ModelSettings], unusable: Mapping[str, str], copies: bool = True
    ) -> None:
        super().__init__()
        paths = [d.path for d in drafts]
        names = _names([*paths, *unusable])
        self.entrants = {i: DraftResult(names[path], path) for i, path in enumerate(paths)}
        if copies:
            self.entrants[-1] = DraftResult(COPY, None)
        self.unusable = [DraftResult(names[path], path, reason) for path, reason in unusable.items()]
        self._info: LoadInfo | None = None
        self.plan: Mapping[str, Any] = {}
        self.curves: list[Mapping[str, Any]] = []
        self.threads: Mapping[str, Any] | None = None
        self.epsilon: Mapping[str, Any] | None = None
        self.texts: Mapping[str, Any] = {}
        self.seconds = 0.0

    @property
    def info(self) -> LoadInfo:
        """What was loaded, once it is."""
        assert self._info is not None
        return self._info

    @info.setter
    def info(self, info: LoadInfo) -> None:
        self._info = info

    def take(self, part: str, found: Mapping[str, Any]) -> None:
        """Add a part, as the engine process reports it."""
        if part == "curve":
            self.curves += [found] if found["points"] else []
        elif part == "draft":
            self._take_draft(**found)
        else:
            setattr(self, part, found)

    def _take_draft(self, index: int, break_even: Sequence[Mapping[str, Any]] = (), **found: Any) -> None:
        entrant = self.entrants[index]
        entrant.break_even = [BreakEven(**b) for b in break_even]
        for name, value in found.items():
            setattr(entrant, name, value)

    @property
    def t1(self) -> float | None:
        """Seconds of a decode of one row."""
        points = self.curves[0]["points"] if self.curves else ()
        return next((p["seconds"] for p in points if p["rows"] == 1), None)

    @property
    def replays(self) -> bool:
        """Whether the target's memory has to replay tokens where a draft is not accepted whole."""
        return bool(self.plan.get("replays"))

    @property
    def ranking(self) -> list[DraftResult]:
        """Drafts with a prediction, the best first; copying alone precedes a draft that is no better."""
        found = [e for e in self.entrants.values() if e.speedup is not None]
        return sorted(found, key=lambda e: (-(e.speedup or 0.0), e.path is not None))

    @property
    def others(self) -> list[DraftResult]:
        """Drafts that cannot be used, and those that were not measured."""
        return [*(e for e in self.entrants.values() if e.speedup is None), *self.unusable]

    def to_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "interrupted": self.is_partial,
            "t_n": [self._curve(curve) for curve in self.curves],
            "threads": self.threads,
            "epsilon": self.epsilon,
            "n_tokens": self.plan.get("n_tokens"),
            "prompts_left_out": self.plan.get("n_left_out"),
            "prompts_too_long": self.plan.get("too_long", {}),
            "texts": self.texts,
            "ranking": [entrant.to_dict() for entrant in self.ranking],
            "not_ranked": [entrant.to_dict() for entrant in self.others],
        }

    def _curve(self, curve: Mapping[str, Any]) -> dict[str, Any]:
        first = next((p["seconds"] for p in curve["points"] if p["rows"] == 1), None)
        relative = [{**p, "relative": p["seconds"] / first if first else None} for p in curve["points"]]
        return {**curve, "points": relative}


def _names(paths: Sequence[str]) -> dict[str, str]:
    """A short name for each file, the path where two would have the same."""
    short = [os.path.basename(path).removesuffix(".gguf") for path in paths]
    return {path: name if short.count(name) == 1 else path for path, name in zip(paths, short, strict=True)}
