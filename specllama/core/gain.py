"""How much faster an answer was than plain decoding: what that is measured against, and how certain it is.

Every front shows the same figures, from here. Knows no clock and no models; fronts import it, so it needs no
numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Literal

from specllama.core.stats import RunStats

MIN_PLAIN_ROUNDS = 8  # of this run; the stored t(1) stands in for missing ones
AGREEMENT = log(1.15)  # log ratio; times that differ more disagree
PlainSource = Literal["run", "stored", "compared", "none"]
Verdict = Literal["faster", "slower", "alike", "unknown"]

_STORED_ERROR = 0.10  # relative half width of the interval of a speed-up over a stored time
_LEAST_ERROR = 0.02  # the same of any speed-up: rounds of one answer depend on each other
_STALLED_SHARE = 0.1  # of the time of decoding; with more, the machine was busy
_WIDEST = 0.5  # half width of an interval that is as wide as the figure itself


@dataclass(frozen=True, slots=True)
class PlainRate:
    """Speed of plain decoding. tps: tokens per second, None: unknown. source: the plain rounds of this "run",
    also a "stored" time, "compared": the same answer decoded again without drafts, or "none". rounds: plain
    rounds of this run that count. error: relative half width of its 95 % interval. reason: why it is unknown,
    in words, where more than a missing figure is known.
    """

    tps: float | None
    source: PlainSource
    rounds: int
    error: float = _LEAST_ERROR
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Gain:
    """Speed of an answer over that of plain decoding. speedup: None where it is unknown; low, high: its 95 %
    interval. reason: why it is unknown, "" where it is known or nothing was drafted.
    """

    speedup: float | None = None
    low: float = 0.0
    high: float = inf
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """ "alike" where the interval holds 1."""
        if self.speedup is None:
            return "unknown"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "alike"

    @property
    def range(self) -> tuple[float, float] | None:
        """(low, high), None where the speed-up is."""
        return None if self.speedup is None else (self.low, self.high)


def plain_rate(stats: RunStats, stored_t1: float | None, pace: float | None = None) -> PlainRate:
    """The speed of plain decoding, from the plain rounds of the run that followed two others, since the first
    ones after a change of the width can take longer; where they are fewer than MIN_PLAIN_ROUNDS, `stored_t1`
    (seconds of a plain decode) stands in for the missing ones. pace: how much longer decodes take now than
    the stored time says, None: unknown. Where they, or the plain rounds of the run, disagree with it, the
    speed is unknown.
    """
    n = stats.steady_rounds
    if n >= MIN_PLAIN_ROUNDS:
        mean = stats.steady_seconds / n
        variance = max(0.0, stats.steady_squares / n - mean * mean)
        error = 2 * sqrt(variance / n) / mean if mean > 0 else 0.0
        return PlainRate(stats.plain_tps, "run", n, max(_LEAST_ERROR, error))
    if not stored_t1:
        return PlainRate(None, "none", n)
    # Besides its decode, a plain round samples a row and does other work.
    sampling = stats.sampling_seconds / max(1, stats.n_predict - 1)
    other = stats.time_shares["other"] / max(1, stats.rounds)
    stored = stored_t1 + sampling + other
    ratios = [pace] if pace is not None else []
    if n >= 2:
        ratios.append(stats.steady_seconds / n / stored)
    if stats.rounds >= MIN_PLAIN_ROUNDS:  # a few decodes can be anything
        ratios.append(_beyond(stats, stored_t1))
    for ratio in ratios:
        if ratio > 0 and abs(log(ratio)) > AGREEMENT:
            slow = "slower" if ratio > 1 else "faster"
            return PlainRate(None, "none", n, reason=f"decodes were {slow} than at other times")
    seconds = stats.steady_seconds + (MIN_PLAIN_ROUNDS - n) * stored
    return PlainRate(MIN_PLAIN_ROUNDS / seconds, "stored", n, _STORED_ERROR)


def _beyond(stats: RunStats, t1: float) -> float:
    """The time of a run's decodes relative to the bounds that `t1` (seconds of a decode of one row) sets for
    their widths: above 1 where they took longer than possible, below 1 where shorter, else 1. A decode of n
    rows takes at least as long as one of a row, and hardly longer than n of them.
    """
    stalled = stats.stalled_seconds
    seconds = sum(s for _, s in stats.round_seconds.values())
    least = t1 * sum(count for count, _ in stats.round_seconds.values())
    most = t1 * sum(rows * count for rows, (count, _) in stats.round_seconds.items())
    if seconds <= 0 or least <= 0:
        return 1.0
    return max(1.0, (seconds - stalled) / most) if seconds > least else seconds / least


def compared_rate(plain: RunStats) -> PlainRate:
    """The speed of plain decoding by an answer that was decoded again without drafts."""
    error = plain_rate(plain, None).error if plain.steady_rounds >= MIN_PLAIN_ROUNDS else _STORED_ERROR
    return PlainRate(plain.decode_tps, "compared", plain.rounds, error)


def gain(stats: RunStats, plain: PlainRate) -> Gain:
    """The speed of an answer over that of plain decoding, at most the tokens that a round wrote. Time in
    which rounds stalled does not count; where it is much, or the interval is wider than the figure, the
    speed-up is unknown.
    """
    if stats.plain_rounds == stats.rounds:
        return Gain()
    if not stats.decode_tps:
        return Gain(reason="the answer was too short")
    if was_busy([stats]):
        return Gain(reason="the machine was busy with something else")
    if not plain.tps:
        return Gain(reason=plain.reason or "the speed of plain decoding is unknown")
    if plain.error >= _WIDEST:
        return Gain(reason="the plain rounds took too different times")
    seconds = stats.decode_seconds - stats.stalled_seconds
    ratio = (stats.n_predict - 1) / seconds / plain.tps
    tokens = (stats.n_predict - 1) / stats.rounds  # a round takes no less than a plain one
    if log(ratio / tokens) > AGREEMENT:
        return Gain(reason="plain decodes took longer than those with drafts")
    ratio = min(ratio, tokens)  # more is noise: without an accepted token there is no gain
    return Gain(ratio, ratio * (1 - plain.error), min(tokens, ratio * (1 + plain.error)))


def was_busy(answers: Iterable[RunStats]) -> bool:
    """Whether rounds of these answers stalled for much of the time of decoding."""
    times = [(stats.stalled_seconds, stats.decode_seconds) for stats in answers]
    return sum(stalled for stalled, _ in times) > _STALLED_SHARE * sum(seconds for _, seconds in times)
