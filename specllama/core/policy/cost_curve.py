"""What a decode of n rows takes: one estimate per n, refined by every round. Knows no models and no clock.

t(n) is a staircase that differs from machine to machine, so no line is fitted: widths that were measured are
known, those between them lie on straight lines, those beyond follow a cautious shape from the widest known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import exp, isfinite, log
from typing import Any

from specllama.core.policy.stored_values import is_number

WIDEST = 64  # rows; wider decodes are taken to cost in proportion
PRIOR = ((1, 1.0), (2, 1.5), (4, 2.0), (8, 3.0), (16, 4.5), (32, 8.0), (64, 15.0))  # rows, multiples of t(1)
MOST_COUNTED = 1000
SHORTEST, LONGEST = 1e-9, 1e6  # seconds of a decode that can be believed
FIRST = 3  # of a width's first times the shortest counts: some pay for what is prepared only once
LARGEST_STEP = log(1.5)  # one time moves the scale no further than one this much off would
OUTLIER = log(1.8)  # further off, a time says nothing about its width
SCALE_RATE, WIDTH_RATE, PLAIN_RATE = 0.12, 0.04, 0.12  # share of what a time is off that is believed at once
DRIFT, MOST_PLAIN = 0.15, 4  # change of the scale that wants plain rounds; as many on end
DUBIOUS = 1.2  # times as many single rows
TRUSTED = 4  # as many times at most count of those that were measured at another time
DISTURBED = 3.0  # a time this often the predicted one counts as predicted
CAUTION = 1.5  # a width that was never measured may cost this often what is predicted
FIRST_STEP, CATCH_UP = 0.15, 0.35  # t(1) of an unmeasured step of the draft model; of a step, per further id


class CostCurve:
    """Seconds of a decode by its rows.

    scale: what all widths share at the moment (throttling, other load), 1 when it was made or loaded. What
    was measured at another time says how the widths compare, until each is seen; the first plain rounds say
    how fast the machine is now.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self._seconds: dict[int, float] = {}  # at scale 1
        self._counts: dict[int, int] = {}
        self._widths: list[int] = []
        self._moved: set[int] = set()  # widths measured since the last plain round
        self._drift = 0.0  # of the logarithm of the scale, since then
        self._n_plain = 0  # plain rounds on end
        self._table = [0.0] * (WIDEST + 1)  # predictions at scale 1, by rows
        self._stale = 0, WIDEST + 1  # from where up to where they are to be made anew
        self._earlier: set[int] = set()  # widths that were measured at another time only
        self._forgotten: set[int] = set()  # widths whose times are not dubious, however long
        self._unplaced = 0  # plain rounds that still say what the scale is, however far off

    @property
    def known(self) -> bool:
        """Whether there is anything to go by."""
        return bool(self._widths)

    @property
    def measured(self) -> bool:
        """Whether anything was measured at this context length."""
        return bool(self._counts)

    def count(self, n: int) -> int:
        """How often n rows were measured."""
        return self._counts.get(n, 0)

    def sure(self, n: int) -> bool:
        """Whether n rows were measured often enough, and not at another time alone."""
        return self.count(n) >= FIRST and n not in self._earlier

    @property
    def unsettled(self) -> bool:
        """Whether times have changed since the last plain round, which alone tells if all widths' have."""
        return self._unplaced == FIRST or (abs(self._drift) > DRIFT and self._n_plain < MOST_PLAIN)

    def observe(self, n: int, seconds: float, plain: bool = False) -> None:
        """A decode of n rows took so long; impossible times are ignored. plain: nothing was drafted."""
        if n < 1 or n > WIDEST or not (isfinite(seconds) and seconds > 0):
            return
        if plain and self._unplaced and n in self._seconds:
            self._place(n, seconds)
            return
        count = self._believed(n, seconds) if n in self._earlier else self.count(n)
        self._counts[n] = min(count + 1, MOST_COUNTED)
        if count < FIRST:
            if n not in self._seconds:
                self._widths.insert(bisect_left(self._widths, n), n)
            now = seconds / self.scale
            self._seconds[n] = min(now, self._seconds[n]) if count else now
            self._predict_anew(n)
            if self._unplaced:
                self._moved.add(n)
            return
        off = log(seconds / (self.scale * self._seconds[n]))
        limited = max(-LARGEST_STEP, min(LARGEST_STEP, off))
        if plain:
            self._anchor(limited)
            return
        shared = limited * SCALE_RATE
        self.scale *= exp(shared)
        self._drift += shared
        self._n_plain = 0
        self._moved.add(n)
        if abs(off) < OUTLIER:
            self._seconds[n] *= exp((off - shared) * max(WIDTH_RATE, 1 / (1 + count)))
            self._predict_anew(n)

    def _believed(self, n: int, seconds: float) -> int:
        """As how many times a width from another time counts; 0 where it has to be learnt anew."""
        self._earlier.discard(n)
        far = abs(log(seconds / (self.scale * self._seconds[n]))) > OUTLIER
        return 0 if far or self.count(n) < FIRST else self.count(n)

    def _place(self, n: int, seconds: float) -> None:
        """One of the first plain rounds of a curve from another time; the shortest of them counts."""
        scale = seconds / self._seconds[n]
        if self._unplaced == FIRST or scale < self.scale:
            self._rescale(log(scale / self.scale))
        self._unplaced -= 1
        self._earlier.discard(n)
        self._counts[n] = min(self.count(n) + 1, MOST_COUNTED)
        self._drift = 0.0
        self._n_plain += 1

    def _anchor(self, off: float) -> None:
        """A plain round says what the scale is."""
        shared = off * PLAIN_RATE
        self._rescale(shared)
        self._drift = off - shared
        self._n_plain += 1
        if self._n_plain > 1:
            self._moved.clear()

    def _rescale(self, shared: float) -> None:
        """The widths seen since the last plain round keep their times."""
        self.scale *= exp(shared)
        for n in self._moved:
            self._seconds[n] *= exp(-shared)
            self._predict_anew(n)

    def _predict_anew(self, n: int) -> None:
        """The width's time has changed: those up to its neighbours follow; of the first one, all."""
        first, end = self._stale
        if first == 0 and end > WIDEST:
            return
        i, widths = bisect_left(self._widths, n), self._widths
        above = widths[i + 1] if 0 < i < len(widths) - 1 else WIDEST + 1
        self._stale = min(first, widths[i - 1] + 1 if i else 0), max(end, above)

    def predict(self, n: int) -> float:
        """Seconds of a decode of n rows now; 0 where nothing is known at all."""
        first, end = self._stale
        return (self._predict(n) if first <= n < end or n > WIDEST else self._table[n]) * self.scale

    def table(self) -> list[float]:
        """`predict` of 0 to WIDEST rows at scale 1, valid until the next `observe`."""
        first, end = self._stale
        if first < end:
            self._table[first:end] = map(self._predict, range(first, end))
            self._stale = WIDEST + 1, 0
        return self._table

    def cautious(self, n: int) -> float:
        """The same to be on the safe side: widths that were never measured may well cost more."""
        if self.count(n) or not self._widths:
            return self.predict(n)
        return max(self.predict(n), min(CAUTION * self.predict(n), 1.1 * n * self.predict(1)))

    def _predict(self, n: int) -> float:
        if n in self._seconds:
            return max(self._seconds[n], self._seconds[self._widths[0]])  # more rows never take less than one
        if not self._widths:
            return 0.0
        i = bisect_left(self._widths, n)
        if 0 < i < len(self._widths):
            low, high = self._widths[i - 1], self._widths[i]
            part = (n - low) / (high - low)
            return self._seconds[low] + part * (self._seconds[high] - self._seconds[low])
        nearest = self._widths[-1] if i else self._widths[0]
        return self._seconds[nearest] * prior(n) / prior(nearest)

    def missing(self, widths: Iterable[int]) -> list[int]:
        """Those of the widths that were not measured often enough to be sure of, or cannot be as measured."""
        return [n for n in widths if self.count(n) < FIRST or self._dubious(n)]

    def _dubious(self, n: int) -> bool:
        """Whether n rows took longer than as many single ones, as on a machine that was busy then."""
        alone = self._seconds.get(1, 0.0)
        return n not in self._forgotten and 0 < DUBIOUS * n * alone < self._seconds[n]

    def doubt(self, n: int) -> None:
        """Have the width measured anew where it was measured at another time only."""
        if n in self._earlier:
            self.forget(n)

    def forget(self, n: int) -> None:
        """Have the width measured anew; it is not dubious a second time, in a later run neither."""
        self._counts.pop(n, None)
        self._earlier.discard(n)
        self._forgotten.add(n)

    def to_dict(self) -> dict[str, Any]:
        """Plain data to be stored; `from_dict` is the inverse, up to the scale, which is folded in, and to
        the counts.
        """
        return {
            "widths": [
                [n, self._seconds[n] * self.scale, self._counts[n]] for n in self._widths if self.count(n)
            ],
            "anew": sorted(n for n in self._forgotten if self.count(n) >= FIRST),
        }

    def as_prior(self) -> CostCurve:
        """A curve for another context length that goes by this one until its own widths are measured."""
        curve = CostCurve()
        curve._widths = list(self._widths)
        curve._seconds = {n: self._seconds[n] * self.scale for n in self._widths}
        curve._unplaced = FIRST if curve._widths else 0
        return curve

    @classmethod
    def from_dict(cls, data: object) -> CostCurve:
        """What was stored; an empty curve where it is not what `to_dict` wrote."""
        curve = cls()
        widths = data.get("widths") if isinstance(data, Mapping) else None
        for item in widths if isinstance(widths, list) else ():
            if not (isinstance(item, list | tuple) and len(item) == 3):
                return cls()
            n, seconds, count = item
            if not (is_number(n, 1, WIDEST) and n == int(n) and is_number(count, 1)):
                return cls()
            if not is_number(seconds, SHORTEST, LONGEST):
                return cls()
            curve._seconds[int(n)], curve._counts[int(n)] = float(seconds), int(min(count, TRUSTED))
        anew = data.get("anew") if isinstance(data, Mapping) else None
        known = anew if isinstance(anew, list) else []
        curve._forgotten = {int(n) for n in known if is_number(n, 1, WIDEST)}
        curve._widths = sorted(curve._seconds)
        curve._earlier = set(curve._widths)
        curve._unplaced = FIRST if curve._widths else 0
        return curve


class StepCosts:
    """Seconds of a step of the draft model by the ids that it evaluates."""

    def __init__(self) -> None:
        self.curve = CostCurve()

    def observe(self, n_ids: int, seconds: float) -> None:
        wide = max(1.0, n_ids / WIDEST)
        self.curve.observe(min(n_ids, WIDEST), seconds / wide)

    def predict(self, n_ids: int, t1: float) -> float:
        """t1: seconds of the target's decode of one row, which the first guess goes by."""
        if self.curve.known:
            return self.curve.predict(n_ids)
        return FIRST_STEP * t1 * (1 + CATCH_UP * (n_ids - 1))


def prior(n: int) -> float:
    """What n rows are taken to cost before any was measured, in t(1)."""
    if n >= WIDEST:
        return PRIOR[-1][1] * n / WIDEST
    for (low, a), (high, b) in pairwise(PRIOR):
        if n <= high:
            return a + (b - a) * (n - low) / (high - low)
    raise AssertionError("PRIOR ends at WIDEST")
