"""The measurements of a `tune`, from the parts that the engine process reports: tables and verdict."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from specllama.bench.words import percent
from specllama.cli.bench.plan import PartialResults
from specllama.cli.doctor.report import meaning
from specllama.cli.formatting import rough_duration, table, wrapped
from specllama.client import tune_messages
from specllama.client.model_info import LoadInfo
from specllama.config.load import ModelSettings
from specllama.core.replay.break_even import easiest
from specllama.json_types import JsonObject
from specllama.models.foreign_drafts import PAYS as DRAFT_PAYS
from specllama.text.terminal import printable
from specllama.wording import counted

COPY = "copy alone"
OWN_HEAD = "head of the model"


@dataclass(slots=True)
class DraftResult:
    """A draft, or copies (path None). inside: it is the head inside the target. measured: by the engine."""

    name: str
    path: str | None
    inside: bool
    measured: tune_messages.MeasuredDraft

    @property
    def speedup(self) -> float | None:
        """Predicted, relative to plain decoding; None without a prediction."""
        return self.measured.forecast.speedup if self.measured.forecast else None

    def to_dict(self) -> JsonObject:
        m = self.measured
        return {
            "name": self.name,
            "path": self.path,
            "problem": m.problem,
            "model": asdict(m.model) if m.model else None,
            "head": m.head,
            "step_seconds": m.step,
            "step_points": [asdict(point) for point in m.points],
            "break_even": [asdict(b) for b in m.break_even],
            **(asdict(m.forecast) if m.forecast else {"speedup": None, "acceptance": None, "workloads": {}}),
            "trimmed": None,  # of earlier versions
        }


class TuneResults(PartialResults):
    """The measurements of a `tune` so far.

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

        def result(path: str, problem: str = "") -> DraftResult:
            return DraftResult(names[path], path, path == target, tune_messages.MeasuredDraft(-1, problem))

        self.drafts = {i: result(path) for i, path in enumerate(paths)}
        if copies:
            self.drafts[-1] = DraftResult(COPY, None, False, tune_messages.MeasuredDraft(-1))
        self.unusable = [result(path, reason) for path, reason in unusable.items()]
        self.info: LoadInfo  # once the target is loaded
        self.agenda: tune_messages.TuneAgenda | None = None
        self.curves: list[tune_messages.TimedCurve] = []
        self.threads: tune_messages.ThreadsComparison | None = None
        self.rows: tune_messages.RowsComparison | None = None
        self.texts: Mapping[str, tune_messages.TextCount] = {}
        self.seconds = 0.0

    def add(self, part: tune_messages.TunePart) -> None:
        match part:
            case tune_messages.TuneAgenda():
                self.agenda = part
            case tune_messages.TimedCurve():
                self.curves += [part] if part.points else []
            case tune_messages.ThreadsComparison():
                self.threads = part
            case tune_messages.RowsComparison():
                self.rows = part
            case tune_messages.WrittenTexts():
                self.texts = part.workloads
            case tune_messages.MeasuredDraft():
                self.drafts[part.index].measured = part

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
        return any(curve.complete and not curve.disturbed for curve in self.curves)

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
        """A part of schema specllama.tune/1."""
        curves = [asdict(curve) for curve in self.curves]
        for curve in curves:
            first = next((p["seconds"] for p in curve["points"] if p["rows"] == 1), None)
            curve["points"] = [
                {**p, "relative": p["seconds"] / first if first else None} for p in curve["points"]
            ]
        rows, agenda = asdict(self.rows) if self.rows else None, self.agenda
        if rows is not None:
            rows |= {"alike": rows.pop("equal_up_to"), "unlike": rows.pop("unequal_from")}
        return {
            "seconds": self.seconds,
            "interrupted": self.is_partial,
            "disturbed": self.disturbed,
            "t_n": curves,
            "threads": asdict(self.threads) if self.threads else None,
            "epsilon": rows,
            "n_tokens": agenda.n_tokens if agenda else None,
            "prompts_left_out": agenda.n_left_out if agenda else None,
            "prompts_too_long": agenda.too_long if agenda else {},
            "texts": {name: asdict(count) for name, count in self.texts.items()},
            "ranking": [draft.to_dict() for draft in self.ranking],
            "not_ranked": [draft.to_dict() for draft in self.others],
        }


def _names(paths: Sequence[str]) -> dict[str, str]:
    """A short name for each file; its path where two files have the same name."""
    short = [os.path.basename(path).removesuffix(".gguf") for path in paths]
    return {path: name if short.count(name) == 1 else path for path, name in zip(paths, short, strict=True)}


PAYS = 1.01  # times plain decoding; less is no gain
_OTHER_WORK = 0.005  # seconds of t(1) below which work other than decoding matters
_FEW = 200  # tokens; a ranking by fewer is a guess


def verdict(results: TuneResults) -> str:
    """A few sentences, which claim nothing beyond the prediction."""
    ranking = results.ranking
    if results.disturbed:
        return "No draft is recommended by figures that are off."
    if not ranking:
        why = "it was interrupted before" if results.interrupted or results.failure else "nothing drafts here"
        return f"No draft was ranked: {why}."
    best = ranking[0]
    text = f"Best: plain decoding. {_why(best)} The default decides so by itself."
    if (best.speedup or 0.0) >= PAYS:
        text = f"Best: {_flag(best)}, predicted {best.speedup:.2f} x plain decoding."
        text += _left_out(best, ranking)
    text += " Predicted, not measured: `specllama bench` measures."
    return " ".join([text, *_reservations(results)])


def _flag(draft: DraftResult) -> str:
    if draft.inside:
        return "the head of the model (-md auto)"
    return f"-md {printable(draft.path)}" if draft.path is not None else "copying alone (-md none)"


def _left_out(best: DraftResult, ranking: Sequence[DraftResult]) -> str:
    """That `-md auto` does not use the best draft, where one of another vocabulary gains too little."""
    copied = next((e.speedup or 0.0 for e in ranking if e.path is None), 0.0)
    gain = (best.speedup or 0.0) / max(1.0, copied)
    if not best.measured.translated or gain >= DRAFT_PAYS:
        return ""
    over = "copying alone" if copied > 1 else "plain decoding"
    return (
        f" That is {gain:.2f} x {over}; -md auto uses a draft of another vocabulary from {DRAFT_PAYS:.2f} x "
        "and leaves this one out."
    )


def _why(best: DraftResult) -> str:
    need, forecast = easiest(best.measured.break_even), best.measured.forecast
    text = f"The best draft, {_flag(best)}, is predicted to reach {best.speedup:.2f} x of it"
    if need is None:
        return f"{text}."
    costs = f"a decode of {need.k + 1} rows takes {need.decode:.2f} x one row's time"
    if best.path is not None:
        costs += f" and a token of the draft {need.step:.2f} x"
    if need.acceptance >= 1:
        return f"{text}: {costs}, so that no draft can pay."
    text += f": {costs}, so that a draft pays from an acceptance of {percent(need.acceptance)} at best"
    if forecast is not None and forecast.acceptance is not None:
        return f"{text}; {percent(forecast.acceptance)} of the tokens were right."
    if forecast is not None and forecast.n_drafted:
        share = forecast.n_accept / forecast.n_drafted
        return f"{text}, and {percent(share)} of the copied tokens were right."
    return f"{text}, and there was hardly anything to copy."


def _reservations(results: TuneResults) -> list[str]:
    out = []
    n_tokens = sum(t.tokens for t in results.texts.values())
    if n_tokens < _FEW:
        out.append(f"It rests on only {counted(n_tokens, 'token')}; -n or --prompts give more.")
    if results.t1 is not None and results.t1 < _OTHER_WORK:
        out.append(
            "It leaves out the time of a round other than decoding, which matters where t(1) is "
            f"{1000 * results.t1:.2g} ms: less is gained."
        )
    if results.agenda is not None and results.agenda.replays:
        out.append("It leaves out replays, which this model needs where a draft is not accepted whole.")
    return out


_MAX_NAME = 36


def lines(results: TuneResults, stored: bool, width: int | None) -> Iterator[str]:
    """All results, within `width` where possible. stored: whether undisturbed figures are stored."""
    stored = stored and results.storable
    yield from wrapped(_head(results, stored), width)
    yield from _curves(results, width)
    if results.threads and results.threads.points:
        yield from _threads(results.threads, width)
    if results.rows:
        yield from _exactness(results.rows, width)
    yield from _break_even(results, width)
    yield from _ranking(results, width)
    yield ""
    for text in [*_notes(results), verdict(results)]:
        yield from wrapped(text, width)


def _head(results: TuneResults, stored: bool) -> str:
    target, n = results.info.target, results.info.n_threads
    name = f"target {printable(target.name)} {target.quant}, {counted(n, 'thread')}"
    kept = "stored for the next run" if stored else "nothing was stored"
    if results.is_partial:
        return f"{name}; interrupted, {'what was complete is ' if stored else ''}{kept}"
    return f"{name}; measured in {rough_duration(results.seconds)}, {kept}"


def _curves(results: TuneResults, width: int | None) -> Iterator[str]:
    for curve in results.curves:
        points = curve.points
        first = next((p.seconds for p in points if p.rows == 1), None)
        rows = [["ms", *(_ms(p.seconds) for p in points)]]
        if first:
            rows.append(["x t(1)", *(f"{p.seconds / first:.2f}" for p in points)])
        yield ""
        yield from wrapped(f"t(n), a decode of n rows after {curve.n_ids} tokens:", width)
        yield from table(["rows", *(str(p.rows) for p in points)], rows, width, 1)
        if curve.left_out:
            left = ", ".join(map(str, curve.left_out))
            yield from wrapped(f"Not timed, for lack of time or room: {left} rows.", width)


def _threads(threads: tune_messages.ThreadsComparison, width: int | None) -> Iterator[str]:
    points = threads.points
    rows = [["t(1)", *(_ms(p.one) for p in points)], [f"t({threads.rows})", *(_ms(p.wide) for p in points)]]
    yield ""
    yield "Threads, ms:"
    yield from table(["-t", *(str(p.threads) for p in points)], rows, width, 1)
    yield from wrapped(threads_verdict(threads), width)


def threads_verdict(threads: tune_messages.ThreadsComparison) -> str:
    """The advice on threads: none, or `-t N` where that is clearly better."""
    used, batch = threads.used, threads.used_batch
    name = f"-t {used}" + (f" -tb {batch}" if batch != used else "")
    if threads.disturbed:
        return f"{name} is used; other programs disturbed the comparison."
    if len(threads.points) < 2:
        return f"{name} is used; no other number of threads was timed."
    if not threads.clear:
        return f"{name} is used; no other number is clearly faster."
    best = f"-t {threads.fastest}"
    return f"{best} is {threads.gain:.2f} x as fast as {name}, which is used: give {best}, and tune again."


def _exactness(rows: tune_messages.RowsComparison, width: int | None) -> Iterator[str]:
    yield ""
    if rows.value is None:
        yield from wrapped(f"Exactness: not measured, {rows.reason}.", width)
        return
    compared = f"({rows.n_rows} rows compared)"
    text = meaning(rows.value, rows.reach, rows.equal_up_to, rows.unequal_from)
    yield from wrapped(f"Exactness: {text} {compared}.", width)


def _break_even(results: TuneResults, width: int | None) -> Iterator[str]:
    shown = sorted(
        (e for e in results.drafts.values() if e.measured.break_even), key=lambda e: e.path is not None
    )
    if not shown:
        return
    rows = []
    for draft in shown:
        points = draft.measured.break_even
        needed = ("-" if b.acceptance >= 1 else f"{100 * b.acceptance:.0f}" for b in points)
        copied = draft.path is None
        first = ["copied", "-"] if copied else [_shortened(draft.name), f"{points[0].step:.2f} x"]
        rows.append([*first, *needed])
    lengths = [b.k for b in shown[0].measured.break_even]
    yield ""
    head = "A draft of k tokens pays from an acceptance of, % (- never); token: of the draft, in t(1):"
    yield from wrapped(head, width)
    yield from table(["k", "token", *map(str, lengths)], rows, width, 1)


def _ranking(results: TuneResults, width: int | None) -> Iterator[str]:
    ranking = results.ranking
    names = list(results.texts)
    if ranking:
        n_texts = sum(t.texts for t in results.texts.values())
        n_tokens = sum(t.tokens for t in results.texts.values())
        yield ""
        yield from wrapped(
            f"Predicted speed over plain decoding, on {counted(n_texts, 'text')} "
            f"({counted(n_tokens, 'token')}) that the target wrote greedily, each draft together with "
            "copying; accepted: the share of these tokens that the draft predicted:",
            width,
        )
        rows = []
        for draft in ranking:
            forecast = draft.measured.forecast
            assert forecast is not None
            speeds = (
                f"{forecast.workloads[n].speedup:.2f}" if n in forecast.workloads else "-" for n in names
            )
            accepted = percent(forecast.acceptance)
            rows.append([_shortened(draft.name), accepted, *speeds, f"{forecast.speedup:.2f}"])
        yield from table(["draft", "accepted", *map(_shortened, names), "all"], rows, width, 1)
    for draft in results.others:
        problem = draft.measured.problem
        why = f"cannot be used: {printable(problem)}" if problem else "was not measured to the end"
        yield from wrapped(f"{printable(draft.name)} {why}.", width)


def _notes(results: TuneResults) -> Iterator[str]:
    if results.disturbed:
        yield (
            "Something else kept the machine busy, and the figures are off: they are not stored. "
            "Tune again when it is idle."
        )
    if results.agenda is None:
        return
    too_long = results.agenda.too_long
    for name, why in list(too_long.items())[:3]:
        yield f"Left out: prompt {name}: {why}."
    if len(too_long) > 3:
        yield f"Left out: {counted(len(too_long) - 3, 'more prompt')}."
    if n := results.agenda.n_left_out:
        most = counted(results.agenda.n_tokens, "token")
        yield f"Left out, for lack of time: {counted(n, 'prompt')}; texts have up to {most}."


def _shortened(name: str) -> str:
    """A name short enough for a table: its two ends, which tell models apart."""
    name, half = printable(name), (_MAX_NAME - 3) // 2
    return name if len(name) <= _MAX_NAME else f"{name[:half]}...{name[-half:]}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"
