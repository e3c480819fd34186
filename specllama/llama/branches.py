"""The sequences of a context that branches of drafts are decoded in.

A branch sees a text up to its first token, in a sequence of its own that shares the cells of the text. It
keeps them from round to round: sharing a cell costs an insertion into a tree for each, so sharing a long text
again in every round would take as long as a decode. What llama.cpp checks of sequences that share rows of a
batch (llama-batch.cpp): they begin and end at the same positions, and once a row is not shared, no later one
is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from specllama.core.interfaces import BatchRow
from specllama.llama.library import llama


class BranchSequences:
    """ids: of the sequences, which are used for nothing else. memory: of the context."""

    def __init__(self, memory: Any, ids: Sequence[int]) -> None:
        self._memory, self.ids = memory, tuple(ids)
        self._held: dict[int, tuple[int, int]] = {}  # by id: the sequence whose first n cells it has

    def shared(self, seq_id: int, n_past: int, used: Collection[int]) -> int:
        """The id of one that now shares the first `n_past` cells of the sequence, all that it has. used:
        those that other branches of the decode have.
        """
        free = [i for i in self.ids if i not in used]
        found = next((i for i in free if self._held.get(i, (-1, 0))[0] == seq_id), None)
        if found is None:
            found = next((i for i in free if i not in self._held), free[0])
            self._empty(found)
        have = self._held.get(found, (seq_id, 0))[1]
        if have < n_past:
            llama.llama_memory_seq_cp(self._memory, seq_id, found, have, n_past)
        self._held[found] = seq_id, n_past
        return found

    def owner(self, branch: int) -> int:
        """The sequence whose cells the branch shares."""
        return self._held[branch][0]

    def decoded(self, ends: Mapping[int, int], used: Collection[int]) -> None:
        """A decode had these sequences, by id where they left their texts; the used ones have cells of their
        own from there on, which are removed.
        """
        for branch, end in ends.items():
            if branch in used:
                self._cut(branch, end)
            self._held[branch] = self._held[branch][0], end

    def _cut(self, branch: int, n: int) -> None:
        """Remove the cells from position n on; up to there the branch has those of its text."""
        llama.llama_memory_seq_rm(self._memory, branch, n, -1)
        self._held[branch] = self._held[branch][0], n

    def truncated(self, seq_id: int, n: int) -> None:
        """The sequence has only its first n cells now."""
        for branch, (owner, have) in self._held.items():
            if owner == seq_id and have > n:
                self._cut(branch, n)

    def release(self, seq_id: int) -> None:
        """The cells of the sequence may become others."""
        for branch in [b for b, (owner, _) in self._held.items() if owner == seq_id]:
            self._empty(branch)

    def _empty(self, branch: int) -> None:
        if self._held.pop(branch, None) is not None:
            llama.llama_memory_seq_rm(self._memory, branch, -1, -1)


def shared_rows(
    batch: Sequence[BatchRow], ends: Mapping[int, int], branches: BranchSequences
) -> dict[int, list[int]]:
    """The branches that see a row of the batch, by index of the row. ends: where they leave their texts."""
    found: dict[int, list[int]] = {}
    for branch, end in ends.items():
        owner = branches.owner(branch)
        for i, row in enumerate(batch):
            if row.seq_id == owner and row.pos < end:
                found.setdefault(i, []).append(branch)
    return found
