"""Tokens that might be drafted, the chances that they are accepted, and how many of them to take.

One rule for any number of sequences: of all offered tokens those with the largest chances, as many as give
the most tokens per second. Within a sequence chances never grow, so what is taken of it is a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace


@dataclass(slots=True)
class CandidateDraft:
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
        reached, won = (self.reached[-1], self.expected[-1]) if self.tokens else (1.0, 0.0)
        reached *= chance
        self.tokens.append(token)
        self.sources.append(source)
        self.bins.append(bin_)
        self.reached.append(reached)
        self.expected.append(won + reached)

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
class RoundBudget:
    """What a round may take. seconds: of a decode by its rows, to be multiplied by scale. worst: of one, to
    be on the safe side. budget: the most seconds that this round may take. spent: seconds of it that are gone
    already.
    """

    seconds: Sequence[float]
    scale: float
    worst: Callable[[int], float]
    budget: float
    most_rows: int
    spent: float = 0.0

    def allows(self, rows: int, more: float = 0.0) -> bool:
        """Whether a round of so many rows, after `more` seconds of drafting, is certain to be affordable."""
        return rows <= self.most_rows and self.worst(rows) + self.spent + more <= self.budget

    def rate(self, tokens: float, rows: int, more: float = 0.0) -> float:
        """Tokens per second of the round."""
        return tokens / (self.seconds[rows] * self.scale + self.spent + more)


def best_of(
    expected: Sequence[float], prices: RoundBudget, rows: int, tokens: float, first: int = 0
) -> tuple[int, float]:
    """(length, rate): the prefix with the best rate of a draft whose first k tokens are expected to win
    expected[k - 1], beside `rows` rows that are expected to give `tokens`, whether the round may take as much
    or not; ties go to the shortest. first: the best one when less was spent. Of two with the same rate the
    one with more tokens loses less by what is spent on both, so no shorter one can have become better.
    """
    end = min(rows + len(expected), prices.most_rows) + 1
    spent, scale, seconds = prices.spent, prices.scale, prices.seconds[rows + first + 1 : end]
    best, rate = first, prices.rate(tokens + (expected[first - 1] if first else 0), rows + first)
    for k, (wins, took) in enumerate(zip(expected[first:], seconds, strict=False), first + 1):
        now = (tokens + wins) / (took * scale + spent)
        if now > rate:
            best, rate = k, now
    return best, rate


def best_allowed(
    expected: Sequence[float], prices: RoundBudget, rows: int, tokens: float
) -> tuple[int, float]:
    """The same of those that the round may take."""
    if not expected:
        return 0, prices.rate(tokens, rows)
    best, rate = best_of(expected, prices, rows, tokens)
    if not best or prices.allows(rows + best):
        return best, rate
    best, rate = 0, prices.rate(tokens, rows)
    for k, wins in enumerate(expected[: prices.most_rows - rows], 1):
        now = prices.rate(tokens + wins, rows + k)
        if now > rate and prices.allows(rows + k):
            best, rate = k, now
    return best, rate


def best_prefixes(offers: Mapping[int, CandidateDraft], prices: RoundBudget, active: int) -> dict[int, int]:
    """How many tokens to draft of each sequence's offer, `active` sequences being decoded in all."""
    if len(offers) == 1:
        return {seq: best_allowed(o.expected, prices, active, active)[0] for seq, o in offers.items()}
    # the next token of each sequence, all signs turned: heaps have the smallest on top
    ahead = [(-offer.reached[0], 0, -seq) for seq, offer in offers.items() if offer.tokens]
    heapify(ahead)
    taken: list[int] = []
    expected: list[float] = []
    wins = 0.0
    while ahead and len(taken) < prices.most_rows - active:
        chance, j, seq = ahead[0]
        wins -= chance
        taken.append(-seq)
        expected.append(wins)
        reached = offers[-seq].reached
        if j + 1 < len(reached):
            heapreplace(ahead, (-reached[j + 1], j + 1, seq))
        else:
            heappop(ahead)
    del taken[best_allowed(expected, prices, active, active)[0] :]
    return {seq: taken.count(seq) for seq in offers}


def total(
    offers: Mapping[int, CandidateDraft], counts: Mapping[int, int], others: Sequence[int]
) -> tuple[int, float]:
    """(rows, expected tokens) of the drafts of the sequences `others`, without their own rows."""
    rows, tokens = 0, 0.0
    for seq in others:
        rows += counts[seq]
        tokens += offers[seq].wins(counts[seq])
    return rows, tokens
