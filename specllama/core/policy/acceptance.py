"""How often drafted tokens of a kind turned out right: Beta counts by bin. Knows no drafters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.core.policy.stored_values import numbers

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

    def see_run(self, bins: Sequence[int], last: bool) -> None:
        """The same for one token or several in turn, of which all were right but, perhaps, the last."""
        if before := bins[:-1]:  # what is forgotten meanwhile is a geometric series
            for bin_, n in Counter(before).items():
                kept = self.forget**n
                new = (1 - kept) / (1 - self.forget) if kept < 1 else n
                self._right[bin_] = self._right[bin_] * kept + new
                self._seen[bin_] = self._seen[bin_] * kept + new
                self._settle(bin_)
        self.see(bins[-1], last)

    def _settle(self, bin_: int) -> None:
        mean = (self._right[bin_] + self.weight * self.priors[bin_]) / (self._seen[bin_] + self.weight)
        self.chances[bin_] = min(HIGHEST, mean)

    @property
    def n_seen(self) -> float:
        """Observations that still count, in all bins."""
        return sum(self._seen)

    @property
    def rate(self) -> float | None:
        """The share of right ones among them; None without any."""
        return sum(self._right) / self.n_seen if self.n_seen else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data to be stored: right and seen by bin, rounded."""
        return {"right": [round(x, 3) for x in self._right], "seen": [round(x, 3) for x in self._seen]}

    def restore(self, data: object) -> bool:
        """Go on from what `to_dict` wrote; False, and nothing changed, where it is something else."""
        if not isinstance(data, Mapping):
            return False
        most = 1.01 / (1 - self.forget)
        right, seen = (numbers(data.get(name), len(self.priors), 0, most) for name in ("right", "seen"))
        if right is None or seen is None or any(r > s for r, s in zip(right, seen, strict=True)):
            return False
        self._right, self._seen = right, seen
        for bin_ in range(len(self.priors)):
            self._settle(bin_)
        return True
