"""The interface of policies, which call the drafters before each decode and learn from the outcome.

Knows drafters by the interface of interfaces.py only. Policies: fixed.py, a fixed draft length, and
planner.py, which decides by measured cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from specllama.core.interfaces import (
    CachingDrafter,
    Drafter,
    Mask,
    OffersAlternatives,
    RememberingDrafter,
    Sampler,
)

N_STEADY = 3  # from this one on, decodes in a row of one width take equally long


@dataclass(frozen=True, slots=True)
class DraftBranch:
    """A second candidate of a draft and what follows it, in place of the draft's tokens from index `at` on.
    source: its drafter.
    """

    at: int
    tokens: Sequence[int]
    source: str


@dataclass(slots=True)
class Draft:
    """Tokens to verify and the name of the drafter of each. n_discarded: tokens of a priced drafter that were
    drafted and are not among them. branches: second candidates to verify in the same decode.
    """

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    n_discarded: int = 0
    branches: list[DraftBranch] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """Rows that verify it, besides that of the last token."""
        return len(self.tokens) + self.n_in_branches

    @property
    def n_in_branches(self) -> int:
        """Tokens of its branches."""
        return sum(len(branch.tokens) for branch in self.branches)

    def cut(self, n: int) -> None:
        """Keep the first n tokens, and the branches that follow them."""
        del self.tokens[n:], self.sources[n:]
        self.branches = [branch for branch in self.branches if branch.at <= n]


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What the target allows in a round. n_branches: most branches of a draft. n_tokens: most tokens of a
    draft, those of branches included. n_again: rows of tokens that an earlier round has accepted in branches.
    width: rows of the decode, whatever is drafted; 0: as many as are needed. shadows: whether drafts may be
    compared with the text in place of being verified.
    """

    n_branches: int = 0
    n_tokens: int = 1 << 30
    n_again: int = 0
    width: int = 0
    shadows: bool = True


CHAINS = RoundLimits()  # no branches, and as many rows as are needed


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The outcome of a round for one sequence, which emitted n_emitted tokens, n_accept of them drafted.
    n_branch: those of n_accept that are tokens of a branch.
    """

    seq_id: int
    draft: Draft
    n_accept: int
    n_emitted: int
    n_branch: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One round: its rows, and the seconds of the target's decode, of drafting, and in total. padding:
    further rows that filled up the decode. n_same: decodes of this width in a row, with this one.
    """

    n_rows: int
    verify_seconds: float
    draft_seconds: float
    seconds: float
    outcomes: Sequence[VerifyResult]
    padding: int = 0
    n_same: int = 1

    @property
    def width(self) -> int:
        """Rows of the decode, with those that filled it up."""
        return self.n_rows + self.padding

    @property
    def steady(self) -> bool:
        """Whether the decode followed two of its width: where a change of it costs something, the first two
        after it take longer.
        """
        return self.n_same >= N_STEADY

    @property
    def plain(self) -> bool:
        """Whether no token was drafted."""
        drafted = any(o.draft.tokens or o.draft.n_discarded for o in self.outcomes)
        return self.n_rows == len(self.outcomes) and not drafted


def matching(branches: Sequence[DraftBranch], n_accept: int, token: int) -> Iterator[DraftBranch]:
    """The branches that begin with this token after `n_accept` tokens of the draft; one at most."""
    return (b for b in branches if b.at == n_accept and b.tokens[0] == token)


class Policy(ABC):
    """Calls the drafters before each decode and learns from the outcome. drafters: in the order in which they
    are tried. forcing: the first drafter of forced tokens, None without one. with_alternatives: whether
    drafts may have branches now.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._set_drafters(drafters)

    def _set_drafters(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)
        self.forcing = next((d for d in drafters if d.forces), None)
        self.with_alternatives = False

    def _use_alternatives(self, wanted: bool) -> None:
        """Let the drafters name second candidates, or not."""
        if wanted != self.with_alternatives:
            self.with_alternatives = wanted
            for drafter in self.drafters:
                if isinstance(drafter, OffersAlternatives):
                    drafter.with_alternatives = wanted

    @property
    def forced_sources(self) -> frozenset[str]:
        """Names of the drafters whose tokens are forced, not guessed; acceptance rates leave them out."""
        return frozenset(d.name for d in self.drafters if d.forces)

    @property
    def priced_sources(self) -> frozenset[str]:
        """Names of the drafters whose tokens cost decodes."""
        return frozenset(d.name for d in self.drafters if d.priced)

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler,
        mask: Mask | None = None,
        history_scope: str | None = "",
        cache_scope: str = "",
    ) -> None:
        """A sequence starts with these ids, prompt and first token, as in `Drafter.start`. history_scope,
        cache_scope: see `sequence.Request`.
        """
        for drafter in self.drafters:
            if isinstance(drafter, RememberingDrafter):
                drafter.set_scope(seq_id, history_scope)
            if isinstance(drafter, CachingDrafter):
                drafter.set_cache_scope(seq_id, cache_scope)
            drafter.start(seq_id, prompt, sampler, mask)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence continued with these ids, drafted or not; called before `observe`."""
        for drafter in self.drafters:
            drafter.committed(seq_id, tokens)

    def forget(self, seq_id: int) -> None:
        """The sequence ended; unknown ones are ignored."""
        for drafter in self.drafters:
            drafter.forget(seq_id)

    def remove_drafter(self, name: str) -> None:
        """The drafter of this name failed; continue without it."""
        self._set_drafters([d for d in self.drafters if d.name != name])

    @abstractmethod
    def draft(
        self, rooms: Mapping[int, int], seconds: float = inf, limits: RoundLimits = CHAINS
    ) -> dict[int, Draft]:
        """A draft for each sequence by seq_id; absent: none. rooms: by seq_id, the most tokens to draft one
        after another. seconds: how long the round may take; a round without drafts is accepted. Raises
        DecodeError where a drafter fails, MaskError where a grammar does.
        """

    @abstractmethod
    def observe(self, done: Round) -> None:
        """Learn from the round that verified the last `draft`."""

    @abstractmethod
    def predict(self, n_rows: int) -> float:
        """Predicted seconds of a decode of so many rows, 0 where that is not known."""

    @abstractmethod
    def text_width(self, greedy: bool) -> int:
        """The rows of all decodes of a text that begins now, where they should all have the same."""

    @abstractmethod
    def next_width(self, seq_id: int, width: int) -> int:
        """The rows of further decodes of such a text, which have been `width` so far."""

    @abstractmethod
    def total_width(self, n_texts: int) -> int:
        """The same of decodes of several texts together."""
