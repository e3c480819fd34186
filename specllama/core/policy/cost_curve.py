"""The time of a decode of n rows: one estimate per n, refined by every round, and one curve per range of
context lengths.

t(n) is a staircase that differs between machines, so no line is fitted: widths between two measured ones are
interpolated, wider ones follow a cautious prior from the widest measured one. Knows no models and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import exp, isfinite, log
from typing import Any

from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number
from specllama.core.policy.width_changes import Phase, WidthChanges


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
        self._steady: dict[int, float] = {}  # seconds of steady decodes alone, whatever the scale
        self._corrected = self.changes.change, self.changes.loading  # for which the times stand
        self._plan: tuple[list[float], list[int]] = [], []
        self._planned = -1, 0.0  # version of the changes, and scale, of which the plan is
        self._seconds: dict[int, float] = {}  # at scale 1
        self._counts: dict[int, int] = {}
        self._widths: list[int] = []
        self._moved: set[int] = set()  # widths measured since the last plain round
        self._after_plain = False  # whether the last round was plain
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
        """Whether the times are those of another process or context length, and no plain round has set their
        scale yet.
        """
        return self._unscaled == self.config.min_samples

    def observe(self, n: int, seconds: float, plain: bool = False) -> None:
        """Record a decode of n rows. plain: without drafts. Impossible times are ignored.

        A decode after loading or after a change of the width does not count where it is known to take longer
        than a steady one.
        """
        self.observe_at(self.changes.record(n, seconds), n, seconds, plain)

    def observe_at(self, phase: Phase, n: int, seconds: float, plain: bool = False) -> None:
        """As `observe`, for a decode of this phase that the changes have recorded already."""
        changes = self.changes
        if n < 1 or n > self.config.max_rows or not (isfinite(seconds) and seconds > 0):
            return
        if (state := (changes.change, changes.loading)) != self._corrected:
            self._corrected = state
            self._correct()
        if phase == Phase.STEADY:
            before = self._steady.get(n, seconds)
            self._steady[n] = before + self.config.width_rate * (seconds - before)
        if changes.alike(phase):
            self._observe_time(n, seconds, plain)

    def _correct(self) -> None:
        """It has become known whether all decodes are alike: where not, steady times replace the others."""
        if not any(self._corrected) or not self._steady:
            return
        self.scale = 1.0
        for n in self._widths:
            if n in self._steady:
                self._seconds[n] = self._steady[n]
            elif n not in self._stored:
                del self._seconds[n]
                self._counts.pop(n, None)
                self._moved.discard(n)
        self._widths = sorted(self._seconds)
        self._stale = 0, len(self._table)

    def _observe_time(self, n: int, seconds: float, plain: bool) -> None:
        """Record the time that all decodes of n rows take."""
        c = self.config
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
        self._after_plain = False
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
        self._after_plain = True

    def _anchor(self, off: float) -> None:
        """Correct the scale by a plain round. off: log ratio of its time to the prediction."""
        shared = off * self.config.plain_rate
        self._rescale(shared)
        if self._after_plain:
            self._moved.clear()
        self._after_plain = True

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
        """Seconds at scale 1 of the next decode with n rows, for 0 to max_rows rows, filled up to `width`.
        The cost of a change of the width is spread over the decodes of a run. Valid until the next `observe`.
        """
        return self._planned_now()[0] if self.changes.change else self.table()

    def width(self, n: int) -> int:
        """How many rows a decode with n rows should have now: where a change costs something, the last width
        or another one can be cheaper.
        """
        if not self.changes.change or not 0 < n < len(self._table):
            return n
        return self._planned_now()[1][n]

    def _planned_now(self) -> tuple[list[float], list[int]]:
        planned = self.changes.version, round(self.scale, 2)  # of which the costs of changes are a part
        if planned != self._planned or self._stale[0] < self._stale[1]:
            scaled = [seconds * self.scale for seconds in self.table()]
            seconds, widths = self.changes.plan(scaled)
            self._plan = [x / self.scale for x in seconds], widths
            self._planned = planned
        return self._plan

    @property
    def fills(self) -> bool:
        """Whether decodes may be filled up."""
        return bool(self.changes.change)

    def plain_width(self, n: int) -> int:
        """How many rows a round of n sequences without drafts has, where it is the reference."""
        return n

    @property
    def there_and_back(self) -> float:
        """What a round of another width costs because of the changes, in decodes of one row."""
        t1 = self.predict(1)
        return 2 * self.changes.whole / t1 if self.changes.change and t1 else 0.0

    def next_seconds(self, n: int) -> float:
        """Seconds of the next decode if it has just n rows."""
        return self.predict(n) + self.changes.next_cost(n)

    def next_upper_bound(self, n: int) -> float:
        """A cautious prediction of the seconds of the next decode with n rows, filled up to `width`."""
        width = self.width(n)
        return self.upper_bound(width) + self.changes.next_cost(width)

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

    def share(self, changes: WidthChanges) -> None:
        """Share what is known of changes of the width; all times of this curve are of steady decodes."""
        self.changes, self._corrected = changes, (changes.change, changes.loading)
        self._steady = {n: seconds * self.scale for n, seconds in self._seconds.items()}

    def remeasure_if_stored(self, n: int) -> None:
        """Forget a width that was measured in an earlier process only."""
        if n in self._stored:
            self.forget(n)

    def forget(self, n: int) -> None:
        """Forget a width, so that it is measured again; its new time is accepted, in later processes too."""
        self._counts.pop(n, None)
        self._stored.discard(n)
        self._plausible.add(n)

    def to_dict(self) -> dict[str, object]:
        """Plain data to be stored, with times multiplied by the scale; see `from_dict`."""
        return {
            "widths": [
                [n, self._seconds[n] * self.scale, self._counts[n]] for n in self._widths if self.count(n)
            ],
            "anew": sorted(n for n in self._plausible if self.count(n) >= self.config.min_samples),
        } | self.changes.to_dict()

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
        curve._unscaled = config.min_samples if curve._widths else 0
        if curve.changes.restore(data, curve._seconds.get(1, 0.0)):
            curve._steady = dict(curve._seconds)  # older files have the times of all decodes
            curve._corrected = curve.changes.change, curve.changes.loading
        return curve


class StepCosts:
    """Seconds of a step of the draft model by the number of ids that it evaluates."""

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config, self.curve = config, CostCurve(config)

    def observe(self, n_rows: int, seconds: float) -> None:
        """Record a step whose decode had so many rows."""
        wide = max(1.0, n_rows / self.config.max_rows)
        self.curve.observe(min(n_rows, self.config.max_rows), seconds / wide)

    def predict(self, n_ids: int, t1: float) -> float:
        """Seconds of a step of `n_ids` ids now. t1: seconds of a target decode of one row, for the prior."""
        if self.curve.known:
            now, widest = self.curve.now(), self.config.max_rows
            return now[min(n_ids, widest)] * self.curve.scale * max(1.0, n_ids / widest)
        return self.config.step_prior * t1 * (1 + self.config.catch_up * (n_ids - 1))

    def width(self, n_ids: int) -> int:
        """How many rows the decode of a step of `n_ids` ids should have now."""
        return self.curve.width(n_ids)


class CostCurves:
    """One curve for each range of context lengths, made at the first use: the longer the text, the more
    attention costs per row. changes: of the context's decodes, shared by all curves.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config, self.changes = config, WidthChanges(config)
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
            fresh = CostCurve(self.config, self.changes)
            self._curves[bucket] = fresh if near is None else self._curves[near].as_prior()
        return self._curves[bucket]

    def put(self, n_ids: int, curve: CostCurve) -> None:
        """Replace the curve for `n_ids` ids."""
        bucket = bucket_of(n_ids, self.config)
        self._used.add(bucket)
        self._curves[bucket] = curve
        curve.share(self.changes)

    def to_dict(self, used: bool = False) -> dict[str, dict[str, object]]:
        """Plain data to be stored. used: only the curves used in this process."""
        return {
            str(b): curve.to_dict()
            for b, curve in sorted(self._curves.items())
            if curve.measured and (b in self._used or not used)
        }

    @classmethod
    def from_dict(cls, data: object, config: PolicyConfig = DEFAULT) -> CostCurves:
        """The stored curves; invalid ones are ignored."""
        curves = cls(config)
        stored: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
        for bucket in config.context_buckets:
            curve = CostCurve.from_dict(stored.get(str(bucket)), config, curves.changes)
            if curve.measured:
                curves._curves[bucket] = curve
        return curves


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
