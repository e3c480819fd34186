"""Simulated heads: they propose recorded choices as a simulated draft model does, at the costs of a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.core.interfaces import DraftCacheState, Proposal
from specllama.core.replay.simulator import Seconds, SimulatedClock, Trace, TraceDrafter


class TraceHead(TraceDrafter):
    """A head that drafts token by token: tokens that were accepted are evaluated again, with the target's
    hidden states. n_kept: hidden states that are kept of a prompt; earlier tokens are never evaluated.
    """

    name = "head"
    reads_features = True

    def __init__(self, machine: SimulatedClock, step_seconds: Seconds, n_kept: int) -> None:
        super().__init__(machine, step_seconds)
        self.n_kept = n_kept

    def begin(self, seq_id: int, trace: Trace, prefilled: bool) -> None:
        super().begin(seq_id, trace, prefilled)
        self._skipped[seq_id] = max(0, len(trace.prompt) - self.n_kept)
        if not prefilled:
            self._held[seq_id] = trace.prompt[: self._skipped[seq_id]]

    def cache_state(self, seq_id: int) -> DraftCacheState:
        """As of a real head: tokens before its first row count as if they were not there."""
        return super().cache_state(seq_id)._replace(n_skipped=0)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        del self._held[seq_id][len(self._history(seq_id)) :]
        super().committed(seq_id, tokens)


class TraceBlocks(TraceHead):
    """A head that drafts a block of `n_draft` tokens in its first step; the others cost nothing."""

    drafts_blocks = True

    def __init__(self, machine: SimulatedClock, step_seconds: Seconds, n_kept: int, n_draft: int) -> None:
        # A block's step evaluates the last id too, whether or not its cell is there.
        super().__init__(machine, lambda n: step_seconds(n + 1), n_kept)
        self.n_draft, self._drafted = n_draft, set[int]()

    def cache_state(self, seq_id: int) -> DraftCacheState:
        state = super().cache_state(seq_id)
        return state._replace(n_pending=state.n_pending + 1)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        self._evaluate({seq_id: () for seq_id in drafts if seq_id not in self._drafted})
        self._drafted |= set(drafts)
        proposals = {s: self._proposal(s, draft) for s, draft in drafts.items() if len(draft) < self.n_draft}
        return {seq_id: proposal for seq_id, proposal in proposals.items() if proposal is not None}

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._drafted.discard(seq_id)
        super().committed(seq_id, tokens)
