"""Tokens that could be drafted, the chances that they are accepted, and how many of them to verify.

One rule for any number of sequences: sort all candidate tokens by the probability that they are accepted and
verify as many as give the most tokens per second. Within a sequence that probability never increases, so the
tokens chosen from it are a prefix. Knows no drafters and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace

from specllama.core.interfaces import Alternative
from specllama.core.policy.base import DraftBranch, RoundLimits


@dataclass(slots=True)
class CandidateDraft:
    """A draft for one sequence, token by token; all lists have the same length.

    sources: name of the drafter of each token. bins: its bin in the acceptance table. path_probs: probability
    that it and all tokens before it are accepted. expected: sum of `path_probs` up to it, the number of
    accepted tokens expected if the draft ends there. forced: the first token is forced by a grammar.
    branches: second candidates, which are not part of these lists.
    """

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    bins: list[int] = field(default_factory=list)
    path_probs: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    forced: bool = False
    branches: list[DraftBranch] = field(default_factory=list)

    def add(self, token: int, source: str, bin_: int, chance: float) -> None:
        """Append one token. chance: that it is right if all tokens before it are."""
        self.extend((token,), source, (bin_,), (chance,))

    def extend(
        self, tokens: Sequence[int], source: str, bins: Sequence[int], chances: Sequence[float]
    ) -> None:
        """Append several tokens of one drafter; see `add`."""
        path, expected = (self.path_probs[-1], self.expected[-1]) if self.tokens else (1.0, 0.0)
        self.tokens += tokens
        self.sources += [source] * len(tokens)
        self.bins += bins
        for chance in chances:
            path *= chance
            expected += path
            self.path_probs.append(path)
            self.expected.append(expected)

    def add_branch(self, at: int, source: str, other: Alternative | None) -> None:
        """Add a second candidate, if there is one, in place of token `at`."""
        if other is not None:
            chance = (self.path_probs[at - 1] if at else 1.0) * other.confidence
            self.branches.append(DraftBranch(at, other.tokens, source, chance))

    def expected_accepted(self, n: int) -> float:
        """Expected number of accepted tokens among the first n."""
        return self.expected[n - 1] if n else 0.0


@dataclass(slots=True)
class RoundBudget:
    """Time of a round. seconds[n] * scale: of a decode of n rows, besides those that are evaluated again.
    upper_bound: cautious seconds of n rows. max_seconds: the longest that this round may take. spent: seconds
    that drafting has used already.
    """

    seconds: Sequence[float]
    scale: float
    upper_bound: Callable[[int], float]
    max_seconds: float
    max_rows: int
    spent: float = 0.0

    def predict(self, rows: int) -> float:
        """Seconds of a decode of so many rows; more than the widest take as long in proportion."""
        widest = len(self.seconds) - 1
        return self.seconds[min(rows, widest)] * self.scale * max(1.0, rows / widest)

    def allows(self, rows: int, more: float = 0.0) -> bool:
        """Whether a round of so many rows, after `more` further seconds of drafting, is affordable."""
        return rows <= self.max_rows and self.upper_bound(rows) + self.spent + more <= self.max_seconds

    def rate(self, tokens: float, rows: int, more: float = 0.0) -> float:
        """Tokens per second of a round with these tokens and rows, after `more` seconds of drafting."""
        return tokens / (self.seconds[rows] * self.scale + self.spent + more)


def best_length(
    expected: Sequence[float], budget: RoundBudget, rows: int, tokens: float, first: int = 0
) -> tuple[int, float]:
    """(length, rate) of the prefix with the best rate, affordable or not; the shortest of equal ones.

    expected: `CandidateDraft.expected`. rows, tokens: rows of the round and tokens expected from it, without
    this draft. first: the best length when `budget.spent` was smaller. Time spent lowers the rate of longer
    prefixes less, so no shorter prefix can have become better since.
    """
    end = min(rows + len(expected), budget.max_rows) + 1
    spent, scale, seconds = budget.spent, budget.scale, budget.seconds[rows + first + 1 : end]
    best, rate = first, budget.rate(tokens + (expected[first - 1] if first else 0), rows + first)
    for k, (accepted, took) in enumerate(zip(expected[first:], seconds, strict=False), first + 1):
        now = (tokens + accepted) / (took * scale + spent)
        if now > rate:
            best, rate = k, now
    return best, rate


def best_affordable_length(
    expected: Sequence[float], budget: RoundBudget, rows: int, tokens: float
) -> tuple[int, float]:
    """As `best_length`, among the lengths that the budget allows, 0 always among them."""
    if not expected:
        return 0, budget.rate(tokens, rows)
    best, rate = best_length(expected, budget, rows, tokens)
    if not best or budget.allows(rows + best):
        return best, rate
    best, rate = 0, budget.rate(tokens, rows)
    for k, accepted in enumerate(expected[: budget.max_rows - rows], 1):
        now = budget.rate(tokens + accepted, rows + k)
        if now > rate and budget.allows(rows + k):
            best, rate = k, now
    return best, rate


def select_drafts(
    candidates: Mapping[int, CandidateDraft], budget: RoundBudget, active: int
) -> dict[int, int]:
    """How many tokens of each sequence's candidate to verify, with `active` sequences in the round."""
    if len(candidates) == 1:
        return {
            seq: best_affordable_length(c.expected, budget, active, active)[0]
            for seq, c in candidates.items()
        }
    # the next token of each sequence, signs reversed: the heap has the smallest on top
    ahead = [(-draft.path_probs[0], 0, -seq) for seq, draft in candidates.items() if draft.tokens]
    heapify(ahead)
    chosen: list[int] = []
    expected: list[float] = []
    accepted = 0.0
    while ahead and len(chosen) < budget.max_rows - active:
        chance, j, seq = ahead[0]
        accepted -= chance
        chosen.append(-seq)
        expected.append(accepted)
        path_probs = candidates[-seq].path_probs
        if j + 1 < len(path_probs):
            heapreplace(ahead, (-path_probs[j + 1], j + 1, seq))
        else:
            heappop(ahead)
    del chosen[best_affordable_length(expected, budget, active, active)[0] :]
    return {seq: chosen.count(seq) for seq in candidates}


def rows_and_tokens(
    candidates: Mapping[int, CandidateDraft], counts: Mapping[int, int], seqs: Sequence[int]
) -> tuple[int, float]:
    """(rows, expected accepted tokens) of the drafts of the sequences `seqs`, without their own rows."""
    rows, tokens = 0, 0.0
    for seq in seqs:
        rows += counts[seq]
        tokens += candidates[seq].expected_accepted(counts[seq])
    return rows, tokens


def best_branches(possible: Iterable[DraftBranch], limits: RoundLimits, n_rows: int) -> list[DraftBranch]:
    """The most probable second candidates of a draft, at most `n_rows` tokens.

    A draft with them is a tree. Where the target leaves the draft for a branch, the tokens after it are known
    from the same decode, but the cells of the branch are removed: its tokens are evaluated again in the next
    round, so that cells lie as plain decoding leaves them. Verifying trees: Miao et al., SpecInfer, arXiv
    2305.09781.
    """
    chosen = list[DraftBranch]()
    for one in sorted(possible, key=lambda b: -b.chance)[: limits.n_branches]:
        tokens = one.tokens[: max(0, n_rows)]
        n_rows -= len(tokens)
        if tokens:
            chosen.append(replace(one, tokens=tokens))
    return chosen
