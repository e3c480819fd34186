"""What a state is worth: chance of return × seconds saved ÷ bytes. Knows no states.

The order of eviction is that of GreedyDual-Size with frequency (Cherkasova, HPL-98-69): the value is counted
from the value of what was evicted last, so that what is not used again becomes the next to go. The chance of
each kind of place is learnt from what came back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_PRIOR: Mapping[str, float] = {
    "system": 0.6, "answer": 0.5, "reasoning": 0.5, "end": 0.3, "user": 0.3, "distance": 0.3,
}  # fmt: skip
_PRIOR_WEIGHT = 8.0  # states as which the prior counts


class Chances:
    """The chances of return by kind, and the value of what was evicted last."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._floor = 0.0

    def made(self, kind: str) -> None:
        self._made[kind] += 1

    def returned(self, kind: str, first: bool) -> None:
        """A state was used. first: for the first time."""
        self._returned[kind] += first

    def chance(self, kind: str) -> float:
        """How likely a new state of this kind is used again."""
        prior = _PRIOR.get(kind, 0.3)
        return (self._returned[kind] + prior * _PRIOR_WEIGHT) / (self._made[kind] + _PRIOR_WEIGHT)

    def priority(self, kind: str, uses: int, seconds: float, n_bytes: int) -> float:
        """What is kept longest has the highest."""
        return self._floor + self.chance(kind) * (1 + uses) * seconds / max(1, n_bytes)

    def evicted(self, priority: float) -> None:
        self._floor = max(self._floor, priority)
