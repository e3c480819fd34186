"""What a `tune` has measured so far, from the parts that the engine process reports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from specllama.cli.measuring import PartialResults
from specllama.client.model_info import LoadInfo, ModelInfo
from specllama.client.tune_messages import (
    DraftPrediction,
    MeasuredDraft,
    RowsComparison,
    TextCount,
    ThreadsComparison,
    TimedCurve,
    TimedWidth,
    TrimmedPrediction,
    TuneAgenda,
    TunePart,
    WrittenTexts,
)
from specllama.config.load import ModelSettings
from specllama.core.replay.break_even import BreakEven
from specllama.json_types import JsonObject

COPY = "copy alone"
OWN_HEAD = "head of the model"


@dataclass(slots=True)
class DraftResult:
    """A draft, or copying alone (path None).

    inside: whether it is the head inside the target. problem: why it cannot be used, "" if it can. head: kind
    and size of a head, "" for a draft model. step: seconds for a token of the draft. forecast: None before
    everything is measured. trimmed: of a trimmed copy, None where it was not tried.
    translated: whether its tokens are.
    """

    name: str
    path: str | None
    inside: bool = False
    problem: str = ""
    model: ModelInfo | None = None
    head: str = ""
    step: float | None = None
    points: Sequence[TimedWidth] = ()
    break_even: Sequence[BreakEven] = ()
    forecast: DraftPrediction | None = None
    trimmed: TrimmedPrediction | None = None
    translated: bool = False

    @property
    def speedup(self) -> float | None:
        """Predicted, relative to plain decoding; None without a prediction."""
        return self.forecast.speedup if self.forecast else None

    def to_dict(self) -> JsonObject:
        nothing: JsonObject = {"speedup": None, "acceptance": None, "workloads": {}}
        return {
            "name": self.name,
            "path": self.path,
            "problem": self.problem,
            "model": asdict(self.model) if self.model else None,
            "head": self.head,
            "step_seconds": self.step,
            "step_points": [asdict(point) for point in self.points],
            "break_even": [asdict(b) for b in self.break_even],
            **(asdict(self.forecast) if self.forecast else nothing),
            "trimmed": asdict(self.trimmed) if self.trimmed else None,
        }


class TuneResults(PartialResults):
    """What a `tune` has measured so far.

    drafts: those to compare, in the order of their indexes. copies: whether copying alone is compared too.
    target: its path, which as a draft stands for the head inside it.
    """

    def __init__(
        self,
        drafts: Sequence[ModelSettings],
        unusable: Mapping[str, str],
        copies: bool = True,
        target: str = "",
    ) -> None:
        super().__init__()
        paths = [d.path for d in drafts]
        names = {**_names([*paths, *unusable]), target: OWN_HEAD}
        self.drafts = {i: DraftResult(names[path], path, path == target) for i, path in enumerate(paths)}
        if copies:
            self.drafts[-1] = DraftResult(COPY, None)
        self.unusable = [DraftResult(names[p], p, p == target, reason) for p, reason in unusable.items()]
        self._info: LoadInfo | None = None
        self.agenda: TuneAgenda | None = None
        self.curves: list[TimedCurve] = []
        self.threads: ThreadsComparison | None = None
        self.rows: RowsComparison | None = None
        self.texts: Mapping[str, TextCount] = {}
        self.seconds = 0.0

    @property
    def info(self) -> LoadInfo:
        """What was loaded. Must not be read before that."""
        assert self._info is not None
        return self._info

    @info.setter
    def info(self, info: LoadInfo) -> None:
        self._info = info

    def add(self, part: TunePart) -> None:
        """Add a part that the engine process reports."""
        match part:
            case TuneAgenda():
                self.agenda = part
            case TimedCurve():
                self.curves += [part] if part.points else []
            case ThreadsComparison():
                self.threads = part
            case RowsComparison():
                self.rows = part
            case WrittenTexts():
                self.texts = part.workloads
            case MeasuredDraft():
                self._add_draft(part)

    def _add_draft(self, measured: MeasuredDraft) -> None:
        draft = self.drafts[measured.index]
        draft.problem, draft.model, draft.step = measured.problem, measured.model, measured.step
        draft.points, draft.break_even = measured.points, measured.break_even
        draft.head, draft.forecast, draft.trimmed = measured.head, measured.forecast, measured.trimmed
        draft.translated = measured.translated

    @property
    def t1(self) -> float | None:
        """Seconds of a decode of one row."""
        points = self.curves[0].points if self.curves else ()
        return next((p.seconds for p in points if p.rows == 1), None)

    @property
    def disturbed(self) -> bool:
        """Whether other programs changed the times."""
        return any(curve.disturbed for curve in self.curves) or bool(self.threads and self.threads.disturbed)

    @property
    def storable(self) -> bool:
        """Whether there is a curve that can be stored."""
        return any(curve.complete and not curve.disturbed for curve in self.curves)

    @property
    def replays(self) -> bool:
        """Whether the target's memory has to replay tokens where a draft is not accepted whole."""
        return self.agenda is not None and self.agenda.replays

    @property
    def ranking(self) -> list[DraftResult]:
        """Drafts with a prediction, the best first; copying alone precedes a draft that is no better."""
        ranked = [e for e in self.drafts.values() if e.speedup is not None]
        return sorted(ranked, key=lambda e: (-(e.speedup or 0.0), e.path is not None))

    @property
    def others(self) -> list[DraftResult]:
        """Drafts that cannot be used, and those that were not measured."""
        return [*(e for e in self.drafts.values() if e.speedup is None), *self.unusable]

    def to_dict(self) -> JsonObject:
        return {
            "seconds": self.seconds,
            "interrupted": self.is_partial,
            "disturbed": self.disturbed,
            "t_n": [_curve_to_dict(curve) for curve in self.curves],
            "threads": asdict(self.threads) if self.threads else None,
            "epsilon": _rows_to_dict(self.rows) if self.rows else None,
            "n_tokens": self.agenda.n_tokens if self.agenda else None,
            "prompts_left_out": self.agenda.n_left_out if self.agenda else None,
            "prompts_too_long": self.agenda.too_long if self.agenda else {},
            "texts": {name: asdict(count) for name, count in self.texts.items()},
            "ranking": [draft.to_dict() for draft in self.ranking],
            "not_ranked": [draft.to_dict() for draft in self.others],
        }


def _curve_to_dict(curve: TimedCurve) -> JsonObject:
    first = next((p.seconds for p in curve.points if p.rows == 1), None)
    points = [{**asdict(p), "relative": p.seconds / first if first else None} for p in curve.points]
    return {**asdict(curve), "points": points}


def _rows_to_dict(rows: RowsComparison) -> JsonObject:
    fields = asdict(rows)
    renamed = {"alike": fields.pop("equal_up_to"), "unlike": fields.pop("unequal_from")}
    return fields | renamed


def _names(paths: Sequence[str]) -> dict[str, str]:
    """A short name for each file; its path where two files have the same name."""
    short = [os.path.basename(path).removesuffix(".gguf") for path in paths]
    return {path: name if short.count(name) == 1 else path for path, name in zip(paths, short, strict=True)}
