"""The tables of `tune`: figures in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specllama.cli.doctor.files import meaning
from specllama.cli.formatting import rough_duration, table, wrapped
from specllama.cli.tune.results import DraftResult, TuneResults
from specllama.cli.tune.verdict import verdict
from specllama.client.tune_messages import DraftPrediction, RowsComparison, ThreadsComparison
from specllama.text.terminal import printable
from specllama.wording import counted

_MAX_NAME = 36
TRIM_PAYS = 1.02  # times the prediction for the draft as it is, from which trimming is recommended


def lines(results: TuneResults, stored: bool, width: int | None) -> Iterator[str]:
    """All results, no line longer than `width` where possible. stored: whether what was measured is stored,
    unless other programs disturbed it.
    """
    stored = stored and results.storable
    yield from wrapped(_head(results, stored), width)
    yield from _curves(results, width)
    if results.threads and results.threads.points:
        yield from _threads(results.threads, width)
    if results.rows:
        yield from _exactness(results.rows, width)
    yield from _break_even(results, width)
    yield from _ranking(results, width)
    yield from _trimming(results, width)
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


def _threads(threads: ThreadsComparison, width: int | None) -> Iterator[str]:
    points = threads.points
    rows = [
        ["t(1)", *(_ms(p.one) for p in points)],
        [f"t({threads.rows})", *(_ms(p.wide) for p in points)],
    ]
    yield ""
    yield "Threads, ms:"
    yield from table(["-t", *(str(p.threads) for p in points)], rows, width, 1)
    yield from wrapped(threads_verdict(threads), width)


def threads_verdict(threads: ThreadsComparison) -> str:
    """What to do about threads: nothing, or `-t N` where that is clearly better."""
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


def _exactness(rows: RowsComparison, width: int | None) -> Iterator[str]:
    yield ""
    if rows.value is None:
        yield from wrapped(f"Exactness: not measured, {rows.reason}.", width)
        return
    compared = f"({rows.n_rows} rows compared)"
    text = meaning(rows.value, rows.reach, rows.equal_up_to, rows.unequal_from)
    yield from wrapped(f"Exactness: {text} {compared}.", width)


def _break_even(results: TuneResults, width: int | None) -> Iterator[str]:
    shown = [e for e in results.drafts.values() if e.break_even]
    if not shown:
        return
    lengths = [b.k for b in shown[0].break_even]
    rows = []
    for draft in sorted(shown, key=lambda e: e.path is not None):
        step = "-" if draft.path is None else f"{draft.break_even[0].step:.2f} x"
        needed = ("-" if b.acceptance >= 1 else f"{100 * b.acceptance:.0f}" for b in draft.break_even)
        rows.append(["copied" if draft.path is None else _shortened(draft.name), step, *needed])
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
        rows = [_predicted(e, names) for e in ranking]
        yield from table(["draft", "accepted", *map(_shortened, names), "all"], rows, width, 1)
    for draft in results.others:
        why = (
            f"cannot be used: {printable(draft.problem)}" if draft.problem else "was not measured to the end"
        )
        yield from wrapped(f"{printable(draft.name)} {why}.", width)


def _trimming(results: TuneResults, width: int | None) -> Iterator[str]:
    """What trimmed copies of the drafts would do."""
    for draft in results.ranking:
        trimmed, forecast = draft.trimmed, draft.forecast
        if trimmed is None or forecast is None or draft.step is None or trimmed.forecast.speedup is None:
            continue
        text = (
            f"Trimmed to {trimmed.n_kept} of its {trimmed.n_vocab} tokens, {_shortened(draft.name)} takes "
            f"{_ms(trimmed.step)} instead of {_ms(draft.step)} ms a token and predicted "
            f"{_share(trimmed.forecast)} instead of {_share(forecast)} of the tokens: "
            f"{trimmed.forecast.speedup:.2f} instead of {draft.speedup:.2f} over plain decoding"
        )
        pays = trimmed.forecast.speedup > TRIM_PAYS * (draft.speedup or 0.0)
        if pays and not results.disturbed:
            inside = " --head" if draft.inside else ""
            text += f". Trim it: specllama trim {printable(draft.path or '')} OUT.gguf{inside} --texts FILE"
        yield ""
        yield from wrapped(f"{text}.", width)


def _share(forecast: DraftPrediction) -> str:
    return "-" if forecast.acceptance is None else f"{100 * forecast.acceptance:.0f} %"


def _predicted(draft: DraftResult, names: Sequence[str]) -> list[str]:
    forecast = draft.forecast
    assert forecast is not None
    acceptance, parts = forecast.acceptance, forecast.workloads
    speeds = (f"{parts[name].speedup:.2f}" if name in parts else "-" for name in names)
    accepted = "-" if acceptance is None else f"{100 * acceptance:.0f} %"
    return [_shortened(draft.name), accepted, *speeds, f"{forecast.speedup:.2f}"]


def _notes(results: TuneResults) -> Iterator[str]:
    """What to know when judging the figures."""
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
