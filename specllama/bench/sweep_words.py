"""The figures of a sweep in sentences, and notes on how to read them. `s`: the object of `bench --server
--json`. Prints nothing.
"""

from __future__ import annotations

from specllama.bench.sweep import PLAIN
from specllama.json_types import JsonObject
from specllama.wording import counted

_CACHED = 0.25  # share of cached prompt tokens above which there is a note


def name(s: JsonObject) -> str:
    """Model and address, for a headline."""
    server = s["server"]
    return f"{server['model'] or 'no model named'} at {server['url']}"


def extent(s: JsonObject) -> str:
    """How much was measured, with which settings."""
    settings = s["settings"]
    tokens = f"{'' if settings['ignore_eos'] else 'up to '}{counted(settings['n_tokens'], 'token')} each"
    return (
        f"{s['answers']} of {counted(s['planned'], 'answer')}, {counted(settings['requests'], 'request')} "
        f"at every concurrency, {tokens}, temperature {settings['temperature']:g}, "
        f"{counted(settings['runs'], 'run')}, medians of the runs"
    )


def verdict(s: JsonObject, one_series: str) -> str:
    """One to three sentences. s: what `summarise` returns. one_series: why there is only one series, "" if
    there are two.
    """
    rated = [row for row in s["rows"] if row["tps"]]
    if not rated:
        return "Too little was measured to say anything."
    parts = []
    if ratios := s["speculative_against_plain"]:
        each = ", ".join(f"{one['tps']:.2f} x at {one['concurrency']}" for one in ratios)
        parts.append(f"Tokens per second with speculation over without it, by concurrency: {each}.")
    main = [row for row in rated if row["series"] != PLAIN] or rated
    best = max(main, key=lambda row: row["tps"])
    text = f"Most tokens per second: {best['tps']:.1f} at a concurrency of {best['concurrency']}"
    single = next((row for row in main if row["concurrency"] == 1), None)
    if single and best["concurrency"] > 1:
        text += f", {best['tps'] / single['tps']:.2f} x that of a single client"
    parts.append(f"{text}.")
    if one_series:
        parts.append(f"One series: {one_series}.")
    return " ".join(parts)


def notes(s: JsonObject) -> list[str]:
    """What is missing, what the times include, and whether drafts changed a text."""
    rows, lines = s["rows"], []
    if s["interrupted"]:
        lines.append(f"Interrupted: {s['answers']} of {counted(s['planned'], 'answer')} were measured.")
    if s["failure"]:
        lines.append(f"Ended by: {s['failure']}.")
    if failed := sum(row["failed"] for row in rows):
        first = f", the first one: {s['problems'][0]}" if s["problems"] else ""
        lines.append(f"{counted(failed, 'request')} failed{first}.")
    if refused := sum(row["refused"] for row in rows):
        lines.append(f"{counted(refused, 'time')} the server was busy (429); the times include the waits.")
    if s["tokens_counted_by"] != "server" and any(row["answers"] for row in rows):
        lines.append("The server does not count tokens: each chunk of its streams counts as one.")
    slots, most = s["server"]["n_slots"], max((row["concurrency"] for row in rows), default=0)
    if slots is not None and slots < most:
        lines.append(f"The server answers {counted(slots, 'request')} at once; more than that wait.")
    cached = max((row["prompt_cached"] or 0.0 for row in rows), default=0.0)
    if cached > _CACHED:
        lines.append(f"The server had up to {100 * cached:.0f} % of the prompt tokens cached.")
    if s["texts_compared"]:
        lines.append(_texts(s))
    return lines


def _texts(s: JsonObject) -> str:
    different, compared = s["texts_different"], s["texts_compared"]
    if not different:
        return f"Texts: all {compared} are the same with speculation and without it."
    return (
        f"Texts: {different} of {compared} are not the same with speculation and without it"
        f"{', at the same seed' if s['settings']['temperature'] else ''}. Requests that run together are "
        "rounded differently, and a near-tie can fall the other way; `serve -np 1` answers them one by one."
    )
