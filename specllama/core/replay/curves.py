"""Costs of decodes by their rows, from those of some widths."""

from __future__ import annotations

from collections.abc import Mapping

from specllama.core.replay.simulator import Seconds


def curve(points: Mapping[int, float], max_rows: int = 66) -> Seconds:
    """From 1 to `max_rows` rows to the seconds of a decode. points: seconds by rows; times between them are
    interpolated, times outside are those of the nearest one.
    """
    widths = sorted(points)
    table = [0.0] * (max_rows + 1)
    for n in range(1, max_rows + 1):
        high = next((i for i, w in enumerate(widths) if w >= n), len(widths) - 1)
        low = max(0, high - 1) if widths[high] != n else high
        a, b = widths[low], widths[high]
        table[n] = points[b] if a == b else points[a] + (points[b] - points[a]) * (n - a) / (b - a)
    return table.__getitem__
