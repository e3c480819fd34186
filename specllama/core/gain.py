"""How much faster an answer was than plain decoding: what that is measured against, and how certain it is.

Every front shows the same figures, from here. Knows no clock and no models; fronts import it, so it needs no
numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Literal

from specllama.core.stats import RunStats

MIN_PLAIN_ROUNDS = 8  # of this run; the stored t(1) stands in for missing ones
AGREEMENT = log(1.15)  # log ratio; times that differ more disagree
PlainSource = Literal["run", "stored", "compared", "none"]
Verdict = Literal["faster", "slower", "alike", "unknown"]

_STORED_ERROR = 0.10  # relative half width of the interval of a speed-up over a stored time
_LEAST_ERROR = 0.02  # the same of any speed-up: rounds of one answer depend on each other
_STALLED_SHARE = 0.1  # of the time of decoding; with more, the machine was busy
_NARROW = 0.1  # half width of an interval, as a log, that tells that drafts gain nothing
_CLEAR = 0.25  # the same of one that tells how much they gain
BUSY = "the machine was busy with something else"
TOO_SHORT = "the answer was too short"


@dataclass(frozen=True, slots=True)
class PlainRate:
    """Speed of plain decoding. tps: tokens per second, None: unknown. source: the plain rounds of this "run",
    also a "stored" time, "compared": the same answer decoded again without drafts, or "none". rounds: plain
    rounds of this run that count. error: its 95 % interval is from tps / (1 + error) to tps * (1 + error).
    reason: why it is unknown, or known no better, in words; "" for no more than a missing figure.
    """

    tps: float | None
    source: PlainSource
    rounds: int
    error: float = _LEAST_ERROR
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Gain:
    """Speed of an answer over that of plain decoding. speedup: None where it is unknown; low, high: its 95 %
    interval. reason: why it is unknown, or known no better; "" where it is well known or nothing was drafted.
    limited: more was measured than the tokens that a round wrote, which are the most there can be.
    """

    speedup: float | None = None
    low: float = 0.0
    high: float = inf
    reason: str = ""
    limited: bool = False

    @property
    def verdict(self) -> Verdict:
        """ "alike" where the interval holds 1."""
        if self.speedup is None:
            return "unknown"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "alike"

    @property
    def is_clear(self) -> bool:
        """Whether the interval tells how much faster or slower, or that there is hardly a difference."""
        if self.speedup is None or self.low <= 0:
            return False
        return log(self.high / self.low) / 2 <= (_NARROW if self.verdict == "alike" else _CLEAR)

    def in_words(self) -> str:
        """`faster: 1.63x plain (1.48 - 1.79)`, and why the figure is unclear or unknown; "" where nothing was
        drafted. The page's gainInWords says the same.
        """
        if self.speedup is None:
            return f"gain unknown: {self.reason}" if self.reason else ""
        because = f"; {self.reason}" if self.reason else ""
        if self.is_clear:
            head: str = "about as fast" if self.verdict == "alike" else self.verdict
            most = "at most " if self.limited else ""
            return f"{head}: {most}{self.speedup:.2f}x plain ({self.low:.2f} - {self.high:.2f}){because}"
        head = "unclear" if self.verdict == "alike" else f"{self.verdict}, by how much is unclear"
        return f"{head}: between {self.low:.2f}x and {self.high:.2f}x plain{because}"

    @property
    def range(self) -> tuple[float, float] | None:
        """(low, high), None where the speed-up is."""
        return None if self.speedup is None else (self.low, self.high)


def plain_rate(stats: RunStats, stored_t1: float | None, pace: float | None = None) -> PlainRate:
    """The speed of plain decoding, from the plain rounds of the run that followed two others, since the first
    ones after a change of the width can take longer; where they are fewer than MIN_PLAIN_ROUNDS, `stored_t1`
    (seconds of a plain decode) stands in for the missing ones. pace: how much longer decodes take now than
    the stored time says, None: unknown. Where they, or the plain rounds of the run, disagree with it, the
    speed is between the two, and its interval reaches beyond both by half of what they differ.
    """
    n = stats.steady_rounds
    if n >= MIN_PLAIN_ROUNDS:
        mean = stats.steady_seconds / n
        variance = max(0.0, stats.steady_squares / n - mean * mean)
        error = 2 * sqrt(variance / n) / mean if mean > 0 else 0.0
        reason = "the plain rounds took too different times" if log(1 + error) > _CLEAR else ""
        return PlainRate(stats.plain_tps, "run", n, max(_LEAST_ERROR, error), reason)
    if not stored_t1:
        return PlainRate(None, "none", n)
    # Besides its decode, a plain round samples a row and does other work.
    sampling = stats.sampling_seconds / max(1, stats.n_predict - 1)
    other = stats.time_shares["other"] / max(1, stats.rounds)
    stored = stored_t1 + sampling + other
    few = sqrt(max(1.0, MIN_PLAIN_ROUNDS / max(1, stats.rounds)))  # rounds of the answer tell less
    ratios = [1.0, pace or 1.0]
    if n >= 2:
        ratios.append(stats.steady_seconds / n / stored)
    if stats.rounds >= MIN_PLAIN_ROUNDS:  # a few decodes can be anything
        ratios.append(_beyond(stats, stored_t1))
    logs = [log(ratio) for ratio in ratios if ratio > 0]
    apart, reason, error = max(logs) - min(logs), "", (1 + _STORED_ERROR) * few - 1
    if apart > AGREEMENT:
        stored *= exp(middle := (max(logs) + min(logs)) / 2)
        error = (1 + error) * exp(apart) - 1
        reason = f"decodes were {'slower' if middle > 0 else 'faster'} than at other times"
    seconds = stats.steady_seconds + (MIN_PLAIN_ROUNDS - n) * stored
    return PlainRate(MIN_PLAIN_ROUNDS / seconds, "stored", n, error, reason)


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
    """The speed of plain decoding by an answer that was decoded again without drafts. Stalls count as in
    `gain`.
    """
    steady = plain_rate(plain, None)
    known = steady.rounds >= MIN_PLAIN_ROUNDS
    error, reason = (steady.error, steady.reason) if known else (_STORED_ERROR, "")
    if not plain.decode_tps:
        return PlainRate(None, "none", plain.rounds, error)
    faster = plain.decode_seconds / (plain.decode_seconds - plain.stalled_seconds)
    if was_busy([plain]):
        faster = sqrt(faster)
        error, reason = (1 + error) * faster - 1, BUSY
    return PlainRate(plain.decode_tps * faster, "compared", plain.rounds, error, reason)


def gain(stats: RunStats, plain: PlainRate) -> Gain:
    """The speed of an answer over that of plain decoding, at most the tokens that a round wrote. Time in
    which rounds stalled does not count; where it is much, the interval covers that it does, and where more
    was measured than there can be, the interval is as much wider.
    """
    if stats.plain_rounds == stats.rounds:
        return Gain()
    if not stats.decode_tps:
        return Gain(reason=TOO_SHORT)
    if not plain.tps:
        return Gain(reason=plain.reason or "the speed of plain decoding is unknown")
    seconds = stats.decode_seconds - stats.stalled_seconds
    figure, error = log((stats.n_predict - 1) / seconds / plain.tps), log(1 + plain.error)
    reason = plain.reason
    if was_busy([stats]):
        stalled, reason = log(stats.decode_seconds / seconds) / 2, BUSY
        figure, error = figure - stalled, error + stalled
    most = log((stats.n_predict - 1) / stats.rounds)  # a round takes no less than a plain one
    beyond = max(0.0, figure - most)  # without an accepted token there is no gain
    if beyond > AGREEMENT:
        reason = reason or "plain decodes took unusually long"
    figure = min(figure, most)
    low, high = exp(figure - error - beyond), exp(min(most, figure + error))
    return Gain(exp(figure), low, high, reason, beyond > 0)


def was_busy(answers: Iterable[RunStats]) -> bool:
    """Whether rounds of these answers stalled for much of the time of decoding."""
    times = [(stats.stalled_seconds, stats.decode_seconds) for stats in answers]
    return sum(stalled for stalled, _ in times) > _STALLED_SHARE * sum(seconds for _, seconds in times)
