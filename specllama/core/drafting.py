"""What a policy is: it drives the drafters before each decode and learns from what came of it.

Knows drafters by the interface of ports.py only. Policies: fixed.py, the classical one, and planner.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specllama.core.ports import Drafter, Proposal


@dataclass(slots=True)
class Draft:
    """Tokens to verify and the drafter of each; n_discarded: drafted and left out again."""

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    n_discarded: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sequence's draft in a round: it emitted n_emitted tokens, n_accept of them
    drafted.
    """

    seq_id: int
    draft: Draft
    n_accept: int
    n_emitted: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it was: rows decoded, seconds of the target's decode, of drafting, and of all."""

    n_rows: int
    verify_seconds: float
    draft_seconds: float
    seconds: float
    outcomes: Sequence[Outcome]

    @property
    def plain(self) -> bool:
        return self.n_rows == len(self.outcomes) and self.draft_seconds_per_sequence == 0

    @property
    def draft_seconds_per_sequence(self) -> float:
        spent = any(o.draft.tokens or o.draft.n_discarded for o in self.outcomes)
        return self.draft_seconds / len(self.outcomes) if spent else 0.0


class Policy(Protocol):
    """Drives the drafters before each decode and learns from what came of it."""

    drafters: list[Drafter]

    def draft(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        """A draft for each sequence (seq_id → most tokens that may be drafted for it); absent means none."""
        ...

    def observe(self, done: Round) -> None:
        """The round that the last `draft` led to."""
        ...

    def drop(self, name: str) -> None:
        """The drafter of this name failed; go on without it."""
        ...


def run_drafter(
    drafter: Drafter, limits: Mapping[int, int], p_min: float, n_min: int = 0
) -> dict[int, tuple[list[Proposal], int]]:
    """Step a drafter for all sequences together until each has its limit, runs out, or falls below p_min.

    Returns, for each sequence with at least n_min tokens, its proposals and how many further ones were
    discarded.
    """
    drafts: dict[int, list[Proposal]] = {seq: [] for seq, limit in limits.items() if limit > 0}
    discarded = dict.fromkeys(drafts, 0)
    wanted: dict[int, list[int]] = {seq: [] for seq in drafts}
    while wanted:
        proposals = drafter.step(wanted)
        for seq in list(wanted):
            got = proposals.get(seq)
            if got is not None and got.confidence >= p_min:
                drafts[seq].append(got)
                wanted[seq].append(got.token)
                if len(drafts[seq]) < limits[seq]:
                    continue
            elif got is not None:
                discarded[seq] += 1
            del wanted[seq]
    for seq, proposed in drafts.items():
        if 0 < len(proposed) < n_min:
            discarded[seq] += len(proposed)
            proposed.clear()
    return {seq: (proposed, discarded[seq]) for seq, proposed in drafts.items()}


class Drafting:
    """What all policies have: the drafters, in the order in which they are asked."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)

    def drop(self, name: str) -> None:
        self.drafters = [d for d in self.drafters if d.name != name]
