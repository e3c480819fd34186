"""Second candidates: tokens that the target may choose in place of drafted ones. With them a draft is a tree,
a chain is one without.

The rows of a branch follow the chain's in the same decode. Where the target leaves the chain for a branch,
the tokens after it are known from the same decode, but the cells of the branch are removed: its tokens are
evaluated again in the next round, so that cells lie as plain decoding leaves them. Verifying trees: Miao et
al., SpecInfer, arXiv 2305.09781; choosing their tokens by path probability: Li et al., EAGLE-2, arXiv
2406.16858. Knows no drafters, no models and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from specllama.core.policy.base import DraftBranch
from specllama.core.policy.candidates import CandidateDraft, RoundBudget

_SLOPE_ROWS = 3  # over which the cost of one more row of the next round is averaged


@dataclass(slots=True)
class CandidateTree:
    """A candidate draft with its branches, in the order of the tokens' worth, so that the first n tokens are
    a tree for every n. Lists as in `CandidateDraft`. owners: the branch that each token is part of, -1 for
    the chain.
    """

    draft: CandidateDraft
    owners: list[int]
    path_probs: list[float]
    expected: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.expected = list(accumulate(self.path_probs))

    @property
    def tokens(self) -> Sequence[int]:
        """One item for each token."""
        return self.owners

    def expected_accepted(self, n: int) -> float:
        """As `CandidateDraft.expected_accepted`."""
        return self.expected[n - 1] if n else 0.0

    def taken(self, n: int) -> tuple[int, list[DraftBranch]]:
        """The first n tokens: (length of the chain, branches)."""
        owners, branches = self.owners[:n], self.draft.branches
        chosen = [(b, owners.count(i)) for i, b in enumerate(branches)]
        return owners.count(-1), [DraftBranch(b.at, b.tokens[:k], b.source) for b, k in chosen if k]


def grow(draft: CandidateDraft, n_branches: int, n_tokens: int, share: float = 1.0) -> CandidateTree:
    """The tree of the draft's chain and its `n_branches` most probable branches, at most `n_tokens` tokens.
    share: what an accepted token of a branch is worth, compared with one of the chain.
    """
    best = sorted(range(len(draft.branches)), key=lambda i: -draft.branches[i].path_probs[0])[:n_branches]
    worth = [(-p, -1) for p in draft.path_probs]
    worth += [(-p * share, i) for i in best for p in draft.branches[i].path_probs]
    worth.sort(key=lambda one: one[0])  # stable: the tokens of a path stay in order
    del worth[n_tokens:]
    return CandidateTree(draft, [i for _, i in worth], [-p for p, _ in worth])


def with_branches(draft: CandidateDraft, n_chain: int, n_branches: int, n_tokens: int) -> CandidateTree:
    """The first `n_chain` tokens of the chain and its `n_branches` most probable branches, whether or not
    these are expected to pay; at most `n_tokens` tokens.
    """
    reachable = [i for i, b in enumerate(draft.branches) if b.at <= n_chain]
    reachable.sort(key=lambda i: -draft.branches[i].path_probs[0])
    nodes = [(-1, p) for p in draft.path_probs[:n_chain]]
    nodes += [(i, p) for i in reachable[:n_branches] for p in draft.branches[i].path_probs]
    del nodes[n_tokens:]
    return CandidateTree(draft, [i for i, _ in nodes], [p for _, p in nodes])


def branch_share(budget: RoundBudget, rows: int, rate: float) -> float:
    """What an accepted token of a branch is worth, compared with one of the chain: it costs one more row in
    the next round. rows, rate: of the round without branches.
    """
    last = min(rows + _SLOPE_ROWS, budget.max_rows)
    if last <= rows:
        return 0.0
    row = (budget.predict(last) - budget.predict(rows)) / (last - rows)
    return min(1.0, max(0.0, 1.0 - row * rate))


def matching(branches: Sequence[DraftBranch], n_accept: int, token: int) -> Iterator[DraftBranch]:
    """The branches that begin with this token after `n_accept` tokens of the chain; one at most."""
    return (b for b in branches if b.at == n_accept and b.tokens[0] == token)
