"""Second candidates: tokens that the target may choose in place of drafted ones. With them a draft is a tree,
a chain is one without.

The rows of a branch follow the chain's in the same decode. Where the target leaves the chain for a branch,
the tokens after it are known from the same decode, but the cells of the branch are removed: its tokens are
evaluated again in the next round, so that cells lie as plain decoding leaves them. Verifying trees: Miao et
al., SpecInfer, arXiv 2305.09781; choosing their tokens by path probability: Li et al., EAGLE-2, arXiv
2406.16858. Knows no drafters, no models and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specllama.core.policy.base import DraftBranch, TreeLimits
from specllama.core.policy.candidates import CandidateDraft


def best_branches(
    candidates: Mapping[int, CandidateDraft], counts: Mapping[int, int], limits: TreeLimits, n_rows: int
) -> dict[int, list[DraftBranch]]:
    """The branches of each candidate to verify: those tokens of all candidates that are most probably
    accepted, at most `n_rows` together. counts: tokens of each chain that are verified.
    """
    ranked: list[tuple[float, int, int]] = []  # (probability, sequence, branch) of each token
    for seq, candidate in candidates.items():
        possible = [i for i, b in enumerate(candidate.branches) if b.at <= counts[seq]]
        possible.sort(key=lambda i: -candidate.branches[i].path_probs[0])
        for i in possible[: limits.n_branches]:
            ranked += [(p, seq, i) for p in candidate.branches[i].path_probs]
    ranked.sort(key=lambda one: -one[0])  # stable: the tokens of a branch stay in order
    rooms = {seq: limits.n_tokens - n for seq, n in counts.items()}
    taken: dict[tuple[int, int], int] = {}
    for _, seq, i in ranked:
        if n_rows > 0 and rooms[seq] > 0:
            n_rows -= 1
            rooms[seq] -= 1
            taken[seq, i] = taken.get((seq, i), 0) + 1
    branches: dict[int, list[DraftBranch]] = {}
    for (seq, i), n in taken.items():
        branch = candidates[seq].branches[i]
        branches.setdefault(seq, []).append(DraftBranch(branch.at, branch.tokens[:n], branch.source))
    return branches


def matching(branches: Sequence[DraftBranch], n_accept: int, token: int) -> Iterator[DraftBranch]:
    """The branches that begin with this token after `n_accept` tokens of the chain; one at most."""
    return (b for b in branches if b.at == n_accept and b.tokens[0] == token)
