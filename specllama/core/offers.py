"""Tokens that might be drafted, the chances that they are accepted, and how many of them to take.

One rule for any number of sequences: of all offered tokens those with the largest chances, as many as give
the most tokens per second. Within a sequence chances never grow, so what is taken of it is a prefix.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True)
class Offer:
    """A draft for one sequence, token by token.

    bins: where the source's acceptance table counts it. reached: probability that this and all before are
    accepted. expected: sum of `reached` up to here, the tokens that a draft ending here is expected to win.
    """

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    bins: list[int] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)

    def add(self, token: int, source: str, bin_: int, chance: float) -> None:
        """One more token; chance: that it is right where all before are."""
        self.extend([token], source, [bin_], [chance])

    def extend(
        self, tokens: Sequence[int], source: str, bins: Sequence[int], chances: Sequence[float]
    ) -> None:
        """Further tokens of one source."""
        reached, won = (self.reached[-1], self.expected[-1]) if self.tokens else (1.0, 0.0)
        self.tokens += tokens
        self.sources += [source] * len(tokens)
        self.bins += bins
        for chance in chances:
            reached *= chance
            won += reached
            self.reached.append(reached)
            self.expected.append(won)

    def wins(self, n: int) -> float:
        """Tokens that its first n are expected to win."""
        return self.expected[n - 1] if n else 0.0


@dataclass(slots=True)
class Prices:
    """What a round may take. seconds: of a decode of n rows. worst: the same, to be on the safe side.
    budget: the most seconds that this round may take. spent: seconds of it that are gone already.
    """

    seconds: Callable[[int], float]
    worst: Callable[[int], float]
    budget: float
    most_rows: int
    spent: float = 0.0

    def allows(self, rows: int, more: float = 0.0) -> bool:
        """Whether a round of so many rows, after `more` seconds of drafting, is certain to be affordable."""
        return rows <= self.most_rows and self.worst(rows) + self.spent + more <= self.budget

    def rate(self, tokens: float, rows: int, more: float = 0.0) -> float:
        """Tokens per second of the round."""
        return tokens / (self.seconds(rows) + self.spent + more)


def best_prefix(offer: Offer, prices: Prices, rows: int, tokens: float) -> tuple[int, float]:
    """(length, rate): the prefix of the offer with the best rate, beside `rows` rows that are expected to
    give `tokens`; ties go to the shortest.
    """
    seconds, worst, spent = prices.seconds, prices.worst, prices.spent
    left, best, rate = prices.budget - spent, 0, prices.rate(tokens, rows)
    for k, more in enumerate(offer.expected[: prices.most_rows - rows], 1):
        now = (tokens + more) / (seconds(rows + k) + spent)
        if now > rate and worst(rows + k) <= left:
            best, rate = k, now
    return best, rate


def best_prefixes(offers: Mapping[int, Offer], prices: Prices, active: int) -> dict[int, int]:
    """How many tokens to draft of each sequence's offer, `active` sequences being decoded in all."""
    if len(offers) == 1:
        return {seq: best_prefix(offer, prices, active, active)[0] for seq, offer in offers.items()}
    ranked = heapq.merge(*(_ranked(seq, offer) for seq, offer in offers.items()))
    seconds, spent = prices.seconds, prices.spent
    tokens, best, rate = float(active), 0, prices.rate(active, active)
    taken: list[int] = []
    for m, (chance, _, seq) in enumerate(islice(ranked, max(0, prices.most_rows - active)), 1):
        tokens -= chance
        taken.append(-seq)
        now = tokens / (seconds(active + m) + spent)
        if now > rate and prices.allows(active + m):
            best, rate = m, now
    del taken[best:]
    return {seq: taken.count(seq) for seq in offers}


def _ranked(seq: int, offer: Offer) -> Iterator[tuple[float, int, int]]:
    """A sequence's tokens as they are to be taken, all signs turned: heaps have the smallest on top."""
    return ((-chance, j, -seq) for j, chance in enumerate(offer.reached))


def total(offers: Mapping[int, Offer], counts: Mapping[int, int], others: Sequence[int]) -> tuple[int, float]:
    """(rows, expected tokens) of the drafts of the sequences `others`, without their own rows."""
    return sum(counts[s] for s in others), sum(offers[s].wins(counts[s]) for s in others)
