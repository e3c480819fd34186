"""What decodes cost beyond a steady decode of their width: after loading, and after a change of the width.

llama.cpp keeps the graph of the last decode. On a GPU the first decode of another width builds it again, the
second one captures it, and later ones are steady; the first two of a width after loading cost still more.
Elsewhere a change costs nothing, and all decodes are alike. Which of the two it is, is measured. Knows no
clock and no curves.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from enum import IntEnum
from statistics import median
from typing import Any

from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number


class Place(IntEnum):
    """The place of a decode: the first two of a width since loading, else in a run of one width."""

    LOADING, FIRST, SECOND, STEADY = 0, 1, 2, 3


class WidthChanges:
    """The runs of decodes of one width in a context, and the seconds that changes and loading cost.

    last: width of the last decode, 0 before the first one. place: of the last decode. n_kept: decodes of one
    width in a row, averaged over the last runs. change: whether a change costs anything that counts, None
    while that is not known; loading: the same of the first decodes of a width.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self.last, self.n_kept = 0, config.kept_prior
        self.change: bool | None = None
        self.loading: bool | None = None
        self.place = Place.STEADY
        self._run = 0
        self._seen: Counter[int] = Counter()  # decodes by width since loading
        n = config.change_samples
        self._excess = {place: deque[float](maxlen=n) for place in Place}
        self._stored = dict.fromkeys(Place, 0.0)  # measured in an earlier process

    def record(self, width: int) -> Place:
        """Record a decode of so many rows; returns its place."""
        if width != self.last:
            if self._run:
                self.n_kept += self.config.kept_rate * (self._run - self.n_kept)
            self.last, self._run = width, 0
        self._run += 1
        self._seen[width] += 1
        self.place = Place(min(self._run, Place.STEADY)) if self._seen[width] > 2 else Place.LOADING
        return self.place

    def interrupt(self) -> None:
        """Other decodes were made in the context: the next one is the first of its run."""
        self.last, self._run = 0, 0

    def alike(self, place: Place) -> bool | None:
        """Whether a decode of this place takes as long as a steady one; None while that is not known."""
        if place == Place.STEADY:
            return True
        costs = self.change if place != Place.LOADING else self.loading
        return None if costs is None else not costs

    def more(self, place: Place) -> float:
        """Seconds that a decode of this place takes longer than a steady one."""
        found = self._excess[place]
        if not found:
            return self._stored[place]
        few = len(found) < self.config.min_samples
        return max(0.0, min(found) if few else median(found))

    def observe(self, place: Place, excess: float, t1: float) -> None:
        """Record how many seconds longer than a steady one a decode took. t1: seconds of a steady decode of
        one row.
        """
        c = self.config
        self._excess[place].append(excess)
        if place == Place.LOADING:
            if len(self._excess[place]) >= c.min_changes:
                self.loading = self.more(place) > c.change_share * t1
        elif all(self._stored[p] or len(self._excess[p]) >= c.min_changes for p in (Place.FIRST, Place.SECOND)):
            share = c.change_share * (0.5 if self.change else 1.0)
            self.change = self.more(Place.FIRST) + self.more(Place.SECOND) > share * t1

    def seems_to_cost(self, t1: float) -> bool:
        """Whether the few measurements so far say that changes cost something."""
        return self.more(Place.FIRST) + self.more(Place.SECOND) > self.config.change_share * t1

    @property
    def pending(self) -> float:
        """Seconds beyond a steady one that the next decode of the same width costs."""
        return self.more(Place.SECOND) if self._run == 1 else 0.0

    def costs(self, width: int) -> float:
        """Seconds beyond a steady one of the next decodes if they have this width: of the change to it."""
        if width == self.last:
            return self.pending
        return self.more(Place.FIRST) + self.more(Place.SECOND)

    def fresh(self, width: int) -> bool:
        return self._seen[width] < 2

    def to_dict(self) -> dict[str, Any]:
        """Plain data to be stored."""
        return {place.name.lower(): self.more(place) for place in (Place.LOADING, Place.FIRST, Place.SECOND)}

    def restore(self, data: object, t1: float) -> None:
        """Continue from what `to_dict` wrote in an earlier process; anything else is ignored."""
        if not isinstance(data, Mapping):
            return
        for place in (Place.LOADING, Place.FIRST, Place.SECOND):
            if is_number(value := data.get(place.name.lower()), 0, self.config.decode_seconds[1]):
                self._stored[place] = float(value)
        if any(self._stored.values()):
            self.change = self._stored[Place.FIRST] + self._stored[Place.SECOND] > self.config.change_share * t1
            self.loading = self._stored[Place.LOADING] > self.config.change_share * t1
