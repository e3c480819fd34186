"""The time of a decode of n rows: one estimate per n, refined by every round, and one curve per range of
context lengths.

t(n) is a staircase that differs between machines, so no line is fitted: widths between two measured ones are
interpolated, wider ones follow a cautious prior from the widest measured one. Knows no models and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import exp, inf, isfinite, log
from typing import Any

from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number
from specllama.core.policy.width_changes import Place, WidthChanges


class CostCurve:
    """Seconds of a decode by its number of rows.

    scale: the factor that all widths share at the moment (throttling, other load), 1 for a new or loaded
    curve. Stored times give relative costs until each width is measured again; the first plain rounds set the
    scale. changes: what a change of the width costs, shared by all curves of a context. Where it costs
    something, the times are those of steady decodes, and `width` and `now` say what a decode costs now.
    """

    def __init__(self, config: PolicyConfig = DEFAULT, changes: WidthChanges | None = None) -> None:
        self.config = config
        self.changes = changes if changes is not None else WidthChanges(config)
        self.scale = 1.0
        self._changed: dict[int, dict[Place, float]] = {}  # shortest first and second decode, at scale 1
        self._loading: dict[int, float] = {}  # first decodes since loading, until steady ones are known
        self._assumed: set[int] = set()  # widths without a steady decode
        self._steady: set[int] = set()  # widths with one
        self._state: tuple[bool | None, bool | None] = None, None  # of `changes`, when the times were last corrected by it
        self._seconds: dict[int, float] = {}  # at scale 1
        self._counts: dict[int, int] = {}
        self._widths: list[int] = []
        self._moved: set[int] = set()  # widths measured since the last plain round
        self._drift = 0.0  # change of the logarithm of the scale since then
        self._n_plain = 0  # consecutive plain rounds
        self._table = [0.0] * (config.max_rows + 1)  # predictions at scale 1, by rows
        self._stale = 0, config.max_rows + 1  # range of the table that must be computed again
        self._stored: set[int] = set()  # widths that were measured in an earlier process only
        self._plausible: set[int] = set()  # widths whose times are accepted, however long
        self._unscaled = 0  # plain rounds that still set the scale, whatever their deviation

    @property
    def known(self) -> bool:
        """Whether it has any times, of this or of another context length."""
        return bool(self._widths)

    @property
    def measured(self) -> bool:
        """Whether anything was measured at this context length."""
        return bool(self._counts)

    @property
    def times(self) -> list[tuple[int, float]]:
        """(rows, seconds now) of the measured widths, by rows."""
        return [(n, self._seconds[n] * self.scale) for n in self._widths if self.count(n)]

    def count(self, n: int) -> int:
        """How often n rows were measured."""
        return self._counts.get(n, 0)

    def is_reliable(self, n: int) -> bool:
        """Whether n rows were measured often enough, also in this process."""
        return self.count(n) >= self.config.min_samples and n not in self._stored

    @property
    def scale_uncertain(self) -> bool:
        """Whether times have changed since the last plain round, so that other widths' are uncertain."""
        c = self.config
        drifted = abs(self._drift) > c.max_drift and self._n_plain < c.settling_rounds
        return drifted or self._unscaled == c.min_samples

    def observe(self, n: int, seconds: float, plain: bool = False) -> None:
        """Record a decode of n rows. plain: without drafts. Impossible times are ignored."""
        place = self.changes.record(n)
        if n < 1 or n > self.config.max_rows or not (isfinite(seconds) and seconds > 0):
            return
        alike = self.changes.alike(place)
        if place == Place.STEADY:
            self._learn_loading(n, seconds / self.scale)
        else:
            self._observe_change(n, place, seconds / self.scale)
        if alike or (alike is None and n not in self._steady):
            self._observe_steady(n, seconds, plain)
            if place == Place.STEADY:
                self._steady.add(n)

    def _learn_loading(self, n: int, seconds: float) -> None:
        """Compare the decodes of this width before with a steady one; seconds at scale 1."""
        if n not in self._steady:
            for place, found in self._changed.get(n, {}).items():
                self.changes.observe(place, found - seconds, min(self._t1 or seconds, seconds))
        if (loading := self._loading.pop(n, None)) is not None:
            steady = self._seconds[n] if n in self._steady else seconds
            self.changes.observe(Place.LOADING, loading - steady, min(self._t1 or seconds, seconds))

    @property
    def _t1(self) -> float:
        """Seconds of the narrowest decode at scale 1."""
        return self._seconds[self._widths[0]] if self._widths else 0.0

    def _observe_change(self, n: int, place: Place, seconds: float) -> None:
        """Record a decode after loading or after a change of the width; seconds at scale 1."""
        changes = self.changes
        if place == Place.LOADING:
            self._loading.setdefault(n, seconds)
        else:
            if n in self._steady:
                changes.observe(place, seconds - self._seconds[n], self._t1)
            found = self._changed.setdefault(n, {})
            found[place] = min(seconds, found.get(place, seconds))
        if changes.alike(place) is False and n not in self._steady:
            self._assume(n)
        state = changes.change, changes.loading
        if state != self._state:
            self._state = state
            if changes.change or changes.loading:
                for width in [w for w in self._widths if w not in self._steady]:
                    self._assume(width)

    def _assume(self, n: int) -> None:
        """Take what the first decodes after a change leave for a steady one as its time, until there is one."""
        changes, found = self.changes, self._changed.get(n, {})
        if found:
            least = min(seconds - (changes.more(place) if changes.change else 0.0) for place, seconds in found.items())
            self._seconds[n] = max(1e-9, least)
            self._counts[n] = 1
        elif n != 1:  # the decodes after loading say nothing
            self._seconds.pop(n, None)
            self._counts.pop(n, None)
        self._assumed.add(n)
        self._widths = sorted(self._seconds)
        self._stale = 0, len(self._table)

    def _observe_steady(self, n: int, seconds: float, plain: bool) -> None:
        """Record a decode whose time is that of all decodes of n rows."""
        c = self.config
        if n in self._assumed or (self.changes.place == Place.STEADY and n not in self._steady and self.changes.change is not False):
            self._assumed.discard(n)
            self._counts.pop(n, None)
        if plain and self._unscaled and n in self._seconds:
            self._set_scale(n, seconds)
            return
        count = self._confirmed_count(n, seconds) if n in self._stored else self.count(n)
        self._counts[n] = min(count + 1, c.max_samples)
        if count < c.min_samples:
            if n not in self._seconds:
                self._widths.insert(bisect_left(self._widths, n), n)
            now = seconds / self.scale
            self._seconds[n] = min(now, self._seconds[n]) if count else now
            self._invalidate(n)
            if self._unscaled:
                self._moved.add(n)
            return
        off = log(seconds / (self.scale * self._seconds[n]))
        limited = max(-c.scale_step, min(c.scale_step, off))
        if plain:
            self._anchor(limited)
            return
        shared = limited * c.scale_rate
        self.scale *= exp(shared)
        self._drift += shared
        self._n_plain = 0
        self._moved.add(n)
        if abs(off) < c.outlier:
            self._seconds[n] *= exp((off - shared) * max(c.width_rate, 1 / (1 + count)))
            self._invalidate(n)

    def _confirmed_count(self, n: int, seconds: float) -> int:
        """How many measurements a stored width counts as, now that it is measured; 0 where it is far off."""
        self._stored.discard(n)
        far = abs(log(seconds / (self.scale * self._seconds[n]))) > self.config.outlier
        return 0 if far or self.count(n) < self.config.min_samples else self.count(n)

    def _set_scale(self, n: int, seconds: float) -> None:
        """Set the scale by one of the first plain rounds of a stored curve; the shortest of them wins."""
        scale = seconds / self._seconds[n]
        if self._unscaled == self.config.min_samples or scale < self.scale:
            self._rescale(log(scale / self.scale))
        self._unscaled -= 1
        self._stored.discard(n)
        self._counts[n] = min(self.count(n) + 1, self.config.max_samples)
        self._drift = 0.0
        self._n_plain += 1

    def _anchor(self, off: float) -> None:
        """Correct the scale by a plain round. off: log ratio of its time to the prediction."""
        shared = off * self.config.plain_rate
        self._rescale(shared)
        self._drift = off - shared
        self._n_plain += 1
        if self._n_plain > 1:
            self._moved.clear()

    def _rescale(self, shared: float) -> None:
        """Change the scale; widths measured since the last plain round keep their times."""
        self.scale *= exp(shared)
        for n in self._moved:
            self._seconds[n] *= exp(-shared)
            self._invalidate(n)

    def _invalidate(self, n: int) -> None:
        """The width's time has changed: recompute predictions between its neighbours; with the first, all."""
        first, end = self._stale
        if first == 0 and end == len(self._table):
            return
        i, widths = bisect_left(self._widths, n), self._widths
        above = widths[i + 1] if 0 < i < len(widths) - 1 else len(self._table)
        self._stale = min(first, widths[i - 1] + 1 if i else 0), max(end, above)

    def predict(self, n: int) -> float:
        """Seconds of a decode of n rows now; 0 without any times."""
        first, end = self._stale
        return (
            self._predict(n) if first <= n < end or n >= len(self._table) else self._table[n]
        ) * self.scale

    def table(self) -> list[float]:
        """`predict` of 0 to max_rows rows at scale 1, valid until the next `observe`."""
        first, end = self._stale
        if first < end:
            self._table[first:end] = map(self._predict, range(first, end))
            self._stale = len(self._table), 0
        return self._table

    def now(self) -> list[float]:
        """Seconds at scale 1 of the next decode with n rows, for 0 to max_rows rows, filled up to `width`; the
        cost of a change of the width is spread over the decodes of a run. Valid until the next `observe`.
        """
        if not self.changes.change:
            return self.table()
        self._plan()
        return self._now

    def width(self, n: int) -> int:
        """How many rows a decode with n rows should have now: with the cost of a change, more can be cheaper."""
        if not self.changes.change or not 0 < n < len(self._table):
            return n
        self._plan()
        return self._width[n]

    def _plan(self) -> None:
        table, changes, c = self.table(), self.changes, self.config
        kept = max(2.0, changes.n_kept)
        best, at = inf, 0
        self._now, self._width = [0.0] * len(table), [0] * len(table)
        load = changes.more(Place.LOADING) if changes.loading else 0.0
        for n in range(len(table) - 1, 0, -1):
            seconds = table[n] + (changes.costs(n) / kept + (load / c.loading_spread if changes.fresh(n) else 0.0)) / self.scale
            if seconds <= best:
                best, at = seconds, n
            self._now[n], self._width[n] = best, at

    @property
    def excursion(self) -> float:
        """What a round of another width costs beyond it, there and back, in decodes of one row."""
        changes, t1 = self.changes, self.predict(1)
        return 2 * (changes.more(Place.FIRST) + changes.more(Place.SECOND)) / t1 if changes.change and t1 else 0.0

    def upper_bound_now(self, n: int) -> float:
        """A cautious prediction of the seconds of the next decode with n rows."""
        changes = self.changes
        if not changes.change:
            return self.upper_bound(n)
        width = self.width(n)
        return self.upper_bound(width) + (changes.more(Place.FIRST) if width != changes.last else changes.pending)

    def upper_bound(self, n: int) -> float:
        """A cautious `predict`: more for a width that was never measured."""
        if self.count(n) or not self._widths:
            return self.predict(n)
        likely = self.config.unmeasured * self.predict(n)
        return max(self.predict(n), min(likely, 1.1 * n * self.predict(1)))

    def _predict(self, n: int) -> float:
        if n in self._seconds:
            return max(self._seconds[n], self._seconds[self._widths[0]])  # more rows never cost less than one
        if not self._widths:
            return 0.0
        i = bisect_left(self._widths, n)
        if 0 < i < len(self._widths):
            low, high = self._widths[i - 1], self._widths[i]
            part = (n - low) / (high - low)
            return self._seconds[low] + part * (self._seconds[high] - self._seconds[low])
        nearest = self._widths[-1] if i else self._widths[0]
        return self._seconds[nearest] * decode_prior(n, self.config) / decode_prior(nearest, self.config)

    def unmeasured(self, widths: Iterable[int]) -> list[int]:
        """The widths that were not measured often enough, or whose times are implausible."""
        return [n for n in widths if self.count(n) < self.config.min_samples or self._implausible(n)]

    def _implausible(self, n: int) -> bool:
        """Whether n rows took longer than n single ones, as on a machine that was busy at the time."""
        singles = n * self._seconds.get(1, 0.0)
        return n not in self._plausible and 0 < self.config.implausible * singles < self._seconds[n]

    def remeasure_if_stored(self, n: int) -> None:
        """Forget a width that was measured in an earlier process only."""
        if n in self._stored:
            self.forget(n)

    def forget(self, n: int) -> None:
        """Forget a width, so that it is measured again; its new time is accepted, in later processes too."""
        self._counts.pop(n, None)
        self._stored.discard(n)
        self._plausible.add(n)

    def to_dict(self) -> dict[str, Any]:
        """Plain data to be stored, with times multiplied by the scale; see `from_dict`."""
        return {
            "widths": [
                [n, self._seconds[n] * self.scale, self._counts[n]] for n in self._widths if self.count(n)
            ],
            "anew": sorted(n for n in self._plausible if self.count(n) >= self.config.min_samples),
        }

    def as_prior(self) -> CostCurve:
        """A curve for another context length that predicts as this one until its own widths are measured."""
        curve = CostCurve(self.config, self.changes)
        curve._widths = list(self._widths)
        curve._seconds = {n: self._seconds[n] * self.scale for n in self._widths}
        curve._unscaled = self.config.min_samples if curve._widths else 0
        return curve

    @classmethod
    def from_dict(
        cls, data: object, config: PolicyConfig = DEFAULT, changes: WidthChanges | None = None
    ) -> CostCurve:
        """A stored curve; an empty one where `data` is not what `to_dict` wrote."""
        curve = cls(config, changes)
        widths = data.get("widths") if isinstance(data, Mapping) else None
        for item in widths if isinstance(widths, list) else ():
            if not (isinstance(item, list | tuple) and len(item) == 3):
                return cls(config, changes)
            n, seconds, count = item
            if not (is_number(n, 1, config.max_rows) and n == int(n) and is_number(count, 1)):
                return cls(config, changes)
            if not is_number(seconds, *config.decode_seconds):
                return cls(config, changes)
            curve._seconds[int(n)] = float(seconds)
            curve._counts[int(n)] = int(min(count, config.stored_samples))
        plausible = data.get("anew") if isinstance(data, Mapping) else None
        known = plausible if isinstance(plausible, list) else []
        curve._plausible = {int(n) for n in known if is_number(n, 1, config.max_rows)}
        curve._widths = sorted(curve._seconds)
        curve._stored = set(curve._widths)
        curve._steady = set(curve._widths)
        curve._unscaled = config.min_samples if curve._widths else 0
        return curve


class StepCosts:
    """Seconds of a step of the draft model by the number of ids that it evaluates."""

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config, self.curve = config, CostCurve(config)

    def observe(self, n_ids: int, seconds: float) -> None:
        """Record a step of `n_ids` ids."""
        wide = max(1.0, n_ids / self.config.max_rows)
        self.curve.observe(min(n_ids, self.config.max_rows), seconds / wide)

    def predict(self, n_ids: int, t1: float) -> float:
        """Seconds of a step of `n_ids` ids. t1: seconds of a target decode of one row, for the prior."""
        if self.curve.known:
            return self.curve.predict(n_ids)
        return self.config.step_prior * t1 * (1 + self.config.catch_up * (n_ids - 1))


class CostCurves:
    """One curve for each range of context lengths, made at the first use: the longer the text, the more
    attention costs per row.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self._curves: dict[int, CostCurve] = {}
        self._used: set[int] = set()

    def at(self, n_ids: int) -> CostCurve:
        """The curve for `n_ids` ids in the decoded sequences. A new one starts with the times of the nearest
        measured one.
        """
        bucket, buckets = bucket_of(n_ids, self.config), self.config.context_buckets
        self._used.add(bucket)
        if bucket not in self._curves:
            measured = [b for b, curve in self._curves.items() if curve.measured]
            at = buckets.index(bucket)
            near = min(measured, key=lambda b: (abs(buckets.index(b) - at), b), default=None)
            fresh = CostCurve(self.config)
            self._curves[bucket] = fresh if near is None else self._curves[near].as_prior()
        return self._curves[bucket]

    def put(self, n_ids: int, curve: CostCurve) -> None:
        """Replace the curve for `n_ids` ids."""
        bucket = bucket_of(n_ids, self.config)
        self._used.add(bucket)
        self._curves[bucket] = curve

    def to_dict(self, used: bool = False) -> dict[str, Any]:
        """Plain data to be stored. used: only the curves used in this process."""
        return {
            str(b): curve.to_dict()
            for b, curve in sorted(self._curves.items())
            if curve.measured and (b in self._used or not used)
        }

    @classmethod
    def from_dict(cls, data: object, config: PolicyConfig = DEFAULT) -> CostCurves:
        """The stored curves; invalid ones are ignored."""
        found = cls(config)
        stored: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
        for bucket in config.context_buckets:
            curve = CostCurve.from_dict(stored.get(str(bucket)), config)
            if curve.measured:
                found._curves[bucket] = curve
        return found


def bucket_of(n_ids: int, config: PolicyConfig = DEFAULT) -> int:
    """The lower end of the range of context lengths that contains `n_ids`."""
    return max(b for b in config.context_buckets if b <= n_ids)


def decode_prior(n: int, config: PolicyConfig = DEFAULT) -> float:
    """The assumed time of a decode of n rows before any is measured, in t(1)."""
    widest, cost = config.decode_prior[-1]
    if n >= widest:
        return cost * n / widest
    for (low, a), (high, b) in pairwise(config.decode_prior):
        if n <= high:
            return a + (b - a) * (n - low) / (high - low)
    raise AssertionError("the last entry of decode_prior covers all further widths")
