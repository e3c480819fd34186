"""The sequences of a context that branches of drafts are decoded in.

A branch sees a text up to its first token, in a sequence of its own that shares the cells of the text. It
keeps them from round to round: sharing a cell costs an insertion into a tree for each, so sharing a long text
again in every round would take as long as a decode. What llama.cpp checks of sequences that share rows of a
batch (llama-batch.cpp): they begin and end at the same positions, and once a row is not shared, no later one
is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from specllama.core.interfaces import BatchRow
from specllama.llama.decode_limits import LimitError
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel


class PlacedRows(NamedTuple):
    """The rows of a batch and of branches. ends: where the sequences leave their texts, by id. used: the
    sequences of the branches. shared: those that see a row of the batch, besides its own, by its index.
    """

    rows: list[BatchRow]
    ends: dict[int, int]
    used: list[int]
    shared: dict[int, list[int]]


class BranchSequences:
    """ids: of the sequences, which are used for nothing else. memory: of the context."""

    def __init__(self, memory: Any, ids: Sequence[int]) -> None:
        self._memory, self.ids = memory, tuple(ids)
        self._held: dict[int, tuple[int, int]] = {}  # by id: the sequence whose first n cells it has

    def placed(
        self, batch: Sequence[BatchRow], branches: Sequence[Sequence[BatchRow]], n_apart: int
    ) -> PlacedRows:
        """The rows of a decode with these branches. Each text has `n_apart` sequences; those that no branch
        uses leave it after the first row.
        """
        ends: dict[int, int] = {}
        used: list[int] = []
        rows, first = list(batch), dict[int, int]()
        for row in batch:
            first.setdefault(row.seq_id, row.pos)
        for branch in branches:
            seq_id = branch[0].seq_id
            used.append(self._shared(seq_id, first[seq_id], ends))
            ends[used[-1]] = branch[0].pos
            rows += [row._replace(seq_id=used[-1]) for row in branch]
        for seq_id, pos in first.items():
            n_used = sum(branch[0].seq_id == seq_id for branch in branches)
            for _ in range(min(n_apart - n_used, len(self.ids) - len(ends))):
                ends[self._shared(seq_id, pos, ends)] = pos + 1
        return PlacedRows(rows, ends, used, self._seen_by(batch, ends))

    def _seen_by(self, batch: Sequence[BatchRow], ends: Mapping[int, int]) -> dict[int, list[int]]:
        """The sequences that see a row of the batch, by index of the row."""
        seen_by: dict[int, list[int]] = {}
        for branch, end in ends.items():
            owner, _ = self._held[branch]
            for i, row in enumerate(batch):
                if row.seq_id == owner and row.pos < end:
                    seen_by.setdefault(i, []).append(branch)
        return seen_by

    def _shared(self, seq_id: int, n_past: int, used: Collection[int]) -> int:
        """The id of one that now shares the first `n_past` cells of the sequence, all that it has. used:
        those that other branches of the decode have.
        """
        free = [i for i in self.ids if i not in used]
        shared = next((i for i in free if self._held.get(i, (-1, 0))[0] == seq_id), None)
        if shared is None:
            shared = next((i for i in free if i not in self._held), free[0])
            self._empty(shared)
        have = self._held.get(shared, (seq_id, 0))[1]
        if have < n_past:
            llama.llama_memory_seq_cp(self._memory, seq_id, shared, have, n_past)
        self._held[shared] = seq_id, n_past
        return shared

    def decoded(self, rows: PlacedRows) -> None:
        """The rows are decoded; the cells that branches have of their own are removed."""
        for branch, end in rows.ends.items():
            if branch in rows.used:
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


def why_no_branches(model: LlamaModel) -> str:
    """Why decodes of the model cannot have branches, "" where they can."""
    if model.has_state:
        return "the model keeps a state, which follows one text only"
    if model.n_swa and model.settings.swa_full is False:
        return "its windows of cells hold one text only"
    # Otherwise attention sums over the cells in groups, and a row depends on where its cells lie.
    return "" if model.settings.flash_attn != "off" else "flash attention is off"


def check_branches(
    batch: Sequence[BatchRow], branches: Sequence[Sequence[BatchRow]], n_branches: int
) -> None:
    """Raises LimitError for branches on which llama.cpp would fail, and for more than `n_branches`."""
    first: dict[int, int] = {}
    for row in batch:
        first.setdefault(row.seq_id, row.pos)
    known = all(b and first.get(b[0].seq_id, b[0].pos) < b[0].pos for b in branches)
    if len(branches) > n_branches or not known:
        raise LimitError(f"a decode has at most {n_branches} branches, each after a row of the batch")
