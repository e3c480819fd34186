"""The table of `bench --server`: figures in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specllama.bench.serving.summary import Percentiles, ServingRow, ServingSummary
from specllama.bench.serving.verdict import extent, name, notes
from specllama.cli.formatting import table, wrapped
from specllama.text.terminal import printable

_HEADER = ("clients", "series", "t/s", "first", "token", "p99", "answer", "p99", "accept")
_UNITS = ("", "", "", "ms", "ms", "ms", "s", "s", "")
_LEGEND = (
    "Clients at once; tokens per second of all of them; to the first token, between tokens, to the end of an "
    "answer: p50 and p99."
)


def lines(s: ServingSummary, about: Mapping[str, Any], verdict: str, width: int | None) -> Iterator[str]:
    """The whole text, no line longer than `width` where possible."""
    yield from wrapped(printable(name(about)), width)
    yield from wrapped(printable(f"{extent(about)}."), width)
    if s.rows:
        yield from wrapped(_LEGEND, width)
        yield ""
        yield from _table(s, width)
    yield ""
    for text in [*notes(s, about), verdict]:
        yield from wrapped(printable(text), width)


def _table(s: ServingSummary, width: int | None) -> Iterator[str]:
    single = len({row.series for row in s.rows}) == 1
    shown = [i for i in range(len(_HEADER)) if not (single and i == 1)]
    rows, last = [[_UNITS[i] for i in shown]], None
    for row in s.rows if single else sorted(s.rows, key=lambda r: r.concurrency):
        cells = _cells(row, again=row.concurrency == last)
        rows.append([cells[i] for i in shown])
        last = row.concurrency
    n_labels = 1 if single else 2
    yield from table([_HEADER[i] for i in shown], rows, width, n_labels, left=range(1, n_labels))


def _cells(row: ServingRow, again: bool) -> list[str]:
    accept = row.acceptance
    return [
        "" if again else str(row.concurrency),
        row.series,
        "-" if row.tps is None else f"{row.tps:.1f}",
        "-" if row.ttft is None else f"{1000 * row.ttft.p50:.0f}",
        *_both(row.gap, 1000, ".1f"),
        *_both(row.total, 1, ".2f"),
        "-" if accept is None else f"{100 * accept:.0f} %",
    ]


def _both(t: Percentiles | None, factor: float, form: str) -> tuple[str, str]:
    return ("-", "-") if t is None else (format(t.p50 * factor, form), format(t.p99 * factor, form))
