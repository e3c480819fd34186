"""What a policy is: it drives the drafters before each decode and learns from what came of it.

Knows drafters by the interface of ports.py only. Policies: fixed.py, the classical one, and planner.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from specllama.core.interfaces import Drafter, Mask, Proposal, RememberingDrafter
from specllama.core.sampling.sampler import Sampler


@dataclass(slots=True)
class Draft:
    """Tokens to verify and the drafter of each; n_discarded: drafted and left out again."""

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    n_discarded: int = 0


@dataclass(frozen=True, slots=True)
class VerifyResult:
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
    outcomes: Sequence[VerifyResult]

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

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        chooser: Sampler,
        mask: Mask | None = None,
        owner: str | None = "",
    ) -> None:
        """A sequence of this owner begins with these ids: prompt and first token. As `Drafter.start`. Without
        an owner no earlier text is drawn on.
        """
        ...

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence went on with these ids, drafted or not; told before the round is observed."""
        ...

    def forget(self, seq_id: int) -> None:
        """The sequence ended; unknown ones are nothing to forget."""
        ...

    def draft(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        """A draft for each sequence (seq_id → most tokens that may be drafted for it); absent means none."""
        ...

    def observe(self, done: Round) -> None:
        """The round that the last `draft` led to."""
        ...

    def drop(self, name: str) -> None:
        """The drafter of this name failed; go on without it."""
        ...


class DraftRun(NamedTuple):
    """What was drafted for a sequence: proposals, the drafter of each, and how many more were discarded."""

    proposals: list[Proposal]
    sources: list[str]
    n_discarded: int

    @property
    def tokens(self) -> list[int]:
        return [p.token for p in self.proposals]


def run_drafter(
    drafter: Drafter,
    limits: Mapping[int, int],
    p_min: float,
    n_min: int = 0,
    forced: Drafter | None = None,
) -> dict[int, DraftRun]:
    """Step a drafter for all sequences together until each has its limit, runs out, or falls below p_min.

    forced: asked first for every token (what a grammar forces needs no guess); `drafter` must then be one
    that continues. A run shorter than n_min becomes empty.
    """
    runs = {seq: DraftRun([], [], 0) for seq, limit in limits.items() if limit > 0}
    wanted: dict[int, list[int]] = {seq: [] for seq in runs}
    while wanted:
        certain = forced.step(wanted) if forced is not None else {}
        open_ = {seq: draft for seq, draft in wanted.items() if seq not in certain} if certain else wanted
        proposals = drafter.step(open_) if open_ else {}
        for seq in list(wanted):
            run, got = runs[seq], certain.get(seq) or proposals.get(seq)
            if got is not None and got.confidence >= p_min:
                run.proposals.append(got)
                run.sources.append(forced.name if forced is not None and seq in certain else drafter.name)
                wanted[seq].append(got.token)
                if len(run.proposals) < limits[seq]:
                    continue
            elif got is not None:
                runs[seq] = run._replace(n_discarded=1)
            del wanted[seq]
    for seq, run in runs.items():
        if 0 < len(run.proposals) < n_min:
            runs[seq] = DraftRun([], [], run.n_discarded + len(run.proposals))
    return runs


class PolicyBase:
    """What all policies have: the drafters, in the order in which they are asked."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)
        self._named = {d.name: d for d in reversed(self.drafters)}

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        chooser: Sampler,
        mask: Mask | None = None,
        owner: str | None = "",
    ) -> None:
        for drafter in self.drafters:
            if isinstance(drafter, RememberingDrafter):
                drafter.set_scope(seq_id, owner)
            drafter.start(seq_id, prompt, chooser, mask)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        for drafter in self.drafters:
            drafter.committed(seq_id, tokens)

    def forget(self, seq_id: int) -> None:
        for drafter in self.drafters:
            drafter.forget(seq_id)

    def drop(self, name: str) -> None:
        self.drafters = [d for d in self.drafters if d.name != name]
        self._named.pop(name, None)

    def named(self, name: str) -> Drafter | None:
        """The first drafter of this name, if there is one."""
        return self._named.get(name)
