"""The figures of a sweep in sentences, and notes on how to read them. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.bench.serving.summary import ServingRow, ServingSummary
from specllama.bench.serving.sweep import PLAIN
from specllama.wording import counted

_CACHED = 0.25  # share of cached prompt tokens above which there is a note


def name(about: Mapping[str, Any]) -> str:
    """Model and address, for a headline."""
    server = about["server"]
    return f"{server['model'] or 'no model named'} at {server['url']}"


def extent(about: Mapping[str, Any]) -> str:
    """How much was measured, with which settings."""
    settings = about["settings"]
    tokens = f"{'' if settings['ignore_eos'] else 'up to '}{counted(settings['n_tokens'], 'token')} each"
    return (
        f"{about['answers']} of {counted(about['planned'], 'answer')}, "
        f"{counted(settings['requests'], 'request')} "
        f"at every concurrency, {tokens}, temperature {settings['temperature']:g}, "
        f"{counted(settings['runs'], 'run')}, medians of the runs"
    )


def verdict(s: ServingSummary, one_series: str) -> str:
    """One to three sentences. one_series: why there is only one series, "" if there are two."""
    rated = [row for row in s.rows if row.tps]
    if not rated:
        return "Too little was measured to say anything."
    parts = []
    if s.ratios:
        each = ", ".join(f"{ratio:.2f} x at {c}" for c, ratio in s.ratios.items())
        parts.append(f"Tokens per second with speculation over without it, by concurrency: {each}.")
    main = [row for row in rated if row.series != PLAIN] or rated
    best = max(main, key=_rate)
    text = f"Most tokens per second: {_rate(best):.1f} at a concurrency of {best.concurrency}"
    if (single := next((row for row in main if row.concurrency == 1), None)) and best.concurrency > 1:
        text += f", {_rate(best) / _rate(single):.2f} x that of a single client"
    parts.append(f"{text}.")
    if one_series:
        parts.append(f"One series: {one_series}.")
    return " ".join(parts)


def notes(s: ServingSummary, about: Mapping[str, Any]) -> list[str]:
    """What is missing, what the times include, and whether drafts changed a text."""
    lines = []
    if about["interrupted"]:
        lines.append(
            f"Interrupted: {about['answers']} of {counted(about['planned'], 'answer')} were measured."
        )
    if about["failure"]:
        lines.append(f"Ended by: {about['failure']}.")
    if failed := sum(row.failed for row in s.rows):
        first = next(iter(about["problems"]), "")
        lines.append(f"{counted(failed, 'request')} failed{f', the first one: {first}' if first else ''}.")
    if refused := sum(row.refused for row in s.rows):
        lines.append(f"{counted(refused, 'time')} the server was busy (429); the times include the waits.")
    if not s.counted and any(row.answers for row in s.rows):
        lines.append("The server does not count tokens: each chunk of its streams counts as one.")
    slots, most = about["server"]["n_slots"], max((row.concurrency for row in s.rows), default=0)
    if slots is not None and slots < most:
        lines.append(f"The server answers {counted(slots, 'request')} at once; more than that wait.")
    cached = [row.cached for row in s.rows if row.cached is not None]
    if cached and max(cached) > _CACHED:
        lines.append(f"The server had up to {100 * max(cached):.0f} % of the prompt tokens cached.")
    if s.compared:
        lines.append(_texts(s, about["settings"]["temperature"]))
    return lines


def _texts(s: ServingSummary, temperature: float) -> str:
    if not s.different:
        return f"Texts: all {s.compared} are the same with speculation and without it."
    return (
        f"Texts: {s.different} of {s.compared} are not the same with speculation and without it"
        f"{', at the same seed' if temperature else ''}. Requests that run together are rounded differently, "
        "and a near-tie can fall the other way; `serve -np 1` answers them one by one."
    )


def _rate(row: ServingRow) -> float:
    return row.tps or 0.0
