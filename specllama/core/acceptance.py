"""How often drafted tokens of a kind turned out right: Beta counts by bin. Knows no drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

HIGHEST = 0.9995  # nothing is surer: S of a long draft would hardly fall


class AcceptanceTable:
    """Chances by bin, learnt with slow forgetting and shrunk to a prior.

    priors: the chance of each bin before anything was seen. weight: how many observations the prior is
    worth. forget: what an observation is worth one later.
    """

    def __init__(self, priors: Sequence[float], weight: float = 4.0, forget: float = 0.99) -> None:
        self.priors, self.weight, self.forget = tuple(priors), weight, forget
        self._right = [0.0] * len(self.priors)
        self._seen = [0.0] * len(self.priors)
        self.chances = [min(HIGHEST, p) for p in self.priors]

    def see(self, bin_: int, right: bool) -> None:
        """A drafted token of the bin was right or not; tell it only of those behind right ones."""
        self._right[bin_] = self._right[bin_] * self.forget + right
        self._seen[bin_] = self._seen[bin_] * self.forget + 1
        self._settle(bin_)

    def _settle(self, bin_: int) -> None:
        mean = (self._right[bin_] + self.weight * self.priors[bin_]) / (self._seen[bin_] + self.weight)
        self.chances[bin_] = min(HIGHEST, mean)

    def to_dict(self) -> dict[str, Any]:
        """Plain data to be stored: right and seen by bin, rounded."""
        return {"right": [round(x, 3) for x in self._right], "seen": [round(x, 3) for x in self._seen]}

    def restore(self, data: object) -> bool:
        """Go on from what `to_dict` wrote; False, and nothing changed, where it is something else."""
        if not isinstance(data, Mapping):
            return False
        right, seen = (_counts(data.get(name), len(self.priors)) for name in ("right", "seen"))
        most = 1.01 / (1 - self.forget)
        if not right or not seen or any(r > s or s > most for r, s in zip(right, seen, strict=True)):
            return False
        self._right, self._seen = right, seen
        for bin_ in range(len(self.priors)):
            self._settle(bin_)
        return True


def _counts(x: Any, n: int) -> list[float]:
    """The numbers of a stored list of n; empty where it is something else."""
    if not isinstance(x, list) or len(x) != n:
        return []
    fits = all(isinstance(v, int | float) and not isinstance(v, bool) and isfinite(v) and v >= 0 for v in x)
    return [float(v) for v in x] if fits else []
