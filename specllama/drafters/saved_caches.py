"""Caches of a draft model that are kept with those of the target, and restored.

Part of `ModelDrafter`; the methods are documented in core.interfaces.SavingDrafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllama.core.interfaces import Context, Mask, Sampler, Saved
from specllama.core.sequence import common_prefix

MIN_SHARED = (
    32  # ids of a common prefix from which it is shared; a shorter one is evaluated for each sequence
)


@dataclass(slots=True)
class SequenceState:
    """A sequence being drafted for. n_valid: ids of `history`, after the skipped ones, that the draft model's
    cache holds for certain. usable: whether the draft model has all of its ids.
    """

    history: list[int]
    sampler: Sampler
    mask: Mask | None
    n_valid: int
    usable: bool


class SavedCaches:
    """cells: ids in the cache of each sequence. skipped: ids of the history before the first of them. scopes:
    whose ids they are. _row_seconds: of a row of a wide decode, as last measured, 0.0 before.
    """

    context: Context
    states: dict[int, SequenceState]
    cells: dict[int, list[int]]
    skipped: dict[int, int]
    scopes: dict[int, str]
    _row_seconds: float

    def save_cache(self, seq_id: int, ids: Sequence[int], scope: str, copy_rate: float) -> Saved | None:
        """See `SavingDrafter`."""
        n = common_prefix(self.cells[seq_id], ids)
        if seq_id in self.states or self.skipped[seq_id] or self.scopes[seq_id] != scope or n < MIN_SHARED:
            return None
        if n < len(self.cells[seq_id]):  # tokens that were drafted last
            n = self.context.truncate(seq_id, n)
            del self.cells[seq_id][n:]
        if n < MIN_SHARED or not self._saves_time(n, self.context.size(seq_id), copy_rate):
            return None
        return self.context.save(seq_id)

    def load_cache(self, seq_id: int, ids: Sequence[int], scope: str, saved: Saved, copy_rate: float) -> int:
        """See `SavingDrafter`."""
        cells = self.cells[seq_id]
        held = 0 if self.skipped[seq_id] or self.scopes[seq_id] != scope else common_prefix(cells, ids)
        if seq_id in self.states or not self._saves_time(len(ids) - held, len(saved), copy_rate):
            return 0
        self._restart_at(seq_id, 0)
        n = self.context.load(seq_id, saved)
        while not n and self._free_idle(seq_id):
            n = self.context.load(seq_id, saved)
        if n > len(ids):  # of another text
            self._restart_at(seq_id, 0)
            n = 0
        self.cells[seq_id], self.scopes[seq_id] = list(ids[:n]), scope
        return n

    def _saves_time(self, n: int, n_bytes: int, copy_rate: float) -> bool:
        """Whether copying so many bytes is predicted to be faster than reading n ids."""
        return not self._row_seconds or n * self._row_seconds > n_bytes / copy_rate

    def _restart_at(self, seq_id: int, n_skipped: int) -> None:
        """Empty the sequence's cache; from now on it covers the history after the first `n_skipped` ids."""
        self.context.truncate(seq_id, 0)
        self.cells[seq_id].clear()
        self.skipped[seq_id] = n_skipped

    def _free_idle(self, but: int = -1) -> bool:
        """Empty the cache of an idle sequence, other than `but`; False where none has any cells."""
        idle_ids = (s for s, cells in self.cells.items() if cells and s not in self.states and s != but)
        idle = next(idle_ids, None)
        if idle is not None:
            self.context.truncate(idle, 0)
            self.cells[idle].clear()
        return idle is not None
