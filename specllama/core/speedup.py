"""Figures made of the counters of a generation: how fast plain decoding is, and what drafts gained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specllama.core.stats import RunStats

ENOUGH_PLAIN_ROUNDS = 8  # of the run itself; with fewer the stored t(1) joins in
PlainSource = Literal["run", "stored", "none"]


@dataclass(frozen=True, slots=True)
class PlainRate:
    """Tokens per second of plain decoding, where that is known from, and plain rounds of the run."""

    tps: float | None
    source: PlainSource
    rounds: int


def plain_rate(stats: RunStats, stored_t1: float | None) -> PlainRate:
    """From the plain rounds of the run; where they are few, the stored t(1) stands in for the missing
    ones.
    """
    missing = ENOUGH_PLAIN_ROUNDS - stats.plain_rounds
    if missing <= 0 or (stats.plain_rounds and not stored_t1):
        return PlainRate(stats.plain_tps, "run", stats.plain_rounds)
    if stored_t1:
        # A plain round is more than its decode: a row is sampled, and there is the rest of what a round does.
        own = stats.sampling_seconds / max(1, stats.n_predict - 1) + stats.time_shares["other"] / max(
            1, stats.rounds
        )
        seconds = stats.plain_seconds + missing * (stored_t1 + own)
        return PlainRate(ENOUGH_PLAIN_ROUNDS / seconds, "stored", stats.plain_rounds)
    return PlainRate(None, "none", 0)


def speedup(stats: RunStats, plain: PlainRate) -> float | None:
    """Decode rate over the plain rate; None where nothing was drafted for or one of them is not known."""
    if not stats.decode_tps or not plain.tps or stats.plain_rounds == stats.rounds:
        return None
    return stats.decode_tps / plain.tps
