"""Counters of a generation and the figures derived from them, which every front prints. Times in seconds.

Knows no clock and no models; fronts import it, so it needs no numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specllama.wire import from_plain

if TYPE_CHECKING:
    from specllama.core.policy.base import Draft, Round, VerifyResult
    from specllama.core.policy.candidates import CandidateDraft

STALL = 4.0  # times the shortest round of its width: a longer round stalled, as on a busy machine
STALL_SECONDS = 0.02  # and by at least so many seconds


@dataclass(slots=True)
class RunStats:
    """Counters of one sequence; times in seconds of the engine's clock.

    n_evaluated: prompt tokens evaluated, without the n_reused ones that were in a cache; after a cancelled
    prefill the two are less than n_prompt. n_from_disk: those of n_reused whose state was read from the disk.
    n_prediction: tokens of the prediction, 0 without one; n_predicted, n_predicted_accept: those of n_drafted
    and n_accept, without branches, that were drafted from it.
    n_drafted: guessed draft tokens that were verified, of which n_accept were emitted. n_discarded: tokens
    drafted but not verified. n_forced, n_forced_accept: as n_drafted and n_accept, for tokens that a grammar
    forces; the other counters leave them out, except drafted_by and forced_by. n_modelled: verified tokens of
    a draft model. n_branch, n_branch_accept: those of n_drafted and n_accept that are second candidates, or
    follow one; counts by position leave them out. reached[j]: rounds whose draft had more than j guessed
    tokens; accepted_at[j]: those of them in which token j was emitted. reached_by, accepted_by: the same by
    drafter of token j. decode_seconds: from the first token to the end, n_predict - 1 tokens. plain_rounds:
    rounds in which nothing was drafted, plain_seconds: of those, without drafting; steady_rounds,
    steady_seconds: the same of those that followed two of their width. near_ties: tokens chosen with a margin
    below the rounding error of a batched row; redecided: those chosen again from a row decoded by itself.
    exact_width: the one width of all decodes, None where it could change. width_changes: (tokens before it,
    width) of each width of a text that had several. round_seconds: by number of rows,
    with those that fill a decode up, the number of such decodes and their seconds; steady_by_rows: the same
    of those that followed two of their width. steady_squares: sum of the squared seconds of the steady
    rounds. shortest: seconds of the shortest round by its number of rows. stalled_seconds: by which rounds
    took longer than the shortest one of their width where they took several times as long; such rounds are
    not steady.
    """

    n_prompt: int = 0
    n_reused: int = 0
    n_from_disk: int = 0
    n_evaluated: int = 0
    n_prediction: int = 0
    n_predicted: int = 0
    n_predicted_accept: int = 0
    n_predict: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    n_discarded: int = 0
    n_forced: int = 0
    n_forced_accept: int = 0
    n_modelled: int = 0
    n_branch: int = 0
    n_branch_accept: int = 0
    drafted_by: Counter[str] = field(default_factory=Counter)
    forced_by: Counter[str] = field(default_factory=Counter)
    reached: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    reached_by: dict[str, list[int]] = field(default_factory=dict)
    accepted_by: dict[str, list[int]] = field(default_factory=dict)
    rounds: int = 0
    plain_rounds: int = 0
    plain_seconds: float = 0.0
    steady_rounds: int = 0
    steady_seconds: float = 0.0
    encode_seconds: float = 0.0
    ttft_seconds: float = 0.0
    decode_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft_seconds: float = 0.0
    sampling_seconds: float = 0.0
    near_ties: int = 0
    redecided: int = 0
    exact_width: int | None = None
    width_changes: list[tuple[int, int]] = field(default_factory=list)
    round_seconds: dict[int, tuple[int, float]] = field(default_factory=dict)
    steady_by_rows: dict[int, tuple[int, float]] = field(default_factory=dict)
    steady_squares: float = 0.0
    shortest: dict[int, float] = field(default_factory=dict)
    stalled_seconds: float = 0.0

    def drafted(
        self,
        sources: Sequence[str],
        n_accept: int,
        n_discarded: int,
        forced: Collection[str] = (),
        models: Collection[str] = (),
    ) -> None:
        """Count one verified draft. sources: the drafter of each token. n_accept: how many were emitted.
        forced: names of the drafters whose tokens are forced, not guessed. models: names of draft models.
        """
        self.n_discarded += n_discarded
        n_guessed = n_right = 0
        for j, source in enumerate(sources):
            accepted = int(j < n_accept)
            self.drafted_by[source] += 1
            self.n_modelled += source in models
            if source in forced:
                self.forced_by[source] += 1
                self.n_forced += 1
                self.n_forced_accept += accepted
                continue
            _add(self.reached, n_guessed, 1)
            _add(self.accepted_at, n_guessed, accepted)
            _add(self.reached_by.setdefault(source, []), n_guessed, 1)
            _add(self.accepted_by.setdefault(source, []), n_guessed, accepted)
            n_guessed, n_right = n_guessed + 1, n_right + accepted
        self.n_drafted += n_guessed
        self.n_accept += n_right

    def _branched(self, draft: Draft, n_accept: int, models: Collection[str]) -> None:
        """Count the branches of a draft, `n_accept` of whose tokens were emitted."""
        self.n_branch += draft.n_in_branches
        self.n_drafted += draft.n_in_branches
        self.n_branch_accept += n_accept
        self.n_accept += n_accept
        for branch in draft.branches:
            self.drafted_by[branch.source] += len(branch.tokens)
            self.n_modelled += len(branch.tokens) * (branch.source in models)

    def add_round(
        self,
        done: Round,
        outcome: VerifyResult,
        sampling_seconds: float,
        forced: Collection[str] = (),
        models: Collection[str] = (),
        predicting: Collection[str] = (),
    ) -> None:
        """Count a round and this sequence's outcome in it. forced, models: as for `drafted`. predicting:
        names of the drafters that draft from predictions.
        """
        draft = outcome.draft
        n_accept = outcome.n_accept - outcome.n_branch
        self.drafted(draft.sources, n_accept, draft.n_discarded, forced, models)
        if draft.branches:
            self._branched(draft, outcome.n_branch, models)
        if self.n_prediction:
            self.n_predicted += sum(source in predicting for source in draft.sources)
            self.n_predicted_accept += sum(source in predicting for source in draft.sources[:n_accept])
        self.rounds += 1
        self.decode_seconds += done.seconds
        self.verify_seconds += done.verify_seconds
        self.draft_seconds += done.draft_seconds
        self.sampling_seconds += sampling_seconds
        steady = not self._stalled(done) and done.steady
        width = done.width
        for times in (self.round_seconds, self.steady_by_rows)[: 1 + steady]:
            count, seconds = times.get(width, (0, 0.0))
            times[width] = count + 1, seconds + done.verify_seconds
        if done.plain:
            self.plain_rounds += 1
            self.plain_seconds += done.seconds - done.draft_seconds
            if steady and not done.padding:
                seconds = done.seconds - done.draft_seconds
                self.steady_rounds += 1
                self.steady_seconds += seconds
                self.steady_squares += seconds * seconds

    def _stalled(self, done: Round) -> bool:
        """Whether the round took several times as long as others of its width."""
        took, width = done.seconds - done.draft_seconds, done.width
        first = self.round_seconds.get(width, (0, 0.0))[0] == 1
        before = self.shortest.setdefault(width, took)
        shorter, longer = (took, before) if took < before else (before, took)
        self.shortest[width] = shorter
        if longer < STALL * shorter or longer - shorter < STALL_SECONDS or not (took > before or first):
            return False
        self.stalled_seconds += longer - shorter  # of this round, or of the first one of its width
        return took > before

    @property
    def acceptance_rate(self) -> float | None:
        return self.n_accept / self.n_drafted if self.n_drafted else None

    @property
    def guessed_by(self) -> Counter[str]:
        """Verified draft tokens by drafter, without forced ones."""
        return self.drafted_by - self.forced_by

    @property
    def accept_by_position(self) -> list[float]:
        """Acceptance rate of the guessed tokens by position in the draft."""
        return [a / n for a, n in zip(self.accepted_at, self.reached, strict=True)]

    @property
    def accept_by_source(self) -> dict[str, list[float | None]]:
        """The same by drafter; None for positions at which it had no token."""
        return {
            name: [a / n if n else None for a, n in zip(self.accepted_by[name], reached, strict=True)]
            for name, reached in self.reached_by.items()
        }

    @property
    def encode_tps(self) -> float | None:
        """Prompt tokens evaluated per second."""
        return self.n_evaluated / self.encode_seconds if self.encode_seconds > 0 else None

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the first."""
        n = self.n_predict - 1
        return n / self.decode_seconds if n > 0 and self.decode_seconds > 0 else None

    @property
    def plain_tps(self) -> float | None:
        """Tokens per second of the plain rounds that followed two of their width."""
        return self.steady_rounds / self.steady_seconds if self.steady_seconds > 0 else None

    @property
    def time_shares(self) -> dict[str, float]:
        """Seconds of decoding by activity; their sum is decode_seconds."""
        known = self.verify_seconds + self.draft_seconds + self.sampling_seconds
        return {
            "verify": self.verify_seconds,
            "draft": self.draft_seconds,
            "sampling": self.sampling_seconds,
            "other": max(0.0, self.decode_seconds - known),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` is the inverse."""
        data = {name: getattr(self, name) for name in self.__slots__}
        return data | {name: dict(data[name]) for name in ("drafted_by", "forced_by")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunStats:
        """The inverse of `to_dict`, also from JSON. Raises ValueError."""
        stats: RunStats = from_plain(cls, dict(data))
        return stats


def summed(stats: Iterable[RunStats]) -> RunStats:
    """The sums of the counters and times of several answers; of widths there are none."""
    total = RunStats()
    for one in stats:
        for name in RunStats.__slots__:
            before = getattr(total, name)
            if isinstance(before, (int, float)):
                setattr(total, name, before + getattr(one, name))
        total.drafted_by.update(one.drafted_by)
        by_position = [(total.reached, one.reached), (total.accepted_at, one.accepted_at)]
        for source, counts in one.reached_by.items():
            by_position.append((total.reached_by.setdefault(source, []), counts))
            by_position.append((total.accepted_by.setdefault(source, []), one.accepted_by[source]))
        for sums, counts in by_position:
            for at, n in enumerate(counts):
                _add(sums, at, n)
    return total


def _add(counts: list[int], at: int, n: int) -> None:
    """Add n to an entry of the list, which grows with zeros up to it."""
    if at >= len(counts):
        counts.extend([0] * (at + 1 - len(counts)))
    counts[at] += n


FREE = ""  # in place of the name of a draft model or head


@dataclass(slots=True)
class OfferStats:
    """Candidate drafts of a request, verified or not, by name of the draft model or head; model-free ones, in
    which the first token is not forced, under FREE. rounds: of the planner. used: rounds that used it.
    drafted: those in which it proposed a token. right: those in which its first token was right.
    """

    rounds: int = 0
    used: Counter[str] = field(default_factory=Counter)
    drafted: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    def count(
        self, free: CandidateDraft, modelled: CandidateDraft | None, tokens: Sequence[int], name: str
    ) -> None:
        """Count a round. free: the model-free candidate. modelled: that of the draft model or head of this
        name, None where none was used. tokens: those committed.
        """
        self.rounds += 1
        self._add(FREE, [] if free.forced else free.tokens, tokens)
        if modelled is not None:
            self.used[name] += 1
            self._add(name, modelled.tokens, tokens)

    def _add(self, name: str, drafted: Sequence[int], tokens: Sequence[int]) -> None:
        self.drafted[name] += bool(drafted)
        self.right[name] += bool(drafted and tokens) and drafted[0] == tokens[0]
