"""The classical policy: so many draft tokens a round, whatever they bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.core.interfaces import Drafter
from specllama.core.policy.base import Draft, PolicyBase, Round, run_drafter
from specllama.core.policy.pair_state import MEMORY
from specllama.errors import UsageError

COPY_FLOOR = 0.5  # a copy that is less likely than this does not keep the draft model from being asked


class Fixed(PolicyBase):
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
        if not limits or not self.drafters:
            return {}
        drafts = {seq: Draft() for seq in limits}
        grammar = self.named("grammar")
        others = [d for d in self.drafters if d is not grammar]
        sure = grammar.step(dict.fromkeys(limits, ())) if grammar is not None else {}
        if grammar is not None and not any(d.continues for d in others):
            others.append(grammar)  # then nobody drafts behind what is forced
        for i, drafter in enumerate(others):
            todo = {
                seq: n for seq, n in limits.items()
                if not drafts[seq].tokens and (drafter.continues or seq not in sure)
            }  # fmt: skip
            last = all(d.name == MEMORY for d in others[i + 1 :])
            p_min = self.p_min if last or drafter.name == "model" else max(self.p_min, COPY_FLOOR)
            forced = grammar if drafter.continues and drafter is not grammar else None
            for seq, run in run_drafter(drafter, todo, p_min, self.n_min, forced).items():
                draft = drafts[seq]
                draft.tokens, draft.sources = run.tokens, run.sources
                draft.n_discarded += run.n_discarded if drafter.name == "model" else 0
        return drafts

    def observe(self, done: Round) -> None:
        pass
