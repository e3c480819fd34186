"""A fixed draft length, whatever it gains, as in llama.cpp's speculative example. Learns nothing but how long
rounds take, for requests with a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from specllama.core.interfaces import CachingDrafter, Drafter, Proposal
from specllama.core.policy.base import CHAINS, Draft, DraftBranch, Policy, Round, RoundLimits
from specllama.core.policy.candidates import best_branches

COPY_FLOOR = 0.5  # a copy less likely than this leaves the round to the draft model
CATCH_UP_IDS = 128  # most ids that a drafter evaluates at once while other sequences are decoded


class DraftRun(NamedTuple):
    """A sequence's draft: proposals, the drafter of each, and the number of further ones discarded."""

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
    """Step a drafter for all sequences together until each draft reaches its limit, has no further proposal,
    or falls below a confidence of p_min.

    forced: the drafter of forced tokens, tried first for every token; `drafter` must then be one that
    continues. Drafts shorter than n_min are discarded.
    """
    runs = {seq: DraftRun([], [], 0) for seq, limit in limits.items() if limit > 0}
    drafts: dict[int, list[int]] = {seq: [] for seq in runs}
    while drafts:
        certain = forced.step(drafts) if forced is not None else {}
        open_ = {seq: draft for seq, draft in drafts.items() if seq not in certain} if certain else drafts
        proposals = drafter.step(open_) if open_ else {}
        for seq in list(drafts):
            run, got = runs[seq], certain.get(seq) or proposals.get(seq)
            if got is not None and got.confidence >= p_min:
                run.proposals.append(got)
                run.sources.append(forced.name if forced is not None and seq in certain else drafter.name)
                drafts[seq].append(got.token)
                if len(run.proposals) < limits[seq]:
                    continue
            elif got is not None:
                runs[seq] = run._replace(n_discarded=1)
            del drafts[seq]
    for seq, run in runs.items():
        if 0 < len(run.proposals) < n_min:
            runs[seq] = DraftRun([], [], run.n_discarded + len(run.proposals))
    return runs


class Fixed(Policy):
    """Drafts up to n_max tokens, each with a confidence of at least p_min; none where there are fewer than
    n_min.

    The drafters are tried in turn and the first with a draft is used, a head where the draft model before it
    has none; a copy with a low confidence is ignored if there is a draft model or head.
    """

    def __init__(self, drafters: Sequence[Drafter], n_max: int, n_min: int = 0, p_min: float = 0.0) -> None:
        super().__init__(drafters)
        self.n_max, self.n_min, self.p_min = n_max, n_min, p_min
        self._seconds: dict[int, float] = {}  # by rows, of the latest round with so many

    def predict(self, n_rows: int) -> float:
        """That of the latest round with as many rows, or of the narrowest of the wider ones."""
        known = min((n for n in self._seconds if n >= n_rows), default=None)
        return 0.0 if known is None else self._seconds[known]

    def draft(
        self, max_draft_len: Mapping[int, int], seconds: float = inf, limits: RoundLimits = CHAINS
    ) -> dict[int, Draft]:
        active, n_max = len(max_draft_len), self.n_max
        self._use_alternatives(limits.n_branches > 0)
        while seconds < inf and n_max and self.predict(active * (1 + n_max)) > seconds:
            n_max -= 1
        lengths = {seq: min(room, n_max) for seq, room in max_draft_len.items() if min(room, n_max) > 0}
        if not lengths or not self.drafters:
            return {}
        drafts, forcing = {seq: Draft() for seq in lengths}, self.forcing
        others = [d for d in self.drafters if d is not forcing]
        forced = forcing.step(dict.fromkeys(lengths, ())) if forcing is not None else {}
        if forcing is not None and not any(d.continues for d in others):
            others.append(forcing)  # no other drafter continues after forced tokens
        for i, drafter in enumerate(others):
            caching = drafter if active > 1 and isinstance(drafter, CachingDrafter) else None
            todo = {
                seq: n for seq, n in lengths.items()
                if not drafts[seq].tokens and (drafter.continues or seq not in forced)
                and (caching is None or caching.catch_up(seq, CATCH_UP_IDS))
            }  # fmt: skip
            last = not any(d.runs_model or d.forces for d in others[i + 1 :])
            p_min = self.p_min if last or drafter.runs_model else max(self.p_min, COPY_FLOOR)
            before = forcing if drafter.continues and drafter is not forcing else None
            for seq, run in run_drafter(drafter, todo, p_min, self.n_min, before).items():
                draft = drafts[seq]
                draft.tokens, draft.sources = run.tokens, run.sources
                draft.n_discarded += run.n_discarded if drafter.runs_model else 0
                possible = [
                    DraftBranch(at, list(other.tokens), run.sources[at], other.confidence)
                    for at, proposal in enumerate(run.proposals)
                    if (other := proposal.other) is not None
                ]
                draft.branches = best_branches(possible, limits, limits.n_tokens - len(run.proposals))
        return drafts

    def text_width(self, greedy: bool) -> int:  # noqa: ARG002
        return 1 + (self.n_max if self.drafters else 0)

    def next_width(self, seq_id: int, width: int) -> int:  # noqa: ARG002
        return width

    def total_width(self, n_texts: int) -> int:
        return n_texts * self.text_width(True)

    def observe(self, done: Round) -> None:
        self._seconds[done.n_rows] = done.verify_seconds + done.draft_seconds
