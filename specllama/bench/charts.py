"""Inline SVG: points with intervals, lines, stacked bars. Knows nothing of what is drawn.

Colours are CSS classes (s0 … s7, axis, grid) that the page gives, so that light and dark share a drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from specllama.bench.intervals import Estimate

WIDTH, HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 44
_N_COLOURS = 8
Points = Sequence[tuple[float, float]]


def whiskers(labels: Sequence[str], values: Sequence[Estimate], title: str, line: float = 1.0) -> str:
    """A point with its interval for each label, and a line across at `line`."""
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
    """A line through the points of each series; both axes begin at 0, those of shares end at 1."""
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
    """For each label a bar of shares that add up to 1; the shares' names are the same in all."""
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
    """The colours of the names, in their order."""
    items = (
        f'<span><i class="s{i % _N_COLOURS} key"></i>{escape(name)}</span>' for i, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'


class _Axis:
    """From a value to a place on the drawing."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.begin, self.factor = low, begin, (end - begin) / (high - low)

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.low) * self.factor


def _scale(
    low: float, high: float, begin: float, end: float, whole: bool = False
) -> tuple[_Axis, list[float]]:
    """An axis and its ticks, 4 to 10 round values."""
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
