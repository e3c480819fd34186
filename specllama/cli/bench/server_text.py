"""The table of `bench --server` for people. Figures in, lines out."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from specllama.bench.serving.summary import Percentiles, ServingRow, ServingSummary
from specllama.bench.serving.verdict import extent, name, notes
from specllama.cli.bench.text import printable

_HEADER = ("clients", "series", "t/s", "first", "token", "p99", "answer", "p99", "accept")
_UNITS = ("", "", "", "ms", "ms", "ms", "s", "s", "")
_LEGEND = (
    "Clients at once; tokens per second of all of them; to the first token, between tokens, to the end of an "
    "answer: p50 and p99."
)


def lines(s: ServingSummary, about: Mapping[str, Any], verdict: str, width: int) -> Iterator[str]:
    """Everything, no line longer than `width` where that can be."""
    yield from _filled(name(about), width)
    yield from _filled(f"{extent(about)}.", width)
    if s.rows:
        yield from _filled(_LEGEND, width)
        yield ""
        yield from _table(s, width)
    yield ""
    for text in [*notes(s, about), verdict]:
        yield from _filled(text, width)


def _table(s: ServingSummary, width: int) -> Iterator[str]:
    single = len({row.series for row in s.rows}) == 1
    table = Table(box=None, pad_edge=False, show_edge=False, header_style=None)
    shown = [i for i in range(len(_HEADER)) if not (single and i == 1)]
    for i in shown:
        table.add_column(f"{_HEADER[i]}\n{_UNITS[i]}", justify="left" if i == 1 else "right", overflow="fold")
    last = None
    for row in s.rows if single else sorted(s.rows, key=lambda r: r.concurrency):
        cells = _cells(row, again=row.concurrency == last)
        table.add_row(*(cells[i] for i in shown))
        last = row.concurrency
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False, highlight=False).print(table)
    yield from (line.rstrip() for line in file.getvalue().splitlines())


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


def _filled(text: str, width: int) -> list[str]:
    found = textwrap.wrap(printable(text), width, break_long_words=False, break_on_hyphens=False)
    return found or [""]
