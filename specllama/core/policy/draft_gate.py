"""When to look at what the draft model would say: its worth is learnt from what earlier looks brought.

A look costs one token of the draft model, and the tokens that the model must catch up with; its confidence
says whether to go on. All amounts are in t(1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specllama.core.policy.candidates import CandidateDraft
from specllama.core.policy.stored_values import is_number

ALONE, DOUBTFUL, BESIDE = 0, 1, 2  # nothing else would be drafted; an unlikely copy; a likely one
LIKELY_COPY = 0.75  # chance of its first token
REQUEST_RATE, PAIR_RATE = 0.1, 0.02
HOPE = 0.1  # a request begins with the pair's average and this much
FIRST_WAIT, LONGEST_WAIT = 32, 64  # rounds without a look where looks do not pay
LIKELY, MOST_HOPED = 0.93, 1.7  # acceptance, and t(1) won at most, of the looks that are taken to be good
GOOD_SHARE, WASTED, LESS_BESIDE = 0.2, 0.7, 0.5  # their share; of a step, t(1) lost on the others; on a copy
OWED = 0.5  # of what a look not taken would have brought
STORED = (-0.5, 4.0)  # t(1); what was learnt on other texts, or is broken, is unlearnt within a few looks


@dataclass(slots=True)
class PairGain:
    """What looks brought on average, over all requests; None: never looked."""

    gains: list[float | None] = field(default_factory=lambda: [None, None, None])

    def restore(self, data: Any) -> bool:
        """Go on from stored gains; False where the data is something else."""
        fits = isinstance(data, list) and len(data) == len(self.gains)
        if not fits or not all(g is None or is_number(g) for g in data):
            return False
        low, high = STORED
        self.gains = [None if g is None else max(low, min(high, float(g))) for g in data]
        return True


def kind_of(offer: CandidateDraft, n: int) -> int:
    """What a look would stand beside, where the first n tokens of the offer would be drafted without it."""
    if not n or offer.sources[0] == "grammar":  # the model goes on behind what is forced
        return ALONE
    return BESIDE if offer.reached[0] > LIKELY_COPY else DOUBTFUL


def first_gains(seconds: Callable[[int], float], step: float) -> tuple[float, float, float]:
    """What a look should bring, alone and beside a copy, by the cost curve and the price of a step alone."""
    t1 = seconds(1)
    if t1 <= 0:
        return 0.0, 0.0, 0.0
    best = won = 0.0
    for k in range(1, 17):
        won += LIKELY**k
        best = max(best, 1 + won - (seconds(k + 1) + k * step) / t1)
    alone = GOOD_SHARE * min(best, MOST_HOPED) - WASTED * step / t1
    return alone, alone / 2, alone - LESS_BESIDE


class DraftGate:
    """When to look, for one request. expected: what looks should bring by the cost curve alone."""

    def __init__(self, pair: PairGain, expected: tuple[float, float, float]) -> None:
        self.pair = pair
        for kind, gain in enumerate(expected):
            if pair.gains[kind] is None:
                pair.gains[kind] = gain
        self.gains = [(g or 0.0) + HOPE for g in pair.gains]
        self._since, self._wait, self._owed = [0, 0, 0], [FIRST_WAIT] * 3, 0.0

    def due(self, kind: int, late: float, n_rounds: int = 1) -> bool:
        """Whether to look in this round. late: what catching up would cost. n_rounds: since the question was
        asked last, this one included.

        Catching up serves later looks too, so it is paid once as much was forgone (as one buys skis when the
        rent would have paid for them).
        """
        gain = self.gains[kind]
        self._since[kind] += n_rounds
        if gain <= 0:
            return self._since[kind] >= self._wait[kind]
        self._owed += n_rounds * OWED * gain
        return self._owed + (1 - OWED) * gain > late

    def looked(self, kind: int) -> None:
        self._since[kind], self._owed = 0, 0.0

    def judge(self, kind: int, won: float) -> None:
        """What the look brought, catching up left aside."""
        self.gains[kind] += REQUEST_RATE * (won - self.gains[kind])
        average = self.pair.gains[kind] or 0.0
        self.pair.gains[kind] = average + PAIR_RATE * (won - average)
        self._wait[kind] = FIRST_WAIT if won > 0 else min(LONGEST_WAIT, 2 * self._wait[kind])
