"""The pages of `bench --report`, with and without --server: one HTML file, light and dark, with tables and
charts.

It loads nothing from elsewhere. Its one script is the chart code that the server's page uses too; the policy
allows no other. Without scripts the values of a chart are shown as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from specllama.bench import sweep, words
from specllama.bench.runner import AUTO, COPY, LLAMA_CPP, PLAIN
from specllama.bench.summary import Estimate, speedup
from specllama.bench.words import percent, shown, times
from specllama.data import CHARTS_CSS, CHARTS_JS
from specllama.json_types import JsonObject
from specllama.wording import counted

TITLE = "<title>specllama bench: "  # within the first 1024 bytes: identifies an earlier report
_DRAW = "drawAll(document);\n"
_MAX_LINES = 8  # of a chart
_X = "concurrent clients"


def report(s: JsonObject) -> str:
    """The page of the object of --json as HTML; its texts may hold anything and are escaped."""
    target, draft = s["target"], words.draft_name(s)
    names = f"{target['name']} {target['quant']}" + (f" with {draft}" if draft else "")
    settings, machine = s["settings"], s["machine"]
    about = (
        f"specllama {s['version']}, {s['date']}; {machine['system']} {machine['machine']}, "
        f"{counted(machine['cores'], 'core')}, {counted(machine['n_threads'], 'thread')}; "
        f"{', '.join(s['drafters']) or 'no drafter'}; {s['answers']} of "
        f"{counted(s['planned'], 'answer')}, {words.extent(settings)}, "
        f"{counted(settings['runs'], 'run')}, interleaved. "
        "Figures are medians, with 95 % intervals in brackets."
    )
    parts = (_total(s), _workloads(s), _acceptance(s), _times(s), _curve(s))
    return _page(s, names, about, words.notes(s), (section for part in parts for section in part))


def sweep_report(s: JsonObject) -> str:
    """The page of the object of --server --json: throughput, answer time and first token by concurrency."""
    server = s["server"]
    kind = server["build"] or server["owner"]
    about = f"specllama {s['version']}, {s['date']}; {f'{kind}; ' if kind else ''}{sweep.extent(s)}."
    sections = [
        *_by_clients(s, "Throughput, tokens per second of all clients", lambda row: row["tps"]),
        *_by_clients(
            s,
            "Generation time, seconds to the end of an answer",
            lambda row: (row["seconds"] or {}).get("p50"),
        ),
        *_by_clients(s, "Time to first token, ms", lambda row: (row["ttft_ms"] or {}).get("p50")),
        "<h2>All figures</h2>",
        _rows(s),
    ]
    return _page(s, sweep.name(s), about, sweep.notes(s), sections)


def _page(s: JsonObject, name: str, about: str, notes: Iterable[str], sections: Iterable[str]) -> str:
    head = [f"<h1>{escape(name)}</h1>", f'<p class="dim">{escape(about)}</p>']
    verdict = f'<p class="verdict">{escape(s["verdict"])}</p>'
    return page(name, [*head, verdict, *(f'<p class="dim">{escape(text)}</p>' for text in notes), *sections])


def _name(config: str) -> str:
    return config if config in (AUTO, COPY, LLAMA_CPP) else f"k = {config}"


def _total(s: JsonObject) -> Iterator[str]:
    yield "<h2>Speed over plain decoding, all workloads</h2>"
    total, cells = s["total"], s["total"]["configurations"]
    if speedups := {name: e for name in cells if (e := speedup(total, name)) is not None}:
        labels = [_name(name) for name in speedups]
        yield whiskers(labels, list(speedups.values()), "speed over plain decoding by draft length")
    rows = [
        [
            name,
            times(cell["decode_tps"], "") if cell["decode_tps"] else "-",
            times(cell["speedup"]) if cell["speedup"] else "-",
            shown(cell["ttft_ms"], ".1f") + (" ms" if cell["ttft_ms"] else ""),
            percent(cell["acceptance"]),
            str(cell["answers"]),
        ]
        for name, cell in cells.items()
    ]
    yield table(["length", "tokens/s", "over plain", "first token", "accepted", "answers"], rows)


def _workloads(s: JsonObject) -> Iterator[str]:
    lengths = [name for name in s["configurations"] if name != PLAIN]
    if not lengths:
        return
    yield "<h2>By workload</h2>"
    rows = [
        [
            words.label(row),
            *(_speed(row, name) for name in lengths),
            row["best_fixed"] or "-",
            percent(row["regret"]),
        ]
        for row in [*s["rows"], s["total"]]
    ]
    yield table(["", *lengths, "best fixed", "regret of auto"], rows)
    yield (
        '<p class="dim">Regret: the share of the speed of the best fixed length in hindsight that auto '
        "misses. Point at a figure to see its interval.</p>"
    )


def _speed(row: JsonObject, name: str) -> str:
    e = speedup(row, name)
    if e is None:
        return "-"
    strength = min(60.0, 60 * abs(e.value - 1))
    colour = f"color-mix(in srgb,var({'--good' if e.value >= 1 else '--bad'}) {strength:.0f}%,transparent)"
    best = ' class="best"' if name == row["best_fixed"] else ""
    return Html(f'<td{best} style="background:{colour}" title="{escape(times(e))}">{e.value:.2f}</td>')


def _acceptance(s: JsonObject) -> Iterator[str]:
    cells = s["total"]["configurations"]
    names = [name for name, cell in cells.items() if cell["accept_by_position"]]
    if names:
        series = {
            _name(name): [(float(j), p) for j, p in enumerate(cells[name]["accept_by_position"], 1)]
            for name in names[-_MAX_LINES:]  # auto and the longest
        }
        yield "<h2>Accepted by position in the draft</h2>"
        yield lines(series, "share of accepted draft tokens by position", "position", percent=True)


def _times(s: JsonObject) -> Iterator[str]:
    rows = {
        name: {part: seconds / whole for part, seconds in cell["time"].items()}
        for name, cell in s["total"]["configurations"].items()
        if (whole := sum(cell["time"].values())) > 0
    }
    if rows:
        yield "<h2>Where the time goes</h2>"
        yield bars(rows, "shares of the decoding time by draft length")


def _curve(s: JsonObject) -> Iterator[str]:
    points = s["t_n"]
    if len(points) < 2:
        return
    yield "<h2>Time of a decode by its rows</h2>"
    series = {"ms": [(p["rows"], 1000 * p["seconds"]) for p in points]}
    yield lines(series, "milliseconds of a decode by its rows", "rows", "ms")
    changes = any(p["changing_seconds"] is not None for p in points)
    rows = [
        [
            shown(p["rows"], ".3g"),
            shown(p["seconds"], ".3g", 1000),
            shown(p["relative"]),
            str(p["rounds"]),
            shown(p["changing_seconds"], ".3g", 1000),
        ][: 4 + changes]
        for p in points
    ]
    titles = ["rows", "ms", "over one row", "rounds", "ms after a change of the rows"]
    yield table(titles[: 4 + changes], rows)
    if not s["t_n_exact"]:
        yield '<p class="dim">Each point is a draft length: its mean rows and mean time.</p>'


def _by_clients(s: JsonObject, title: str, figure: Callable[[JsonObject], float | None]) -> Iterator[str]:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in s["rows"]:
        if (value := figure(row)) is not None:
            series.setdefault(row["series"], []).append((float(row["concurrency"]), value))
    if series:
        yield f"<h2>{escape(title)}</h2>"
        yield lines(series, f"{title} by {_X}", _X)


def _rows(s: JsonObject) -> str:
    header = [
        _X, "series", "tokens/s", "first token ms p50", "p99", "between tokens ms p50", "p99",
        "answer s p50", "p99", "accepted", "answers", "failed", "refused",
    ]  # fmt: skip
    rows = []
    for row in s["rows"]:
        spread = [row[name] or {} for name in ("ttft_ms", "inter_token_ms", "seconds")]
        figures = [shown(of.get(share), ".3g") for of in spread for share in ("p50", "p99")]
        counts = [str(row[name]) for name in ("answers", "failed", "refused")]
        head = [str(row["concurrency"]), row["series"], shown(row["tps"], ".1f")]
        rows.append([*head, *figures, percent(row["acceptance"]), *counts])
    return table(header, rows)


Points = Sequence[tuple[float, float]]


def page(name: str, sections: Iterable[str]) -> str:
    """The whole page. name: of what was measured, any text; sections: HTML, in order."""
    script = CHARTS_JS.read_text("utf-8") + _DRAW
    style = "".join(path.read_text("utf-8") for path in (CHARTS_CSS, Path(__file__).with_suffix(".css")))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" '
            f"content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">"
            f"{TITLE}{escape(name)}</title><style>{style}</style></head><body>\n"
            + "\n".join(sections)
            + f'\n<script type="module">{script}</script></body></html>\n'
        )
        .encode("utf-8", "replace")
        .decode()
    )


class Html(str):
    """A cell of a table that is HTML already."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls if it is too wide. rows: of cells with any text, and of `Html`."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    cells = [[c if isinstance(c, Html) else f"<td>{escape(c)}</td>" for c in row] for row in rows]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def whiskers(labels: Sequence[str], values: Sequence[Estimate], title: str, line: float = 1.0) -> str:
    """A point with its interval for each label, and a dashed line across at `line`."""
    texts = (f"{label}: {e.value:.2f}" for label, e in zip(labels, values, strict=True))
    points = [[e.value, e.low, e.high] for e in values]
    return _chart("whiskers", title, "; ".join(texts), labels=list(labels), values=points, line=line)


def lines(
    series: Mapping[str, Points], title: str, x_name: str, y_name: str = "", percent: bool = False
) -> str:
    """A line a series; both axes begin at 0. y_name: the values, or their unit. percent: shares of 1."""
    texts = []
    for name, points in series.items():
        shown = (f"{100 * y:.0f} %" if percent else f"{y:.4g}" for _, y in points)
        at = ", ".join(f"{value} at {x:.3g}" for (x, _), value in zip(points, shown, strict=True))
        texts.append(f"{name}: {at}")
    listed = [[name, [list(point) for point in points]] for name, points in series.items()]
    more = {"y_name": y_name} if y_name else {}
    return _chart("lines", title, "; ".join(texts), series=listed, x_name=x_name, percent=percent, **more)


def bars(rows: Mapping[str, Mapping[str, float]], title: str) -> str:
    """A stacked bar for each label, of shares that add up to 1; all bars have the same names of shares."""
    texts = []
    for label, shares in rows.items():
        texts.append(
            f"{label}: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        )
    listed = [[label, [list(share) for share in shares.items()]] for label, shares in rows.items()]
    return _chart("bars", title, "; ".join(texts), rows=listed)


def _chart(kind: str, title: str, text: str, **values: Any) -> str:
    """The place of a chart. text: its values, shown where no script runs."""
    described = json.dumps({"kind": kind, "title": title, **values})
    shown = f'<p class="dim">{escape(f"{title}: {text}")}</p>'
    return f'<div data-chart="{escape(described)}">{shown}</div>'
