"""The time of a decode of n rows: a shape, learnt width by width, times the scale of the moment.

t(n) is a staircase that differs between machines, so no line is fitted: widths between two measured
ones are interpolated, wider ones follow a prior from the widest measured one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import exp, inf, isfinite, log
from statistics import median_low

from specllama import wire
from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number, stored_counts
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
        self._priors = [config.prior(n) if n else 0.0 for n in range(config.max_rows + 1)]
        self.table = self._priors.copy()

    def _prior(self, n: int) -> float:
        return self._priors[n] if n < len(self._priors) else self.config.prior(n)

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
        """Set the time of a width at scale 1, and the predictions that depend on it."""
        if n not in self._seconds:
            self._widths.insert(bisect_left(self._widths, n), n)
        self._seconds[n] = seconds
        i, widths = bisect_left(self._widths, n), self._widths
        first = widths[i - 1] if i else 1
        last = widths[i + 1] if i < len(widths) - 1 else len(self.table)
        widest = widths[-1]
        inner = map(self._predict, range(first, min(last, widest + 1)))
        at, priors = self._seconds[widest], self._priors  # each step of a draft gets here
        self.table[first:last] = [*inner, *(at * time / priors[widest] for time in priors[widest + 1 : last])]
        for wider in widths[1:] if not i else ():  # the narrowest width limits those that were measured
            self.table[wider] = max(self._seconds[wider], seconds)

    def _predict(self, n: int) -> float:
        """Seconds of n rows at scale 1; more rows never take less than the fewest measured ones."""
        seconds, i = self._seconds, bisect_left(self._widths, n)
        if n in seconds:
            return max(seconds[n], seconds[self._widths[0]])
        if 0 < i < len(self._widths):
            low, high = self._widths[i - 1], self._widths[i]
            return seconds[low] + (n - low) / (high - low) * (seconds[high] - seconds[low])
        nearest = self._widths[-1] if i else self._widths[0]
        return seconds[nearest] * self._prior(n) / self._prior(nearest)

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
            at = self._predict if self._widths else self._prior
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
        curve, widths = cls(config), wire.stored(dict[str, object], data, {}).get("widths")
        for n, seconds, count in wire.stored(list[tuple[float, float, float]], widths, []):
            if n not in range(1, config.max_rows + 1) or not count >= 1 or not 1e-9 <= seconds <= 1e6:
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


# The rows of decodes on a device where a change of their number costs something, as on a GPU.
#
# There every decode of a text has as many rows as the first one: what a row is computed with then depends on
# that number alone, so the text is the same with and without drafts. How many rows give most tokens per
# second is known from the cost curve, measured when a model is loaded, and from how many drafted tokens the
# earlier rounds of the pair had right.


WIDTHS = (1, 2, 4, 8, 16, 9, 3, 32, 6, 12, 24)  # rows of the decodes that are timed at loading


class RunLengths:
    """How many tokens of a draft are right in a row: the chance of each place if all before it are right, as
    Kaplan and Meier estimate survival from observations that ended early, with exponential forgetting. A
    place takes the chance of the one before it as its prior. draft_seconds: of a drafted token,
    in t(1). width: rows of the last text, 0 before any.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self._right = [0.0] * config.max_rows
        self._seen = [0.0] * config.max_rows
        self.draft_seconds, self.width = 0.0, 0

    @property
    def n_seen(self) -> float:
        """The weight of the drafts that were observed."""
        return self._seen[0]

    def observe(self, n_drafted: int, n_right: int, n_most: int, seconds: float = 0.0) -> None:
        """Record a draft. n_right: its tokens that were right, from the first one on. n_most: how many it
        could have had: one that is shorter had no further ones. seconds: of drafting it.
        """
        for at in range(min(n_right + (n_right < n_most), len(self._seen))):
            self._seen[at] = self._seen[at] * self.config.forget + 1
            self._right[at] = self._right[at] * self.config.forget + (at < n_right)
        if n_drafted:
            rate = max(self.config.pair_rate, 1 / max(1.0, self.n_seen))
            self.draft_seconds += rate * (seconds / n_drafted - self.draft_seconds)

    def tokens(self, width: int) -> float:
        """Expected tokens of a round of so many rows."""
        expected = path = 1.0
        chance = 0.5
        for at in range(width - 1):
            chance = (self._right[at] + chance) / (self._seen[at] + 1)
            path *= chance
            expected += path
        return expected

    def text_width(self, curve: CostCurve) -> int:
        """The number of rows of a text: the last one, unless another one has a clearly higher rate, so that
        the same request has the same text again.
        """
        best = self.best_width(curve)
        if not self.width or self._rate(best, curve) > _CLEARLY * self._rate(self.width, curve):
            self.width = best
        return self.width

    def _rate(self, n: int, curve: CostCurve, n_texts: int = 1) -> float:
        """Expected tokens per second of n_texts texts together, each with an equal share of the n rows."""
        tokens = self.tokens(n // n_texts)
        drafted = min(n // n_texts - 1, _DRAFTED * tokens)
        seconds = curve.predict(n) if n == n_texts else curve.upper_bound(n)
        seconds += n_texts * drafted * self.draft_seconds * curve.predict(1)
        return n_texts * tokens / seconds if seconds else 0.0

    def best_width(self, curve: CostCurve, n_texts: int = 1, change: float = 0.0) -> int:
        """The number of rows with the highest expected rate of n_texts texts together, each with an equal
        share of the rows. change: seconds that the way to another number than one for each costs, which has
        to pay twice within _HELD_ROUNDS.
        """
        least = self._rate(n_texts, curve, n_texts)
        least *= 1 + 2 * change / _HELD_ROUNDS / (curve.predict(n_texts) or inf)
        rates = {n: self._rate(n, curve, n_texts) for n in WIDTHS if n_texts < n <= self.config.max_rows}
        best = max(sorted(rates), key=lambda n: rates[n], default=n_texts)
        return best if rates.get(best, 0.0) > least else n_texts

    def to_dict(self) -> dict[str, object]:
        """Plain data to be stored."""
        n = sum(seen > 0 for seen in self._seen)
        lists = {"right": self._right[:n], "seen": self._seen[:n]}
        return {name: [round(x, 3) for x in values] for name, values in lists.items()} | {
            "draft": round(self.draft_seconds, 5),
            "width": self.width,
        }

    def restore(self, data: object) -> None:
        """Continue from what `to_dict` wrote; anything else is ignored."""
        stored = wire.stored(dict[str, object], data, {})
        counts, draft = stored_counts(stored, self.config.forget), stored.get("draft")
        if counts is None or len(counts[0]) > self.config.max_rows or not is_number(draft, 0, 16):
            return
        n = len(counts[0])
        self._right[:n], self._seen[:n], self.draft_seconds = *counts, float(draft)
        self.width = width if (width := stored.get("width")) in WIDTHS else 0


class TotalWidth:
    """The rows of decodes of several texts: held while their number stays the same and nothing else would
    have gained more than twice what a change costs.
    """

    def __init__(self) -> None:
        self._n_texts = self._width = self._rounds = 0

    def of_round(self, n_texts: int, curve: CostCurve, runs: RunLengths, change: float) -> int:
        """The rows of the next decode of so many texts. change: seconds that a change of the width costs."""
        self._rounds += 1
        if not curve.known:
            return n_texts
        if n_texts == self._n_texts and self._rounds % _HELD_ROUNDS:
            return self._width
        best = runs.best_width(curve, n_texts)
        if n_texts == self._n_texts:
            now, then = (runs.tokens(w // n_texts) / curve.predict(w) for w in (self._width, best))
            if _HELD_ROUNDS * curve.predict(self._width) * (1 - now / then) <= 2 * change:
                return self._width
        self._n_texts, self._width, self._rounds = n_texts, best, 0
        return best


_CLEARLY = 1.1  # times the rate of the last width
_DRAFTED = 1.5  # tokens that are drafted, at most, for each that a round writes
_HELD_ROUNDS = 64  # before another width is considered
