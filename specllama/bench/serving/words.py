"""What a sweep's figures come to, and what has to be known to judge them, in sentences. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.bench.serving.asks import PLAIN
from specllama.bench.serving.figures import ServingRow, ServingSummary

_CACHED = 0.25  # the share of cached prompt tokens from which the first token's time is not a prompt's


def name(about: Mapping[str, Any]) -> str:
    """Model and address, for a headline."""
    server = about["server"]
    return f"{server['model'] or 'no model named'} at {server['url']}"


def extent(about: Mapping[str, Any]) -> str:
    """How much was measured, and how."""
    wanted = about["settings"]
    tokens = f"{'' if wanted['ignore_eos'] else 'up to '}{wanted['n_tokens']} tokens each"
    return (
        f"{about['answers']} of {about['planned']} answers, {wanted['requests']} requests at every "
        f"concurrency, {tokens}, temperature {wanted['temperature']:g}, {wanted['runs']} "
        f"run{'s' if wanted['runs'] > 1 else ''}, medians of the runs"
    )


def verdict(s: ServingSummary, one_series: str) -> str:
    """A sentence or two. one_series: why there is only one."""
    rated = [row for row in s.rows if row.tps]
    if not rated:
        return "Too little was measured to say anything."
    parts = []
    if s.ratios:
        each = ", ".join(f"{ratio:.2f} x at {c}" for c, ratio in s.ratios.items())
        parts.append(f"Tokens per second with speculation over without, by concurrency: {each}.")
    main = [row for row in rated if row.series != PLAIN] or rated
    best = max(main, key=_rate)
    text = f"Most tokens per second: {_rate(best):.1f} at a concurrency of {best.concurrency}"
    if (alone := next((row for row in main if row.concurrency == 1), None)) and best.concurrency > 1:
        text += f", {_rate(best) / _rate(alone):.2f} x those of one client alone"
    parts.append(f"{text}.")
    if one_series:
        parts.append(f"One series: {one_series}.")
    return " ".join(parts)


def notes(s: ServingSummary, about: Mapping[str, Any]) -> list[str]:
    """Sentences that the figures have to be read with."""
    found = []
    if about["interrupted"]:
        found.append(f"Interrupted: {about['answers']} of {about['planned']} answers were measured.")
    if about["failure"]:
        found.append(f"Ended by: {about['failure']}.")
    if failed := sum(row.failed for row in s.rows):
        first = next(iter(about["problems"]), "")
        found.append(f"{failed} requests got no whole answer{f', the first one: {first}' if first else ''}.")
    if refused := sum(row.refused for row in s.rows):
        found.append(f"{refused} times the server had no room (429); the wait for it is part of the times.")
    if not s.counted and any(row.answers for row in s.rows):
        found.append("The server does not count tokens: the chunks of its streams are taken for tokens.")
    slots, most = about["server"]["n_slots"], max((row.concurrency for row in s.rows), default=0)
    if slots is not None and slots < most:
        found.append(f"The server answers {slots} requests at once, more of them wait for each other.")
    cached = [row.cached for row in s.rows if row.cached is not None]
    if cached and max(cached) > _CACHED:
        found.append(f"The server had up to {100 * max(cached):.0f} % of the prompts' tokens cached.")
    if s.compared:
        found.append(_texts(s, about["settings"]["temperature"]))
    return found


def _texts(s: ServingSummary, temperature: float) -> str:
    if not s.different:
        return f"Texts: all {s.compared} are the same with speculation and without."
    return (
        f"Texts: {s.different} of {s.compared} are not the same with speculation and without"
        f"{', at the same seed' if temperature else ''}. Requests that run together are rounded differently, "
        "and a near-tie can fall the other way; `serve -np 1` answers them one by one."
    )


def _rate(row: ServingRow) -> float:
    return row.tps or 0.0
