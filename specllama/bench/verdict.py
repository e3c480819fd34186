"""The figures of a bench in sentences: what auto gains, where it loses, why drafting does not pay, and notes
on how to read the figures. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.bench.intervals import Estimate
from specllama.bench.plan import AUTO, LLAMA_CPP, PLAIN
from specllama.bench.summary import BenchSummary, SummaryRow
from specllama.wording import counted

_MIN_LOSS = 0.02  # smaller losses are not mentioned
_MAX_ROWS, _MAX_NOTES = 4, 5  # listed by name
_FORCED = (
    "The text was given: every configuration wrote the same text, and a draft was accepted where it agrees "
    "with the text, whatever the model would have written."
)


def verdict(s: BenchSummary, off: str = "") -> str:
    """One to three sentences. off: why nothing could be drafted at all, "" if something could."""
    if off:
        return f"Only plain decoding was measured: {off}."
    total = s.total
    auto = total.cells.get(AUTO)
    speedup = auto.speedup if auto else None
    if speedup is None or total.best is None:
        return "Too little was measured to compare drafting with plain decoding."
    parts = [f"with auto, decoding ran at {times(speedup)} the speed of plain decoding"]
    if (against := total.auto_against_best) is not None and total.best != PLAIN:
        best = total.cells[total.best].speedup
        assert best is not None
        name = f"{total.best} ({best.value:.2f} x)"
        parts.append(f"at {times(against)} that of the best fixed length in hindsight, {name}")
    elif not nothing_pays(s):
        parts.append("no fixed length was faster than plain decoding")
    text = " and ".join(parts)
    if losing := [row for row in s.rows if row.workload and _loses(row)]:
        text += f"; it loses on {_listed(losing)}"
    if better := [row for row in s.rows if row.workload and _fixed_is_faster(row) and row not in losing]:
        text += f"; a fixed length is faster on {_listed(better, best=True)}"
    text = text[0].upper() + text[1:] + "."
    if nothing_pays(s):
        text += f" {why(s)}"
    elif not _certain(s):
        text += " No gain is certain yet: more --runs or prompts narrow the intervals."
    return text


def advice(s: BenchSummary, off: str = "", busy: bool = False) -> str:
    """What to do, in one or two sentences. off: as for `verdict`. busy: whether other programs disturbed the
    figures, which then give no advice.
    """
    auto = s.total.cells.get(AUTO)
    if off:
        text = "name a draft with -md to compare; specllama models show MODEL lists those that fit."
    elif busy:
        text = "measure again on an idle machine before changing anything."
    elif auto is None or auto.speedup is None or s.total.best is None:
        text = "let it run to the end, or measure longer answers with -n."
    elif nothing_pays(s):
        text = "keep the default, which drafts where that pays; -md none saves the memory of a draft."
    elif not _certain(s):
        text = "keep the default; measure again with more --runs on an idle machine before changing anything."
    elif _copies_are_faster(s.total):
        text = "-md none was faster here: the draft costs more than it gains."
    elif _fixed_is_faster(s.total):
        text = f"--draft-max {s.total.best} was faster here than the default; try it for such texts."
    elif better := [row for row in s.rows if row.workload and _fixed_is_faster(row)]:
        text = (
            f"keep the default; for texts like {better[0].workload} alone try --draft-max {better[0].best}."
        )
    else:
        text = "keep the default, --draft-max auto."
    return f"Advice: {text}"


def draft_answer(s: BenchSummary, noun: str, busy: bool = False) -> str:
    """Whether the draft helps, in a sentence; "" where that was not measured. noun: of the draft. busy: as
    for `advice`.
    """
    over = s.total.auto_over_copies
    if over is None:
        return ""
    if busy:
        return f"Your {noun}: cannot tell what it gains over copying alone, the machine was busy."
    gains = f"Your {noun}: {_change(over.value)} over copying alone"
    if over.low is None or over.high is None:
        return f"{gains}, by too few answers for an interval."
    sure = "" if over.low > 1 or over.high < 1 else ", which may be chance"
    return f"{gains} ({_change(over.low)} to {_change(over.high)}){sure}."


def nothing_pays(s: BenchSummary) -> bool:
    """Whether no configuration was faster than plain decoding, over all workloads."""
    speedups = _speedups(s)
    return bool(speedups) and all(e.value <= 1 for e in speedups)


def why(s: BenchSummary) -> str:
    """Why drafting does not pay: the cost of verifying, the cost of drafting, the acceptance."""
    costs, head = s.costs, "Speculation does not pay here over all workloads"
    second, t1 = costs.second, costs.t1
    if second is None or not t1 or costs.first_accepted is None:
        return f"{head}: hardly anything was drafted."
    text = f"{head}: a decode of {second.rows:.3g} rows takes {second.seconds / t1:.2f} x the time of one row"
    if costs.draft_token is not None:
        text += f", a draft token {costs.draft_token / t1:.2f} x"
    need, got = costs.break_even, costs.first_accepted
    assert need is not None
    accepted = f"{_percent(got)} of first draft tokens were accepted"
    if need >= 1:
        return f"{text}, so such drafts cannot pay even if all of them are accepted; {accepted}."
    text += f", so such a draft pays from an acceptance of {_percent(need)}; {accepted}"
    if costs.drafted is not None and costs.drafted < 0.5:
        text += f", but only {_percent(costs.drafted)} of rounds had a draft"
    elif got > need:
        text += ", but later ones less often, and a round takes more time than its decode"
    return f"{text}."


def notes(s: BenchSummary, about: Mapping[str, Any]) -> list[str]:
    """What is missing, and whether drafts changed a text. about: as in `record`."""
    lines = []
    if about["interrupted"]:
        lines.append(f"Interrupted: {s.answers} of {counted(about['planned'], 'answer')} were measured.")
    for name, reason in list(about["skipped"].items())[:_MAX_NOTES]:
        lines.append(f"Left out: prompt {name}: {reason}.")
    if len(about["skipped"]) > _MAX_NOTES:
        lines.append(f"Left out: {counted(len(about['skipped']) - _MAX_NOTES, 'more prompt')}.")
    if s.too_short:
        lines.append(f"{counted(s.too_short, 'answer')} ended with the first token, which has no speed.")
    own = s.total.cells.get(LLAMA_CPP)
    if own is not None and own.speedup is not None:
        lines.append(
            f"With llama.cpp's own kernels plain decoding runs at {times(own.speedup)} of this speed."
        )
    if about["settings"]["text"] is not None:
        return [*lines, _FORCED]
    return lines + ([_text_note(s, about["exact"])] if s.compared else [])


def extent(settings: Mapping[str, Any]) -> str:
    """How much of an answer is measured: `up to 64 tokens each`."""
    n = settings["n_tokens"]
    if settings["text"] is None:
        return f"up to {counted(n, 'token')} each"
    return "each a given text" + ("" if n is None else f", up to {counted(n, 'token')} of it")


def times(e: Estimate) -> str:
    """`1.42 x (1.35 - 1.50)`; without the brackets if there is no interval."""
    interval = "" if e.low is None or e.high is None else f" ({e.low:.2f} - {e.high:.2f})"
    return f"{e.value:.2f} x{interval}"


def label(row: SummaryRow) -> str:
    """`edit at temperature 0.8`, `all`."""
    name = row.workload or "all"
    return name if row.temperature is None else f"{name} at temperature {row.temperature:g}"


def _certain(s: BenchSummary) -> bool:
    """Whether some configuration is faster than plain decoding with its whole interval."""
    return any(e.low is not None and e.low > 1 for e in _speedups(s))


def _speedups(s: BenchSummary) -> list[Estimate]:
    drafting = (c.speedup for name, c in s.total.cells.items() if name not in (PLAIN, LLAMA_CPP))
    return [speedup for speedup in drafting if speedup is not None]


def _loses(row: SummaryRow) -> bool:
    """Whether auto is slower than plain decoding with its whole interval."""
    auto = row.cells.get(AUTO)
    e = auto.speedup if auto else None
    return e is not None and e.value < 1 - _MIN_LOSS and e.high is not None and e.high < 1


def _fixed_is_faster(row: SummaryRow) -> bool:
    """Whether a fixed length is faster than auto with its whole interval."""
    e = row.auto_against_best
    return (
        row.best != PLAIN and e is not None and e.value < 1 - _MIN_LOSS and e.high is not None and e.high < 1
    )


def _copies_are_faster(row: SummaryRow) -> bool:
    """Whether auto is faster without the draft with its whole interval."""
    e = row.auto_over_copies
    return e is not None and e.value < 1 - _MIN_LOSS and e.high is not None and e.high < 1


def _listed(rows: list[SummaryRow], best: bool = False) -> str:
    shown = []
    for row in rows[:_MAX_ROWS]:
        cell = row.cells[row.best if best and row.best else AUTO]
        e = cell.speedup
        assert e is not None
        shown.append(f"{label(row)} ({f'length {row.best}: ' if best else ''}{e.value:.2f} x)")
    if len(rows) > _MAX_ROWS:
        shown.append(f"{len(rows) - _MAX_ROWS} more")
    return ", ".join(shown)


def _text_note(s: BenchSummary, exact: bool) -> str:
    n = len(s.differences)
    if not n:
        return f"Texts: all {s.compared} equal plain decoding's, token for token."
    shown = "; ".join(
        f"{d.case.workload} {d.case.number} at {d.case.temperature:g}, length {d.config}, token {d.token + 1}"
        for d in s.differences[:_MAX_NOTES]
    )
    more = f"; {n - _MAX_NOTES} more" if n > _MAX_NOTES else ""
    reason = (
        "although --exact was given: please report it."
        if exact
        else "Rows of a batch are rounded differently, and a near-tie can fall the other way; --exact "
        "decides those on rows decoded alone."
    )
    differ = f"{n} of {s.compared} differ from plain decoding's from some token on"
    return f"Texts: {differ} ({shown}{more}). {reason}"


def _change(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
