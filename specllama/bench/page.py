"""The layout of a report: one HTML file, light and dark, with tables and charts.

It loads nothing from elsewhere. Its one script is the chart code that the server's page uses too; the policy
allows no other. Without scripts the values of a chart are shown as text. Knows nothing about the figures.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from specllama.bench.intervals import Estimate
from specllama.data import CHARTS_CSS, CHARTS_JS

TITLE = "<title>specllama bench: "  # within the first 1024 bytes: identifies an earlier report
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--rule:#d9d9e0;--good:#30a46c;
--bad:#e5484d}
@media(prefers-color-scheme:dark){:root{--bg:#111113;--fg:#edeef0;--dim:#b0b4ba;--rule:#363a3f}}
body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.5rem}
.dim{color:var(--dim);font-size:.9rem}.verdict{font-size:1.1rem;border-left:4px solid var(--c0);
padding-left:1rem}.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;
font-size:.9rem}th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);
white-space:nowrap}th:first-child,td:first-child{text-align:left}td.best{font-weight:700}
"""
_DRAW = "drawAll(document);\n"

Points = Sequence[tuple[float, float]]


def page(name: str, sections: Iterable[str]) -> str:
    """The whole page. name: of what was measured, any text; sections: HTML, in order."""
    script = CHARTS_JS.read_text("utf-8") + _DRAW
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" '
            f"content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">"
            f"{TITLE}{escape(name)}</title><style>{CHARTS_CSS.read_text('utf-8')}{_STYLE}</style></head><body>\n"
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
    """A line through the points of each series; both axes begin at 0. y_name: what the values are, or their
    unit. percent: they are shares of 1.
    """
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
