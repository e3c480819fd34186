"""What a state is worth: chance of return × seconds saved ÷ bytes. Knows no states.

The order of eviction is that of GreedyDual-Size with frequency (Cherkasova, HPL-98-69): the value is counted
from the value of what was evicted last, so that what is not used again becomes the next to go. The chance of
return is learnt by the kind of boundary as a survival probability from the rates of return at each age, in
look-ups since the last use (Kaplan and Meier, 1958), so that states that were evicted before they could
return count for the ages that they reached alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

_PRIOR: Mapping[str, float] = {
    "system": 0.6, "answer": 0.5, "reasoning": 0.5, "end": 0.3, "user": 0.3, "distance": 0.3,
}  # fmt: skip
_PRIOR_WEIGHT = 8.0  # waits as which the prior counts
_N_AGES = 8  # 0, 1, 2 to 3, 4 to 7, … look-ups; the last one has no end


@dataclass(slots=True)
class Wait:
    """The time since a state was made or used. began: look-ups until then. floor: the value of what had been
    evicted last. age: the last of _N_AGES that was counted.
    """

    kind: str
    began: int
    floor: float
    age: int = 0


class Chances:
    """The chances of return by kind and age, and the value of what was evicted last.

    by_age: whether a state's age counts too. Off, because replayed sessions were evaluated no less with it
    (scripts.bench.prefix_ages: from 3 % less to 4 % more by the memory, 0.2 % more on average); what has not
    come back sinks by the value of what was evicted since. now: look-ups so far.
    """

    def __init__(self, by_age: bool = False) -> None:
        self.by_age, self.now = by_age, 0
        self._reached: Counter[tuple[str, int]] = Counter()  # waits that lasted to an age
        self._returned: Counter[tuple[str, int]] = Counter()  # those that ended there with a use
        self._floor = 0.0

    def begin(self, kind: str) -> Wait:
        """A state was made."""
        self._reached[kind, 0] += 1
        return Wait(kind, self.now, self._floor)

    def ended(self, wait: Wait) -> None:
        """A state was used after this wait."""
        self._grow(wait)
        self._returned[wait.kind, wait.age] += 1

    def returned(self, wait: Wait) -> Wait:
        """A state was used after this wait, and is kept; the next wait."""
        self.ended(wait)
        return self.begin(wait.kind)

    def chance(self, kind: str, age: int = 0) -> float:
        """How likely a state of this kind and age is used again."""
        prior = 1 - (1 - _PRIOR.get(kind, 0.3)) ** (1 / _N_AGES)
        stays = 1.0
        for at in range(age, _N_AGES):
            n = self._reached[kind, at] + _PRIOR_WEIGHT
            stays *= 1 - (self._returned[kind, at] + prior * _PRIOR_WEIGHT) / n
        return 1 - stays

    def priority(self, kind: str, uses: int, seconds: float, n_bytes: int, wait: Wait | None = None) -> float:
        """The eviction priority: states with the highest one are kept longest. wait: since its last use;
        None: it is used now.
        """
        age, floor = 0, self._floor
        if wait is not None:
            self._grow(wait)
            age, floor = wait.age if self.by_age else 0, wait.floor
        return floor + self.chance(kind, age) * (1 + uses) * seconds / max(1, n_bytes)

    def evicted(self, priority: float) -> None:
        self._floor = max(self._floor, priority)

    def _grow(self, wait: Wait) -> None:
        """Count the ages that a wait has reached since it was last looked at."""
        age = min((self.now - wait.began).bit_length(), _N_AGES - 1)
        while wait.age < age:
            wait.age += 1
            self._reached[wait.kind, wait.age] += 1
