"""The layout of a report: one HTML file, light and dark, with tables and inline SVG charts.

It loads nothing from elsewhere and has no scripts. Colours are CSS classes of the page (s0 … s7, grid, mark),
so that the same drawing suits light and dark. Knows nothing about the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from specllama.bench.intervals import Estimate

TITLE = "<title>specllama bench: "  # within the first 1024 bytes: identifies an earlier report
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--rule:#d9d9e0;--good:#30a46c;
--bad:#e5484d;--c0:#0068d6;--c1:#d6740b;--c2:#2b8a3e;--c3:#c2298a;--c4:#7048c8;--c5:#0b8a8a;--c6:#a8540f;--c7:#60646c}
@media(prefers-color-scheme:dark){:root{--bg:#111113;--fg:#edeef0;--dim:#b0b4ba;--rule:#363a3f;--c0:#70b8ff;
--c1:#ffa057;--c2:#71d083;--c3:#ff8dcc;--c4:#baa7ff;--c5:#53d6d6;--c6:#e0a070;--c7:#b0b4ba}}
body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.5rem}
.dim,.legend{color:var(--dim);font-size:.9rem}.verdict{font-size:1.1rem;border-left:4px solid var(--c0);
padding-left:1rem}.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;
font-size:.9rem}th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);
white-space:nowrap}th:first-child,td:first-child{text-align:left}td.best{font-weight:700}
svg{width:100%;max-width:44rem;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--dim)}
.grid{stroke:var(--rule)}.mark{stroke:var(--fg);stroke-dasharray:4 3}.line{fill:none;stroke-width:2}
.thick{stroke-width:3}.legend span{margin-right:1.2rem;white-space:nowrap}.key{display:inline-block;
width:.8rem;height:.8rem;margin-right:.4rem;background:var(--c)}.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}
.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
.line,.thick{stroke:var(--c)}.dot,.fill{fill:var(--c)}
"""

WIDTH, HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 44
_N_COLOURS = 8
Points = Sequence[tuple[float, float]]


def page(name: str, sections: Iterable[str]) -> str:
    """The whole page. name: of what was measured, any text; sections: HTML, in order."""
    return (
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"{TITLE}{escape(name)}</title><style>{_STYLE}</style></head><body>\n"
            + "\n".join(sections)
            + "\n</body></html>\n"
        )
        .encode("utf-8", "replace")
        .decode()
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls if it is too wide. rows: of cells, each HTML as from `entry`."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def entry(text: str) -> str:
    """A cell of a table, with any text."""
    return f"<td>{escape(text)}</td>"


def whiskers(labels: Sequence[str], values: Sequence[Estimate], title: str, line: float = 1.0) -> str:
    """A point with its interval for each label, and a dashed line across at `line`."""
    ends = [x for e in values for x in (e.value, e.low, e.high) if x is not None]
    y, ticks = _scale(0.0, max([*ends, line]), HEIGHT - _BOTTOM, _TOP)
    out = [_grid(t, y(t)) for t in ticks]
    out.append(
        f'<line class="mark" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(line):.1f}" y2="{y(line):.1f}"/>'
    )
    step = (WIDTH - _LEFT - _RIGHT) / len(labels)
    for i, (label, e) in enumerate(zip(labels, values, strict=True)):
        x = _LEFT + (i + 0.5) * step
        if e.low is not None and e.high is not None:
            out.append(
                f'<line class="s0 thick" x1="{x:.1f}" x2="{x:.1f}" y1="{y(e.low):.1f}" y2="{y(e.high):.1f}"/>'
            )
        out.append(f'<circle class="s0 dot" cx="{x:.1f}" cy="{y(e.value):.1f}" r="5"/>')
        out.append(_text(x + 9, y(e.value) + 4, f"{e.value:.2f}", "start"))
        out.append(_text(x, HEIGHT - _BOTTOM + 18, label))
    return _svg(out, title)


def lines(series: Mapping[str, Points], title: str, x_name: str, percent: bool = False) -> str:
    """A line through the points of each series; both axes begin at 0. percent: the values are shares of 1."""
    every = [p for points in series.values() for p in points]
    x, x_ticks = _scale(0.0, max(p[0] for p in every), _LEFT, WIDTH - _RIGHT, whole=True)
    y, y_ticks = _scale(0.0, 1.0 if percent else max(p[1] for p in every), HEIGHT - _BOTTOM, _TOP)
    out = [_grid(t, y(t), percent) for t in y_ticks]
    out += [_text(x(t), HEIGHT - _BOTTOM + 18, f"{t:g}") for t in x_ticks]
    out.append(_text((WIDTH + _LEFT - _RIGHT) / 2, HEIGHT - 6, x_name))
    for i, (name, points) in enumerate(series.items()):
        colour = f"s{i % _N_COLOURS}"
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        out.append(f'<polyline class="{colour} line" points="{path}"/>')
        for a, b in points:
            value = f"{100 * b:.0f} %" if percent else f"{b:.4g}"
            tip = escape(f"{name}: {a:.3g}, {value}")
            dot = f'<circle class="{colour} dot" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5">'
            out.append(f"{dot}<title>{tip}</title></circle>")
    return _svg(out, title) + (legend(list(series)) if len(series) > 1 else "")


def bars(rows: Mapping[str, Mapping[str, float]], title: str) -> str:
    """A stacked bar for each label, of shares that add up to 1; all bars have the same names of shares."""
    names, height = list(next(iter(rows.values()))), 24
    out, width = [], WIDTH - _LEFT - _RIGHT
    for i, (label, shares) in enumerate(rows.items()):
        x, top = float(_LEFT), i * (height + 6) + 4
        out.append(_text(_LEFT - 8, top + height / 2 + 4, label, "end"))
        for j, (name, share) in enumerate(shares.items()):
            tip = escape(f"{label}: {name} {100 * share:.0f} %")
            out.append(
                f'<rect class="s{j % _N_COLOURS} fill" x="{x:.1f}" y="{top}" width="{width * share:.1f}" '
                f'height="{height}"><title>{tip}</title></rect>'
            )
            x += width * share
    return _svg(out, title, len(rows) * (height + 6) + 8) + legend(names)


def legend(names: Sequence[str]) -> str:
    """The colours of the names, in order."""
    items = (
        f'<span><i class="s{i % _N_COLOURS} key"></i>{escape(name)}</span>' for i, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'


class _Axis:
    """Maps a value to a coordinate of the drawing."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.begin, self.factor = low, begin, (end - begin) / (high - low)

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.low) * self.factor


def _scale(
    low: float, high: float, begin: float, end: float, whole: bool = False
) -> tuple[_Axis, list[float]]:
    """An axis and 4 to 10 ticks at round values."""
    high = max(high, low + 1e-12)
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if (high - low) / (step * m) <= 8)
    if whole:
        step = max(1.0, math.ceil(step))
    n = math.ceil((high - low) / step - 1e-9)
    return _Axis(low, low + n * step, begin, end), [low + i * step for i in range(n + 1)]


def _grid(value: float, y: float, percent: bool = False) -> str:
    text = f"{100 * value:.0f} %" if percent else f"{value:.4g}"
    line = f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(_LEFT - 8, y + 4, text, "end")


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], title: str, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
