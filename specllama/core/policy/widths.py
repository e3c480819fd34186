"""The rows of decodes on a device where a change of their number costs something, as on a GPU.

There every decode of a text has as many rows as the first one: what a row is computed with then depends on
that number alone, so the text is the same with and without drafts. How many rows give most tokens per second
is known from the cost curve, measured when a model is loaded, and from how many drafted tokens the earlier
rounds of the pair had right. Knows no contexts and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from specllama.core.policy.config import DEFAULT, PolicyConfig, numbers
from specllama.core.policy.cost_curve import CostCurve

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
        right = data.get("right") if isinstance(data, Mapping) else None
        n = len(right) if isinstance(right, list) else 0
        if not isinstance(data, Mapping) or not 0 < n <= self.config.max_rows:
            return
        limit = 1.01 / (1 - self.config.forget)
        known, seen = numbers(right, n, 0, limit), numbers(data.get("seen"), n, 0, limit)
        draft = numbers([data.get("draft")], 1, 0, 16)
        if known is None or seen is None or draft is None:
            return
        if any(r > s for r, s in zip(known, seen, strict=True)):
            return
        self._right[:n], self._seen[:n], self.draft_seconds = known, seen, draft[0]
        self.width = width if (width := data.get("width")) in WIDTHS else 0


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
