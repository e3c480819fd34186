"""What has to be known to judge the figures: what is missing, and whether drafts changed a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.bench.summary import BenchSummary

_MOST_NAMED = 5
_GIVEN = (
    "The text was given, and every way of decoding wrote it as it is: a draft was accepted where it agrees "
    "with the text, whatever the model would have written."
)


def notes(s: BenchSummary, about: Mapping[str, Any]) -> list[str]:
    """Sentences. about: as in `record`."""
    found = []
    if about["interrupted"]:
        found.append(f"Interrupted: {s.answers} of {about['planned']} answers were measured.")
    for name, why in list(about["skipped"].items())[:_MOST_NAMED]:
        found.append(f"Left out: prompt {name}: {why}.")
    if len(about["skipped"]) > _MOST_NAMED:
        found.append(f"Left out: {len(about['skipped']) - _MOST_NAMED} more prompts.")
    if s.too_short:
        found.append(f"{s.too_short} answers ended with their first token and have no speed.")
    if about["settings"]["text"] is not None:
        return [*found, _GIVEN]
    return found + ([_texts(s, about["exact"])] if s.compared else [])


def extent(settings: Mapping[str, Any]) -> str:
    """How much of an answer is measured: `up to 64 tokens each`."""
    n = settings["n_tokens"]
    if settings["text"] is None:
        return f"up to {n} tokens each"
    return "each a given text" + ("" if n is None else f", up to {n} tokens of it")


def _texts(s: BenchSummary, exact: bool) -> str:
    n = len(s.differences)
    if not n:
        return f"Texts: all {s.compared} are plain decoding's, token for token."
    shown = "; ".join(
        f"{d.unit.workload} {d.unit.number} at {d.unit.temperature:g}, length {d.config}, token {d.token + 1}"
        for d in s.differences[:_MOST_NAMED]
    )
    more = f"; {n - _MOST_NAMED} more" if n > _MOST_NAMED else ""
    why = (
        "although --exact was given: please report it."
        if exact
        else "Rows of a batch are rounded differently, and a near-tie can fall the other way; --exact "
        "decides those on rows decoded alone."
    )
    return f"Texts: {n} of {s.compared} are not plain decoding's from some token on ({shown}{more}). {why}"
