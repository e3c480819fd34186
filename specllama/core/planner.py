"""Deciding what to draft: which drafter, how many tokens, for every sequence of a round.

`Fixed` is the classical policy: so many tokens, whatever they bring. `Adaptive` keeps the mean time of a
decode per width and the acceptance per drafter, takes the length with the best predicted rate and drafts
nothing where none beats plain decoding. Both know drafters by the interface of ports.py only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Protocol

from specllama.core.ports import Drafter, Proposal
from specllama.errors import UsageError

COPY_FLOOR = 0.5  # a copy that is less likely than this does not keep the draft model from being asked
MOST = 16  # draft tokens of one sequence that Adaptive considers


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


class _Base:
    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)

    def drop(self, name: str) -> None:
        self.drafters = [d for d in self.drafters if d.name != name]


class Fixed(_Base):
    """Always n_max tokens (n_min at least), each with a confidence of p_min at least, as llama.cpp's loop
    drafts.

    The drafters are asked in turn and the first with a draft wins; copies with little confidence leave the
    word to a draft model if there is one. Raises UsageError for impossible settings.
    """

    def __init__(self, drafters: Sequence[Drafter], n_max: int, n_min: int = 0, p_min: float = 0.0) -> None:
        super().__init__(drafters)
        if n_max < 0 or n_min < 0:
            raise UsageError("draft_max and draft_min must not be negative")
        if n_min > n_max:
            raise UsageError(f"draft_min {n_min} is more than draft_max {n_max}")
        if not 0 <= p_min <= 1:
            raise UsageError(f"draft_p_min must be between 0 and 1, not {p_min:g}")
        self.n_max, self.n_min, self.p_min = n_max, n_min, p_min

    def draft(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        limits = {seq: min(room, self.n_max) for seq, room in rooms.items() if min(room, self.n_max) > 0}
        drafts: dict[int, Draft] = {}
        for i, drafter in enumerate(self.drafters):
            todo = {seq: n for seq, n in limits.items() if not (seq in drafts and drafts[seq].tokens)}
            last = i == len(self.drafters) - 1
            p_min = self.p_min if last or drafter.name == "model" else max(self.p_min, COPY_FLOOR)
            for seq, (got, discarded) in run_drafter(drafter, todo, p_min, self.n_min).items():
                draft = drafts.setdefault(seq, Draft())
                draft.tokens = [p.token for p in got]
                draft.sources = [drafter.name] * len(got)
                draft.n_discarded += discarded if drafter.name == "model" else 0
        return drafts

    def observe(self, done: Round) -> None:
        pass


class Adaptive(_Base):
    """Drafts by measured time and acceptance; plain rounds first and then one in `every` tokens keep t(1)
    known.

    A width not yet seen is taken to cost what straight lines through the seen ones say, at first a tenth of
    t(1) per row. After a spell in which nothing seemed to pay, the best length is tried again, the spells
    doubling.
    """

    FIRST, EVERY, RETRY = 2, 128, 16

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters)
        self.seconds: dict[int, float] = {}  # mean time of a round by rows
        self.step_seconds: float | None = None  # mean time of one drafted model token, catching up included
        self.acceptance = {"model": 0.6}
        self.plain_left, self.since_plain = self.FIRST, 0
        self.idle, self.wait = 0, self.RETRY

    def draft(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        if self.plain_left > 0 or not self.seconds:
            return {}
        active, drafts = len(rooms), {}
        copies = self._copies(rooms)
        limits = {}
        for seq, room in rooms.items():
            proposed = copies.get(seq, [])[: min(room, MOST)]
            likely = _cumulative(p.confidence for p in proposed)
            n_copy, copy_rate = self._best(likely, active, 0.0)
            n_model, model_rate = 0, 0.0
            if "model" in (d.name for d in self.drafters):
                chain = _cumulative([self.acceptance["model"]] * min(room, MOST))
                n_model, model_rate = self._best(chain, active, self._step_cost(active))
                if n_model == 0 and n_copy == 0 and chain and self._retry():
                    n_model, model_rate = min(2, len(chain)), copy_rate + 1
            if n_model and model_rate > copy_rate:
                limits[seq] = n_model
            elif n_copy:
                drafts[seq] = Draft([p.token for p in proposed[:n_copy]], ["copy"] * n_copy)
        for drafter in self.drafters:
            if drafter.name == "model" and limits:
                for seq, (got, discarded) in run_drafter(drafter, limits, 0.0).items():
                    drafts[seq] = Draft([p.token for p in got], ["model"] * len(got), discarded)
        return drafts

    def _copies(self, rooms: Mapping[int, int]) -> dict[int, list[Proposal]]:
        for drafter in self.drafters:
            if drafter.name == "copy":
                limits = {seq: min(room, MOST) for seq, room in rooms.items()}
                return {seq: got for seq, (got, _) in run_drafter(drafter, limits, 0.05).items()}
        return {}

    def _best(self, likely: Sequence[float], active: int, step: float) -> tuple[int, float]:
        """(length, tokens per second) of the prefix with the best predicted rate; length 0 where plain is
        best.
        """
        best, rate = 0, active / self._predict(active)
        total = 0.0
        for k, s in enumerate(likely, 1):
            total += s
            now = (active + total) / (self._predict(active + k) + k * step)
            if now > rate * 1.01:
                best, rate = k, now
        return best, rate

    def _predict(self, n: int) -> float:
        """Seconds of a round of n rows."""
        if n in self.seconds:
            return self.seconds[n]
        below = max((w for w in self.seconds if w < n), default=None)
        above = min((w for w in self.seconds if w > n), default=None)
        if below is not None and above is not None:
            part = (n - below) / (above - below)
            return self.seconds[below] + part * (self.seconds[above] - self.seconds[below])
        nearest = below if below is not None else above
        assert nearest is not None
        return self.seconds[nearest] * max(0.1, 1 + 0.1 * (n - nearest))

    def _step_cost(self, active: int) -> float:
        return self.step_seconds if self.step_seconds is not None else 0.1 * self._predict(active)

    def _retry(self) -> bool:
        self.idle += 1
        if self.idle < self.wait:
            return False
        self.idle, self.wait = 0, min(2 * self.wait, 256)
        return True

    def observe(self, done: Round) -> None:
        mean = self.seconds.get(done.n_rows)
        took = done.seconds - done.draft_seconds
        # A round far above its mean was disturbed from outside; it moves the mean no further than a slow one.
        self.seconds[done.n_rows] = took if mean is None else mean + 0.2 * (min(took, 3 * mean) - mean)
        emitted = sum(o.n_emitted for o in done.outcomes)
        self.plain_left = max(0, self.plain_left - 1)
        self.since_plain = 0 if done.plain else self.since_plain + emitted
        if self.since_plain >= self.EVERY:
            self.plain_left = 1
        steps = max((len(o.draft.tokens) for o in done.outcomes if "model" in o.draft.sources), default=0)
        if steps:
            cost = done.draft_seconds / steps
            self.step_seconds = (
                cost if self.step_seconds is None else self.step_seconds + 0.2 * (cost - self.step_seconds)
            )
        for o in done.outcomes:
            if "model" in o.draft.sources:
                for j in range(min(o.n_accept + 1, len(o.draft.tokens))):
                    self.acceptance["model"] += 0.05 * ((j < o.n_accept) - self.acceptance["model"])
        active = len(done.outcomes)
        if steps and emitted * self._predict(active) > active * done.seconds:  # that paid: try again soon
            self.wait = self.RETRY


def _cumulative(chances: Iterable[float]) -> list[float]:
    return list(accumulate(chances, mul))
