"""The page of `bench --server --report`: throughput, generation time and first token by concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from specllama.bench.page import entry, lines, page, table
from specllama.bench.serving.summary import Percentiles, ServingRow, ServingSummary
from specllama.bench.serving.verdict import extent, name, notes

_X = "concurrent clients"


def report(s: ServingSummary, about: Mapping[str, Any], verdict: str) -> str:
    """The page as HTML. about: as in `record`; its texts may hold anything and are escaped."""
    sections = [
        f"<h1>{escape(name(about))}</h1>",
        f'<p class="dim">{escape(_settings(about))}</p>',
        f'<p class="verdict">{escape(verdict)}</p>',
        *(f'<p class="dim">{escape(text)}</p>' for text in notes(s, about)),
        *_chart(s, "Throughput, tokens per second of all clients", lambda r: r.tps),
        *_chart(s, "Generation time, seconds to the end of an answer", lambda r: _p50(r.total)),
        *_chart(s, "Time to first token, ms", lambda r: _p50(r.ttft, 1000)),
        "<h2>All figures</h2>",
        _table(s),
    ]
    return page(name(about), sections)


def _settings(about: Mapping[str, Any]) -> str:
    server = about["server"]
    kind = ", ".join(filter(None, (server["build"] or server["owner"],)))
    return f"specllama {about['version']}, {about['date']}; {f'{kind}; ' if kind else ''}{extent(about)}."


def _chart(s: ServingSummary, title: str, figure: Callable[[ServingRow], float | None]) -> Iterator[str]:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in s.rows:
        if (value := figure(row)) is not None:
            series.setdefault(row.series, []).append((float(row.concurrency), value))
    if series:
        yield f"<h2>{escape(title)}</h2>"
        yield lines(series, f"{title} by {_X}", _X)


def _table(s: ServingSummary) -> str:
    header = [
        _X, "series", "tokens/s", "first token ms p50", "p99", "between tokens ms p50", "p99",
        "answer s p50", "p99", "accepted", "answers", "failed", "refused",
    ]  # fmt: skip
    rows = []
    for row in s.rows:
        figures = [
            *(_both(row.ttft, 1000)),
            *(_both(row.gap, 1000)),
            *(_both(row.total)),
            "-" if row.acceptance is None else f"{100 * row.acceptance:.0f} %",
        ]
        counts = [str(row.answers), str(row.failed), str(row.refused)]
        rate = "-" if row.tps is None else f"{row.tps:.1f}"
        rows.append([entry(text) for text in (str(row.concurrency), row.series, rate, *figures, *counts)])
    return table(header, rows)


def _p50(t: Percentiles | None, factor: float = 1) -> float | None:
    return None if t is None else t.p50 * factor


def _both(t: Percentiles | None, factor: float = 1) -> tuple[str, str]:
    return ("-", "-") if t is None else (f"{t.p50 * factor:.3g}", f"{t.p99 * factor:.3g}")
