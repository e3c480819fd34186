"""The time of a decode of n rows: a shape, learnt width by width, times the scale of the moment.

t(n) is a staircase that differs between machines, so no line is fitted: widths between two measured ones are
interpolated, wider ones follow a prior from the widest measured one. Knows no models and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from math import exp, inf, isfinite, log
from statistics import median_low

from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number, numbers
from specllama.stored_figures import can_take

_N_RATIOS = 5  # decodes that show how much slower a machine is than when a curve was stored


class CostCurve:
    """Seconds of a steady decode by its number of rows.

    scale: the factor that all widths share at the moment (throttling, other load). Stored times give the
    shape; `set_scale` takes the scale from a decode before the first round, and every round corrects both.
    table: `predict` of 0 to max_rows rows at scale 1, valid until the next `observe`; before any, in t(1).
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self.scale = 1.0
        self._seconds: dict[int, float] = {}  # by width, at scale 1
        self._counts: dict[int, int] = {}  # measurements of each, at most min_samples of an earlier process
        self._stored: set[int] = set()  # widths that were not measured in this process
        self._ratios: list[float] = []  # of the first decodes to the stored times
        self._widths: list[int] = []
        self.table = [config.prior(n) if n else 0.0 for n in range(config.max_rows + 1)]

    @property
    def known(self) -> bool:
        """Whether it has any times, of this or of another context length."""
        return bool(self._widths)

    @property
    def times(self) -> list[tuple[int, float]]:
        """(rows, seconds now) of the measured widths, by rows."""
        return [(n, self._seconds[n] * self.scale) for n in self._widths if self.count(n)]

    def count(self, n: int) -> int:
        """How often n rows were measured."""
        return self._counts.get(n, 0)

    def observe(self, n: int, seconds: float) -> None:
        """Record a decode of n rows. Impossible times are ignored."""
        c = self.config
        if not 1 <= n <= c.max_rows or not (isfinite(seconds) and seconds > 0):
            return
        # A width that takes far longer than predicted is wrong by itself; else the scale is.
        before = self._seconds.get(n)
        longer = bool(self._ratios and before) and seconds > self.scale * (before or 0.0) * exp(c.most_off)
        if n in self._stored and len(self._ratios) < _N_RATIOS and not longer:
            self.set_scale(n, seconds)
            self._counts[n] = self.count(n) + 1
            return
        count = self.count(n)
        off = log(seconds / (self.scale * before)) if before else 0.0
        if n in self._stored:
            self._stored.discard(n)
            count = 0 if abs(off) > c.most_off else count
        self._counts[n] = count + 1
        if before is None or count < c.min_samples:
            self._set(n, min(seconds / self.scale, before if before and count else inf))
            if self._stored:
                self.leave_out_impossible()
            return
        # Scale and width see the same limited deviation: else outliers would drive them apart.
        off = max(-c.most_off, min(c.most_off, off))
        self.scale *= exp(off * c.scale_rate)
        self._set(n, before * exp(off * (1 - c.scale_rate) * max(c.width_rate, 1 / (1 + count))))

    def set_scale(self, n: int, seconds: float) -> None:
        """Let the times of an earlier process follow a decode of n rows that took so many seconds now. The
        median of the first ratios counts, so that neither a busy moment nor a wrong time of one width makes
        all others wrong.
        """
        if n in self._stored and isfinite(seconds) and seconds > 0:
            self._ratios.append(seconds / self._seconds[n])
            self.scale = median_low(self._ratios)

    def _set(self, n: int, seconds: float) -> None:
        """Set the time of a width at scale 1, and predictions between its neighbours; all with the first."""
        if n not in self._seconds:
            self._widths.insert(bisect_left(self._widths, n), n)
        self._seconds[n] = seconds
        i, widths = bisect_left(self._widths, n), self._widths
        first = widths[i - 1] if i > 1 else 1  # the narrowest width limits all others
        last = widths[i + 1] if 0 < i < len(widths) - 1 else len(self.table)
        self.table[first:last] = map(self._predict, range(first, last))

    def _predict(self, n: int) -> float:
        """Seconds of n rows at scale 1; more rows never take less than the fewest measured ones."""
        seconds, i = self._seconds, bisect_left(self._widths, n)
        if n in seconds:
            return max(seconds[n], seconds[self._widths[0]])
        if 0 < i < len(self._widths):
            low, high = self._widths[i - 1], self._widths[i]
            return seconds[low] + (n - low) / (high - low) * (seconds[high] - seconds[low])
        nearest = self._widths[-1] if i else self._widths[0]
        return seconds[nearest] * self.config.prior(n) / self.config.prior(nearest)

    def predict(self, n: int) -> float:
        """Seconds of a decode of n rows now; 0 without any times."""
        if not self._widths:
            return 0.0
        return (self.table[n] if n < len(self.table) else self._predict(n)) * self.scale

    def upper_bound(self, n: int) -> float:
        """A cautious `predict`: more for a width that was never measured."""
        if self.count(n) or not self._widths:
            return self.predict(n)
        return max(self.predict(n), min(self.config.unmeasured * self.predict(n), 1.1 * n * self.predict(1)))

    @property
    def seen(self) -> bool:
        """Whether this process has measured anything of it."""
        return bool(self._ratios) or bool(set(self._counts) - self._stored)

    def leave_out_impossible(self, sure: Iterable[int] = ()) -> None:
        """Leave out the stored times that cannot be next to those that this process has measured, or to those
        of the widths `sure`; where that are several, all stored ones but these.
        """
        sure = set(sure) & set(self._widths)
        known = [n for n in self._widths if n in sure or (n not in self._stored and self.count(n) > 1)]
        stored = self._stored - sure
        at = self._seconds
        wrong = {n for n in stored if not all(can_take(n, at[n], m, at[m]) for m in known)}
        if len(wrong) > 1:
            wrong = stored
        for n in wrong:
            self.leave_out(n)

    def leave_out(self, n: int) -> None:
        """Drop the time of a width that was not measured in this process, as if it had never been stored."""
        if n in self._stored:
            self._stored.discard(n)
            self._counts.pop(n, None)
            del self._seconds[n]
            self._widths.remove(n)
            at = self._predict if self._widths else self.config.prior
            self.table = [at(w) if w else 0.0 for w in range(len(self.table))]

    def forget(self, n: int) -> None:
        """Forget a width that was not measured in this process, so that it is measured again."""
        if n in self._stored:
            self._stored.discard(n)
            self._counts.pop(n, None)

    def to_dict(self) -> dict[str, object]:
        """Plain data to be stored, with times multiplied by the scale; see `from_dict`."""
        return {"widths": [[n, seconds, self._counts[n]] for n, seconds in self.times]}

    @classmethod
    def from_dict(cls, data: object, config: PolicyConfig = DEFAULT) -> CostCurve:
        """A stored curve; an empty one where `data` is not what `to_dict` wrote."""
        curve, widths = cls(config), data.get("widths") if isinstance(data, Mapping) else None
        for item in widths if isinstance(widths, list) else ():
            known = numbers(list(item), 3) if isinstance(item, list | tuple) else None
            n, seconds, count = known or (0, 0, 0)
            if n not in range(1, config.max_rows + 1) or count < 1 or not is_number(seconds, 1e-9, 1e6):
                return cls(config)
            curve._counts[int(n)] = int(min(count, config.min_samples))
            curve._set(int(n), seconds)
        curve._stored = set(curve._widths)
        curve.leave_out_impossible([1])
        return curve

    def as_prior(self) -> CostCurve:
        """A curve that predicts as this one until its own widths are measured, of another context length."""
        curve = CostCurve.from_dict(self.to_dict(), self.config)
        curve._counts.clear()
        return curve
