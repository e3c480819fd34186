"""The decodes of the target: what fits into one, how many rows it has, and what gives way where the cache is
full. Knows generations by their lengths only; drafts, verifies and chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow, NoRoomError
from specllama.core.policy.base import RoundLimits
from specllama.core.scheduler import Scheduler
from specllama.core.sequence import Generation


class TargetDecoder:
    """Decodes for the generations of a scheduler. max_rows, draft_tree: see `engine.Engine`."""

    def __init__(self, scheduler: Scheduler, max_rows: int | None, draft_tree: int) -> None:
        self.scheduler, self.target = scheduler, scheduler.target
        self.max_rows, self.draft_tree = max_rows, draft_tree
        self._last_width, self._n_same = 0, 0  # of the last round's decode, and rounds of it in a row

    def decode(
        self,
        batch: list[BatchRow],
        n_rows: int = 0,
        branches: Sequence[Sequence[BatchRow]] = (),
        n_apart: int = 0,
    ) -> NDArray[np.float32] | None:
        """Logits of the outputs, shape (n_outputs, n_vocab). Other parameters: see `Context.decode`. None
        where the cache has no room and the scheduler has taken a generation out instead.
        """
        while True:
            try:
                if not n_apart:
                    return self.target.decode(batch, n_rows, n_rows)
                return self.target.decode(batch, n_rows, n_rows, branches, n_apart)
            except NoRoomError:
                if not self.scheduler.make_room():
                    return None

    def checkpoint(self, generation: Generation) -> None:
        """Save the state before a draft, where the memory cannot roll back, after evaluating all but the last
        token. Raises NoRoomError.
        """
        pending = generation.history[generation.n_past : -1]
        while pending:
            chunk, pending = pending[: self.target.n_batch], pending[self.target.n_batch :]
            n = generation.n_past
            self.target.decode([BatchRow(t, n + i, generation.seq_id, False) for i, t in enumerate(chunk)])
            generation.n_past += len(chunk)
            self.interrupted()
        self.target.checkpoint(generation.seq_id)

    def interrupted(self) -> None:
        """Other decodes than those of rounds were made."""
        self._last_width = 0

    def count_same_width(self) -> int:
        """Count the decode of a round; returns how many of its width there were in a row, with this one."""
        width = self.target.n_decoded
        self._n_same = self._n_same + 1 if width == self._last_width else 1
        self._last_width = width
        return self._n_same

    def draft_limit(self, active: Sequence[Generation]) -> int:
        """Most draft tokens per generation that fit into one decode and that the memory can roll back."""
        max_rows = min(self.target.n_outputs_max, self.max_rows or self.target.n_outputs_max)
        pending = max(len(g.history) - g.n_past for g in active)
        per_batch = self.target.n_batch // len(active) - pending
        return min((max_rows - len(active)) // len(active), per_batch, self.target.max_rollback)

    def limits(self, active: Sequence[Generation], limit: int) -> RoundLimits:
        """What the round may have. limit: most draft tokens per generation. Where all decodes of a text have
        one width, rows depend on where their cells lie, so it has no branches.
        """
        n_again = sum(len(g.history) - 1 - g.n_past for g in active)
        if any(g.exact_rows for g in active):
            width = self._held_width(active, n_again)
            shadows = not any(g.alone or g.n_draft_max == 0 for g in active)
            return RoundLimits(n_again=n_again, width=width, shadows=shadows)
        n_branches = min(self.draft_tree, self.target.n_branches // len(active))
        if not n_branches:
            return RoundLimits(n_again=n_again)
        at_once = self.target.n_ubatch - len(active) - n_again
        n_tokens = min(limit, max(0, min(self._room(), at_once)) // len(active))
        return RoundLimits(n_branches, n_tokens, n_again)

    def _held_width(self, active: Sequence[Generation], n_again: int) -> int:
        """The rows of the decode: those of the text, or as many as the policy wants for several, where they
        fit.
        """
        if len(active) == 1 and (rows := active[0].exact_rows) is not None:
            return rows.width
        n_rows, target = len(active) + n_again, self.target
        most = min(target.n_outputs_max, target.n_batch, self._room(), n_rows + target.max_rollback)
        return max(n_rows, min(self.scheduler.policy.total_width(len(active)), most))

    def _room(self) -> int:
        """Cells that the active generations leave free."""
        return self.target.n_ctx - sum(len(g.history) for g in self.scheduler.active)
