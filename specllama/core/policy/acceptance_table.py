"""How often drafted tokens are right, by bin. Knows no drafters and no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from specllama.core.policy.config import DEFAULT, numbers


class AcceptanceTable:
    """The chance that a token is right, by bin: the mean of a Beta distribution with exponential forgetting.

    priors: the chance of each bin before any observation. weight: the number of observations that the prior
    is worth. forget: weight of an observation one observation later.
    """

    def __init__(
        self,
        priors: Sequence[float],
        weight: float = DEFAULT.prior_weight,
        forget: float = DEFAULT.forget,
    ) -> None:
        self.priors, self.weight, self.forget = tuple(priors), weight, forget
        self._right = [0.0] * len(self.priors)
        self._seen = [0.0] * len(self.priors)
        self.chances = list(self.priors)

    def observe(self, bin_: int, right: bool) -> None:
        """Count one drafted token; all tokens before it were right."""
        self._right[bin_] = self._right[bin_] * self.forget + right
        self._seen[bin_] = self._seen[bin_] * self.forget + 1
        self._update(bin_)

    def observe_run(self, bins: Sequence[int], last: bool) -> None:
        """Count several tokens in a row, all of them right except possibly the last."""
        if before := bins[:-1]:  # forgetting n observations sums up to a geometric series
            for bin_, n in Counter(before).items():
                kept = self.forget**n
                new = (1 - kept) / (1 - self.forget) if kept < 1 else n
                self._right[bin_] = self._right[bin_] * kept + new
                self._seen[bin_] = self._seen[bin_] * kept + new
                self._update(bin_)
        self.observe(bins[-1], last)

    def _update(self, bin_: int) -> None:
        right = self._right[bin_] + self.weight * self.priors[bin_]
        self.chances[bin_] = right / (self._seen[bin_] + self.weight)

    @property
    def n_seen(self) -> float:
        """Total weight of the observations."""
        return sum(self._seen)

    def first_tokens(self, n_bins: int) -> tuple[list[float], list[float]]:
        """The weights of right and of all observations in the first `n_bins` bins, those of first tokens."""
        return self._right[:n_bins], self._seen[:n_bins]

    @property
    def rate(self) -> float | None:
        """The share of right tokens, by weight; None without observations."""
        return sum(self._right) / self.n_seen if self.n_seen else None

    def to_dict(self) -> dict[str, list[float]]:
        """Plain data to be stored: right and seen by bin, rounded."""
        return {"right": [round(x, 3) for x in self._right], "seen": [round(x, 3) for x in self._seen]}

    def restore(self, data: object) -> bool:
        """Continue from what `to_dict` wrote; False, and nothing changes, where `data` is something else."""
        if not isinstance(data, Mapping):
            return False
        limit = 1.01 / (1 - self.forget)
        right, seen = (numbers(data.get(name), len(self.priors), 0, limit) for name in ("right", "seen"))
        if right is None or seen is None or any(r > s for r, s in zip(right, seen, strict=True)):
            return False
        self._right, self._seen = right, seen
        for bin_ in range(len(self.priors)):
            self._update(bin_)
        return True
