"""What the rows of prompts cost, from the chunks that were evaluated. Knows no sequences."""

from __future__ import annotations

from math import inf, sqrt

_NOISE = 1.03  # factor on what was measured


class PrefillCost:
    """The seconds of a row are those of the last chunk, and grow with its position, since attention goes over
    all cells before it: linearly, as from the chunk before to the last one.
    """

    def __init__(self) -> None:
        self.row_seconds: float | None = None
        self._at, self._slope = (
            0.0,
            0.0,
        )  # position of the last chunk's middle; seconds of a row for each more

    def observe(self, first: int, n: int, seconds: float) -> None:
        """A chunk of n rows took so many seconds. first: the position of its first row."""
        at, row = first + n / 2, seconds / n
        if self.row_seconds is not None and at > self._at:
            self._slope = max(0.0, (row - self.row_seconds) / (at - self._at))
        self._slope = min(self._slope, row / at)  # all of it is attention
        self.row_seconds, self._at = row, at

    def rows_within(self, first: int, seconds: float) -> float:
        """Rows from the position `first` on that are predicted to take so many seconds; inf where nothing has
        been observed.
        """
        if self.row_seconds is None or seconds == inf:
            return inf
        row, seconds = self.row_seconds + self._slope * (first - self._at), seconds / _NOISE
        # n rows take n * row + slope * n**2 / 2
        return 2 * seconds / (row + sqrt(row**2 + 2 * self._slope * seconds)) if seconds > 0 else 0.0
