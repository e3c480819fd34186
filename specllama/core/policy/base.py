"""The interface of policies, which call the drafters before each decode and learn from the outcome.

Policies: fixed.py, a fixed draft length, and planner.py, which decides by measured cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from specllama.core.interfaces import CachingDrafter, Drafter, Mask, Sampler
from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number

N_STEADY = 3  # from this one on, decodes in a row of one width take equally long


@dataclass(frozen=True, slots=True)
class DraftBranch:
    """A second candidate of a draft and what follows it, in place of the draft's tokens from index `at` on.
    source: its drafter. chance: of its first token, by the drafter's own confidence.
    """

    at: int
    tokens: Sequence[int]
    source: str
    chance: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class Draft:
    """Tokens to verify and the name of the drafter of each. n_discarded: tokens of a draft model or head that
    were drafted and are not among them. branches: second candidates to verify in the same decode.
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
    """The limits that the target sets to a round. n_branches: most branches of a draft. n_tokens: most tokens
    of a draft, those of branches included. n_recomputed: rows of tokens that an earlier round has accepted in
    branches. width: rows of the decode, whatever is drafted; 0: as many as are needed. shadows: whether
    drafts may be compared with the text in place of being verified.
    """

    n_branches: int = 0
    n_tokens: int = 1 << 30
    n_recomputed: int = 0
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
    drafts may have branches now. forced_sources, model_sources, predicting_sources: names of the drafters
    whose tokens are forced, not guessed; of draft models and heads; of those that draft from predictions.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._set_drafters(drafters)

    def _set_drafters(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)
        self.forcing = next((d for d in drafters if d.forces), None)
        self.forced_sources = frozenset(d.name for d in drafters if d.forces)
        self.model_sources = frozenset(d.name for d in drafters if d.runs_model)
        self.predicting_sources = frozenset(d.name for d in drafters if d.predicts)
        self.with_alternatives = False

    def _use_alternatives(self, wanted: bool) -> None:
        """Let the drafters name second candidates, or not."""
        if wanted != self.with_alternatives:
            self.with_alternatives = wanted
            for drafter in self.drafters:
                drafter.with_alternatives = wanted

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler,
        mask: Mask | None = None,
        history_scope: str | None = "",
        cache_scope: str = "",
        prediction: Sequence[int] = (),
        n_output: int = 1,
    ) -> None:
        """A sequence starts with these ids, prompt and first token, as in `Drafter.start`. history_scope,
        cache_scope, prediction: see `sequence.Request`. n_output: ids after the prompt.
        """
        for drafter in self.drafters:
            drafter.set_scope(seq_id, history_scope)
            drafter.set_prediction(seq_id, prediction, n_output)
            if isinstance(drafter, CachingDrafter):
                drafter.set_cache_scope(seq_id, cache_scope)
            drafter.start(seq_id, prompt, sampler, mask)
        self._started(seq_id, sampler.greedy)

    def _started(self, seq_id: int, greedy: bool) -> None:  # noqa: B027
        """The drafters know the sequence. greedy: whether the likeliest token is chosen."""

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
        self, max_draft_len: Mapping[int, int], seconds: float = inf, limits: RoundLimits = CHAINS
    ) -> dict[int, Draft]:
        """A draft for each sequence by seq_id; absent: none. max_draft_len: by seq_id, the most tokens to
        draft one after another. seconds: how long the round may take; a round without drafts is accepted.
        Raises DecodeError where a drafter fails, MaskError where a grammar does.
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


# The time that drafting has gained and lost relative to plain decoding, and what it may still lose.
#
# All amounts are in t(1), the time of a plain decode of one row, so that they do not depend on the machine's
# current speed.


class SpeculationBudget:
    """Limits the loss against plain decoding to four plain decodes plus 1 %.

    credit: what may still be lost. Rounds that spent time on drafts change it; `config.overhead` refills it
    up to the allowance. It is stored, so that the allowance is granted once per pair, not once per answer.
    Gains raise it by at most `max_gain`, so that old ones cannot be lost again. since_plain: time since the
    last round without drafts.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self.credit = config.allowance
        self.since_plain = 0.0

    @property
    def plain_due(self) -> bool:
        """Whether it is time for a round without drafts."""
        return self.since_plain >= self.config.plain_every

    @property
    def max_round_loss(self) -> float:
        """The most that one round may lose, in t(1)."""
        return self.config.round_share * self.credit

    def plain(self, worth: float) -> None:
        """Record a round without drafts. worth: the time of its tokens in plain decoding, in t(1)."""
        self.since_plain = 0
        self._refill(worth)

    def drafted(self, worth: float, cost: float) -> None:
        """Record a round that spent time on drafts. worth: as for `plain`. cost: the time of the round, in
        t(1).
        """
        self.since_plain += cost
        self.credit = min(self.config.allowance + self.config.max_gain, self.credit + worth - cost)
        self._refill(worth)

    def restore(self, credit: object) -> None:
        """Continue from the stored credit of an earlier process; anything but a number is ignored."""
        if is_number(credit):
            low, high = self.config.stored_credit
            self.credit = max(low, min(high, float(credit)))

    def _refill(self, worth: float) -> None:
        c = self.config
        if self.credit < c.allowance:
            self.credit = min(c.allowance, self.credit + c.overhead * worth)
