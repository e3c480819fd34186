"""The cost curve of texts whose decodes all have one width: drafts that fit cost nothing more."""

from __future__ import annotations

from specllama.core.policy.cost_curve import CostCurve


class OneWidthCurve(CostCurve):
    """Times of decodes that are filled up to `rows`; the reference for gains and losses is such a decode.
    based_on: its time for as many rows is assumed until there are measurements.
    """

    def __init__(self, rows: int, based_on: CostCurve) -> None:
        super().__init__(based_on.config)
        self.rows = rows
        if seconds := based_on.predict(rows):
            super().observe(1, seconds)

    def count(self, n: int) -> int:  # noqa: ARG002
        return super().count(1)

    def observe(self, n: int, seconds: float, plain: bool = False) -> None:  # noqa: ARG002
        """As in `CostCurve`; all decodes are like those without drafts."""
        super().observe(1, seconds, True)

    def plain_width(self, n: int) -> int:  # noqa: ARG002
        return self.rows

    def predict(self, n: int) -> float:
        return super().predict(1) if n <= self.rows else super().predict(n)

    def table(self) -> list[float]:
        seconds = list(super().table())
        seconds[1 : self.rows + 1] = [seconds[1]] * min(self.rows, len(seconds) - 1)
        return seconds
