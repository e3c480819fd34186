"""The figures of a bench in sentences: what auto gains, where it loses, why drafting does not pay, and notes
on how to read the figures. `s`: what `summarise` returns. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.bench.runner import AUTO, LLAMA_CPP, PLAIN
from specllama.bench.summary import Estimate, break_even, second_point, speedup, t1_of
from specllama.json_types import JsonObject
from specllama.wording import counted

_MIN_LOSS = 0.02  # smaller losses are not mentioned
_MAX_ROWS, _MAX_NOTES = 4, 5  # listed by name
_FORCED = (
    "The text was given: every configuration wrote the same text, and a draft was accepted where it agrees "
    "with the text, whatever the model would have written."
)


def verdict(s: JsonObject, off: str = "", busy: bool = False) -> str:
    """One to three sentences. off: why nothing could be drafted at all, "" if something could. busy: whether
    other programs disturbed the figures, which then say nothing certain.
    """
    if off:
        return f"Only plain decoding was measured: {off}."
    total, best = s["total"], s["total"]["best_fixed"]
    auto = speedup(total, AUTO)
    if auto is None or best is None:
        return "Too little was measured to compare drafting with plain decoding."
    if busy:
        return (
            "No verdict: something else kept the machine busy. With auto, decoding ran at "
            f"{times(auto)} the speed of plain decoding meanwhile."
        )
    parts = [f"with auto, decoding ran at {times(auto)} the speed of plain decoding"]
    if (against := total["auto_against_best"]) is not None and best != PLAIN:
        name = f"{best} ({shown(speedup(total, best))} x)"
        parts.append(f"at {times(against)} that of the best fixed length in hindsight, {name}")
    elif not nothing_pays(s):
        parts.append("no fixed length was faster than plain decoding")
    text = " and ".join(parts)
    workloads = [row for row in s["rows"] if row["workload"]]
    if losing := [row for row in workloads if _is_below_1(speedup(row, AUTO))]:
        text += f"; it loses on {_listed(losing)}"
    if better := [row for row in workloads if _fixed_is_faster(row) and row not in losing]:
        text += f"; a fixed length is faster on {_listed(better, best=True)}"
    text = text[0].upper() + text[1:] + "."
    if nothing_pays(s):
        text += f" {why(s)}"
    elif not _certain(s):
        text += " No gain is certain yet: more --runs or prompts narrow the intervals."
    return text


def advice(s: JsonObject, off: str = "", busy: bool = False) -> str:
    """The advice, in one or two sentences. off, busy: as for `verdict`."""
    total = s["total"]
    if off:
        text = "name a draft with -md to compare; specllama models show MODEL lists those that fit."
    elif busy:
        text = "measure again on an idle machine before changing anything."
    elif speedup(total, AUTO) is None or total["best_fixed"] is None:
        text = "let it run to the end, or measure longer answers with -n."
    elif nothing_pays(s):
        text = "keep the default, which drafts where that pays; -md none saves the memory of a draft."
    elif not _certain(s):
        text = "keep the default; measure again with more --runs on an idle machine before changing anything."
    elif _is_below_1(total["auto_over_copies"]):
        text = "-md none was faster here: the draft costs more than it gains."
    elif _fixed_is_faster(total):
        text = f"--draft-max {total['best_fixed']} was faster here than the default; try it for such texts."
    elif better := [row for row in s["rows"] if row["workload"] and _fixed_is_faster(row)]:
        name, best = better[0]["workload"], better[0]["best_fixed"]
        text = f"keep the default; for texts like {name} alone try --draft-max {best}."
    else:
        text = "keep the default, --draft-max auto."
    return f"Advice: {text}"


def draft_answer(s: JsonObject, noun: str) -> str:
    """Whether the draft helps, in a sentence; "" where that was not measured. noun: of the draft."""
    over: Estimate | None = s["total"]["auto_over_copies"]
    if over is None:
        return ""
    gains = f"Your {noun}: {_change(over.value)} over copying alone"
    if over.low is None or over.high is None:
        return f"{gains}, by too few answers for an interval."
    sure = "" if over.low > 1 or over.high < 1 else ", which may be chance"
    return f"{gains} ({_change(over.low)} to {_change(over.high)}){sure}."


def nothing_pays(s: JsonObject) -> bool:
    """Whether no configuration was faster than plain decoding, over all workloads."""
    speedups = _speedups(s)
    return bool(speedups) and all(e.value <= 1 for e in speedups)


def why(s: JsonObject) -> str:
    """Why drafting does not pay: the cost of verifying, the cost of drafting, the acceptance."""
    head = "Speculation does not pay here over all workloads"
    second, t1, got = second_point(s), t1_of(s), s["first_accepted"]
    if second is None or not t1 or got is None:
        return f"{head}: hardly anything was drafted."
    text = (
        f"{head}: a decode of {second['rows']:.3g} rows takes {second['relative']:.2f} x the time of one row"
    )
    if (draft_token := s["draft_token_seconds"]) is not None:
        text += f", a draft token {draft_token / t1:.2f} x"
    need = break_even(s)
    assert need is not None
    accepted = f"{percent(got)} of first draft tokens were accepted"
    if need >= 1:
        return f"{text}, so such drafts cannot pay even if all of them are accepted; {accepted}."
    text += f", so such a draft pays from an acceptance of {percent(need)}; {accepted}"
    if (drafted := s["rounds_drafted"]) is not None and drafted < 0.5:
        text += f", but only {percent(drafted)} of rounds had a draft"
    elif got > need:
        text += ", but later ones less often, and a round takes more time than its decode"
    return f"{text}."


def notes(s: JsonObject) -> list[str]:
    """Sentences on missing answers and on texts that drafts changed. s: the object of --json."""
    lines = []
    if s["interrupted"]:
        lines.append(f"Interrupted: {s['answers']} of {counted(s['planned'], 'answer')} were measured.")
    for name, reason in list(s["skipped"].items())[:_MAX_NOTES]:
        lines.append(f"Left out: prompt {name}: {reason}.")
    if len(s["skipped"]) > _MAX_NOTES:
        lines.append(f"Left out: {counted(len(s['skipped']) - _MAX_NOTES, 'more prompt')}.")
    if s["too_short"]:
        lines.append(f"{counted(s['too_short'], 'answer')} ended with the first token, which has no speed.")
    if (own := speedup(s["total"], LLAMA_CPP)) is not None:
        lines.append(f"With llama.cpp's own kernels plain decoding runs at {times(own)} of this speed.")
    if s["settings"]["text"] is not None:
        return [*lines, _FORCED]
    return lines + ([_text_note(s)] if s["texts_compared"] else [])


def extent(settings: Mapping[str, Any]) -> str:
    """How much of an answer is measured: `up to 64 tokens each`."""
    n = settings["n_tokens"]
    if settings["text"] is None:
        return f"up to {counted(n, 'token')} each"
    return "each a given text" + ("" if n is None else f", up to {counted(n, 'token')} of it")


def draft_name(s: Mapping[str, Any]) -> str:
    """For people: "draft NAME QUANT", the head, or both; "" without one. s: the object of --json."""
    draft, head = s["draft"], s.get("head", "")
    if draft is None:
        return ""
    name = f"{draft['name']} {draft['quant']}"
    if not head:
        return f"draft {name}"
    own, alone = f"head of the model ({head})", draft["path"] == s["target"]["path"]
    if s.get("head_in_target", alone):
        return own if alone else f"{own} + draft {name}"
    return f"head {name} ({head})"


def times(e: Estimate, unit: str = " x") -> str:
    """`1.42 x (1.35 - 1.50)`; without the brackets if there is no interval."""
    interval = "" if e.low is None or e.high is None else f" ({e.low:.2f} - {e.high:.2f})"
    return f"{e.value:.2f}{unit}{interval}"


def shown(value: Estimate | float | None, form: str = ".2f", factor: float = 1) -> str:
    """A figure for a table, "-" where there is none."""
    if value is None:
        return "-"
    return format(factor * (value.value if isinstance(value, Estimate) else value), form)


def percent(share: float | None) -> str:
    """`42 %`, "-" where there is no figure."""
    return "-" if share is None else f"{100 * share:.0f} %"


def label(row: JsonObject) -> str:
    """`edit at temperature 0.8`, `all`."""
    name, temperature = row["workload"] or "all", row["temperature"]
    return str(name) if temperature is None else f"{name} at temperature {temperature:g}"


def _certain(s: JsonObject) -> bool:
    """Whether some configuration is faster than plain decoding with its whole interval."""
    return any(e.low is not None and e.low > 1 for e in _speedups(s))


def _speedups(s: JsonObject) -> list[Estimate]:
    drafting = (speedup(s["total"], name) for name in s["configurations"] if name not in (PLAIN, LLAMA_CPP))
    return [e for e in drafting if e is not None]


def _is_below_1(e: Estimate | None) -> bool:
    """Whether a quotient of speeds is a loss with its whole interval."""
    return e is not None and e.value < 1 - _MIN_LOSS and e.high is not None and e.high < 1


def _fixed_is_faster(row: JsonObject) -> bool:
    """Whether a fixed length is faster than auto with its whole interval."""
    return row["best_fixed"] != PLAIN and _is_below_1(row["auto_against_best"])


def _listed(rows: list[JsonObject], best: bool = False) -> str:
    """The rows with auto's speed-up, or with the best fixed length and its."""
    listed = []
    for row in rows[:_MAX_ROWS]:
        name = row["best_fixed"] if best and row["best_fixed"] else AUTO
        length = f"length {name}: " if best else ""
        listed.append(f"{label(row)} ({length}{shown(speedup(row, name))} x)")
    if len(rows) > _MAX_ROWS:
        listed.append(f"{len(rows) - _MAX_ROWS} more")
    return ", ".join(listed)


def _text_note(s: JsonObject) -> str:
    different, compared = s["texts_different"], s["texts_compared"]
    n = len(different)
    if not n:
        return f"Texts: all {compared} equal plain decoding's, token for token."
    named = "; ".join(
        f"{d['workload']} {d['prompt']} at {d['temperature']:g}, length {d['configuration']}, "
        f"token {d['token'] + 1}"
        for d in different[:_MAX_NOTES]
    )
    more = f"; {n - _MAX_NOTES} more" if n > _MAX_NOTES else ""
    reason = (
        "although --exact was given: please report it."
        if s["exact"]
        else "Rows of a batch are rounded differently, and a near-tie can fall the other way; --exact "
        "decides those on rows decoded alone."
    )
    differ = f"{n} of {compared} differ from plain decoding's from some token on"
    return f"Texts: {differ} ({named}{more}). {reason}"


def _change(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"
