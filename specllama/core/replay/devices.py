"""Simulated devices on which a decode's time depends on the widths of those before it, as on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from specllama.core.replay.simulator import Seconds

# Costs of decodes by their rows, from those of some widths.


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


MAX_ROWS = 1024


class ChangingDevice:
    """The seconds of each decode of a context, called once for each. Everything is in seconds, by rows.

    steady: of a decode whose width is that of the two before. first, second: of the first and the second
    decode of another width, more than a steady one. loading: of the first two decodes of a width in all; no
    less than they take anyway.
    """

    def __init__(
        self,
        steady: Seconds,
        first: Seconds = lambda n: 0.0,  # noqa: ARG005
        second: Seconds = lambda n: 0.0,  # noqa: ARG005
        loading: tuple[Seconds, Seconds] | None = None,
    ) -> None:
        self.steady, self.first, self.second, self.loading = steady, first, second, loading
        self._last, self._run = 0, 0
        self._seen: Counter[int] = Counter()

    def interrupt(self) -> None:
        """A prompt was decoded: the next decode is the first of its width."""
        self._last, self._run = 0, 0

    def __call__(self, n_rows: int) -> float:
        if n_rows != self._last:
            self._last, self._run = n_rows, 0
        self._run += 1
        self._seen[n_rows] += 1
        more = {1: self.first, 2: self.second}.get(self._run)
        seconds = self.steady(n_rows) + (more(n_rows) if more is not None else 0.0)
        if self.loading is not None and (seen := self._seen[n_rows]) <= len(self.loading):
            seconds = max(seconds, self.loading[seen - 1](n_rows))
        return seconds

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], loading: bool = True) -> ChangingDevice:
        """From parsed JSON, in milliseconds: steady, and by rows first, second and loading (pairs), or
        first_more and second_more. Widths in between are interpolated; for changes the nearest width counts.
        loading: with the cost of loading, where there is one.
        """
        points = {int(n): ms / 1e3 for n, ms in data["steady"].items()}
        steady = curve(points, MAX_ROWS)

        def more(name: str) -> Seconds:
            if (same := data.get(f"{name}_more")) is not None:
                return lambda n: same / 1e3  # noqa: ARG005
            excess = {int(n): max(0.0, ms / 1e3 - steady(int(n))) for n, ms in data.get(name, {}).items()}
            return nearest(excess)

        pairs = {int(n): pair for n, pair in data.get("loading", {}).items()}
        first, second = (nearest({n: pair[i] / 1e3 for n, pair in pairs.items()}) for i in (0, 1))
        return cls(steady, more("first"), more("second"), (first, second) if pairs and loading else None)


def nearest(points: Mapping[int, float]) -> Seconds:
    """The seconds of the nearest width; 0 without any."""
    return lambda n: points[min(points, key=lambda width: abs(width - n))] if points else 0.0
