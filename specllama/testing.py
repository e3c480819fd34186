"""A model without weights, for tests of the engine and simulations.

`TableContext` gives logits that are a pure function of the ids before. It asserts the conditions on which
llama.cpp would abort, and can behave like each kind of llama.cpp's memory.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specllama.core.image_rows import FIRST_PLACEHOLDER, ImageEmbeddings
from specllama.core.interfaces import BatchRow, Drafter, NoRoomError

N_FEATURES = 3  # ids in a hidden state, as many as `table_row` looks at
Memory = Literal["full", "window", "rollback", "checkpoint"]


def table_row(
    ids: Sequence[int], n_vocab: int, seed: int = 0, order: int = 3, spread: float = 3.0
) -> NDArray[np.float32]:
    """Logits that depend only on the last `order` ids, shape (n_vocab,); normal with deviation `spread`."""
    return _row(tuple(ids[-order:]), n_vocab, seed, spread).copy()


@lru_cache(maxsize=2**15)
def _row(ids: tuple[int, ...], n_vocab: int, seed: int, spread: float) -> NDArray[np.float32]:
    key = hashlib.sha256(f"{seed}:{list(ids)}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
    return (rng.standard_normal(n_vocab) * spread).astype(np.float32)


class TableContext:
    """A context over a function from ids to logits. rows: from the ids so far to logits, shape (n_vocab,).
    memory: "window" can be rolled back by at most 8 tokens, "rollback" only within the last decode,
    "checkpoint" only to the last checkpoint. Asserts positions, sequence ids and batch limits. widths: rows
    of each decode so far.
    """

    def __init__(
        self,
        n_vocab: int = 32,
        n_ctx: int = 256,
        n_seq_max: int = 1,
        memory: Memory = "full",
        rows: Callable[[Sequence[int]], NDArray[np.float32]] | None = None,
        n_batch: int = 64,
        max_rollback: int = 8,
        row_multiple: int = 1,
        n_spare: int = 0,
        n_branches: int = 0,
    ) -> None:
        self.n_branches = n_branches if memory == "full" else 0
        self.n_spare, self.row_multiple, self.rounds_prompts = n_spare, row_multiple, False
        self.n_vocab, self.n_ctx, self.n_seq_max = n_vocab, n_ctx, n_seq_max
        self.n_batch = self.n_ubatch = self.n_outputs_max = n_batch
        self.memory, self.cuts_need_checkpoint = memory, memory == "checkpoint"
        self.cuts_anywhere, self.partial_bytes = memory == "full", 10
        self.decode_seconds = 0.0
        self.has_memory = True  # for saving, without waiting
        self.max_rollback = max_rollback if memory == "rollback" else n_ctx
        self.rows = rows or (lambda ids: table_row(ids, n_vocab))
        self.cells: dict[int, list[int]] = {i: [] for i in range(n_seq_max)}
        self.marks: dict[int, list[int]] = {}
        self.can_pad, self.n_decoded = not self.cuts_need_checkpoint and memory != "window", 0
        self.padding = dict.fromkeys(range(n_seq_max), 0)  # cells at the end of each, to be removed
        self.last_rows = dict.fromkeys(range(n_seq_max), 0)  # rows of each sequence in its last decode
        self.widths: list[int] = []
        self.reader: Drafter | None = None  # of the last ids before each row

    def decode(
        self,
        batch: Sequence[BatchRow],
        n_rows: int = 0,
        n_outputs: int = 0,
        branches: Sequence[Sequence[BatchRow]] = (),
        n_apart: int = 0,  # noqa: ARG002
    ) -> NDArray[np.float32]:
        for seq_id, n in self.padding.items():
            if n:
                self.truncate(seq_id, self.n_past(seq_id))
        in_branches = [row for branch in branches for row in branch]
        n_rows_given = len(batch) + len(in_branches)
        assert 0 < n_rows_given <= self.n_batch, "llama.cpp aborts on more tokens than n_batch"
        assert sum(r.output for r in (*batch, *in_branches)) <= self.n_outputs_max
        assert len(branches) <= self.n_branches, f"{len(branches)} branches, not {self.n_branches}"
        room = self.n_ctx + self.n_spare - sum(map(len, self.cells.values()))
        if n_rows_given > room:
            raise NoRoomError
        fills = self.can_pad and (self.memory != "rollback" or len({r.seq_id for r in batch}) == 1)
        wanted = min(n_rows, self.n_batch) if fills else 0
        n_more = wanted - n_rows_given if n_rows_given < wanted <= room else 0
        token, pos, seq_id, _ = batch[-1]
        n_outputs -= sum(r.output for r in (*batch, *in_branches))
        further = [BatchRow(token, pos + 1 + i, seq_id, i < n_outputs) for i in range(n_more)]
        rows = self._evaluate([*batch, *further])[: sum(r.output for r in batch)]
        self._note_rollbacks([*batch, *further])
        self.n_decoded = n_rows_given + n_more
        self.widths.append(self.n_decoded)
        seen = [self.cells[r.seq_id][: r.pos + 1] for r in batch]
        for branch in branches:
            seen += self._seen_by(branch, {r.pos for r in batch if r.seq_id == branch[0].seq_id})
        rows += [self.rows(ids) for ids, r in zip(seen[len(batch) :], in_branches, strict=True) if r.output]
        if self.reader is not None:
            self.reader.features_decoded(batch, np.stack([last_ids(ids) for ids in seen]), branches)
        self.padding[seq_id] = n_more
        if self.memory == "full":  # others are rolled back once, with the rows that are cut anyway
            self.truncate(seq_id, self.n_past(seq_id))
        return np.stack(rows) if rows else np.zeros((0, self.n_vocab), np.float32)

    def decode_image(
        self, seq_id: int, first: int, image: ImageEmbeddings, output: bool
    ) -> NDArray[np.float32]:
        """As one id for each row, by its first two values."""
        self.truncate(seq_id, self.n_past(seq_id))
        cells = self.cells[seq_id]
        assert first == len(cells), f"an image at {first} of sequence {seq_id} follows {len(cells)} cells"
        if self.n_ctx + self.n_spare - sum(map(len, self.cells.values())) < len(image.rows):
            raise NoRoomError
        cells += [FIRST_PLACEHOLDER + (int(high) << 16 | int(low)) for high, low in image.rows[:, :2]]
        self.last_rows, self.n_decoded = dict.fromkeys(self.last_rows, 0), len(image.rows)
        return self.rows(cells)[None] if output else np.zeros((0, self.n_vocab), np.float32)

    def _seen_by(self, branch: Sequence[BatchRow], decoded: Collection[int]) -> list[list[int]]:
        """What each row of a branch sees. decoded: positions of the batch's rows of its sequence."""
        first = branch[0]
        assert first.pos - 1 in decoded, f"a branch at {first.pos} follows no row of the batch"
        assert [r.pos for r in branch] == list(range(first.pos, first.pos + len(branch)))
        ids = self.cells[first.seq_id][: first.pos] + [r.token for r in branch]
        return [ids[: r.pos + 1] for r in branch]

    def _evaluate(self, batch: Sequence[BatchRow]) -> list[NDArray[np.float32]]:
        """Put the rows into the cells; the logits of those with an output."""
        out = []
        for r in batch:
            assert 0 <= r.token < self.n_vocab, f"token {r.token} is not in the vocabulary"
            cells = self.cells[r.seq_id]
            assert r.pos == len(cells), f"position {r.pos} of sequence {r.seq_id} follows {len(cells)} cells"
            cells.append(r.token)
            if r.output:
                out.append(self.rows(cells))
        return out

    def _note_rollbacks(self, batch: Sequence[BatchRow]) -> None:
        """See `specllama.llama.context`: those that the decode ended with can be rolled back."""
        self.last_rows = dict.fromkeys(self.last_rows, 0)
        counts = Counter(r.seq_id for r in batch)
        for seq_id, n in reversed(counts.items()):
            if n != counts[batch[-1].seq_id]:
                break
            self.last_rows[seq_id] = n

    def n_past(self, seq_id: int) -> int:
        return len(self.cells[seq_id]) - self.padding[seq_id]

    def checkpoint(self, seq_id: int) -> None:
        self.marks[seq_id] = list(self.cells[seq_id])

    def truncate(self, seq_id: int, n_past: int) -> int:
        keep = n_past = min(n_past, self.n_past(seq_id))
        self.padding[seq_id] = 0
        cells, back = self.cells[seq_id], len(self.cells[seq_id]) - n_past
        if back <= 0:
            return len(cells)
        if self.memory in ("window", "rollback") and not self.can_truncate(seq_id, n_past):
            keep = 0
        elif self.memory == "checkpoint":
            mark = self.marks.get(seq_id, [])
            keep = len(mark) if len(mark) <= n_past and cells[: len(mark)] == mark else 0
        self.last_rows[seq_id] = 0
        del cells[keep:]
        return keep

    def can_truncate(self, seq_id: int, n_past: int) -> bool:
        most = {"full": self.n_ctx, "window": 8, "checkpoint": 0}
        most["rollback"] = min(self.max_rollback, self.last_rows[seq_id] - 1)
        back = len(self.cells[seq_id]) - n_past
        return back <= 0 or (n_past > 0 and back <= most[self.memory])

    def can_copy(self, seq_id: int, n_past: int) -> bool:
        return self.memory == "full" or n_past == self.n_past(seq_id)

    def copy(self, src: int, dst: int, n_past: int, partial: list[int] | None = None) -> int:
        self.truncate(src, self.n_past(src))
        if self.memory != "full" and n_past != len(self.cells[src]) and partial is None:
            return 0
        assert partial is None or partial == self.cells[src][:n_past], "a partial state of another text"
        self.cells[dst] = self.cells[src][:n_past]
        self.last_rows[src] = self.last_rows[dst] = 0
        self.marks.pop(dst, None)
        return n_past

    def partial_size(self, seq_id: int) -> int:
        return 0 if self.memory == "full" or not self.cells[seq_id] else self.partial_bytes

    def save_partial(self, seq_id: int) -> list[int] | None:
        self.truncate(seq_id, self.n_past(seq_id))
        return list(self.cells[seq_id])

    def restore_partial(self, seq_id: int, n_past: int, partial: list[int]) -> int:
        assert partial == self.cells[seq_id][:n_past], "the attention cells are those of another text"
        return self._put(seq_id, partial)

    def size(self, seq_id: int) -> int:
        return len(self.cells[seq_id])

    def prepare_save(self, seq_id: int) -> bool:
        return self.has_memory or not self.cells[seq_id]

    save = save_partial

    def load(self, seq_id: int, saved: list[int]) -> int:
        self.cells[seq_id] = []
        fits = sum(map(len, self.cells.values())) + len(saved) <= self.n_ctx
        return self._put(seq_id, saved) if fits else 0

    def _put(self, seq_id: int, ids: list[int]) -> int:
        self.cells[seq_id], self.padding[seq_id], self.last_rows[seq_id] = list(ids), 0, 0
        self.marks.pop(seq_id, None)
        return len(ids)


def last_ids(ids: Sequence[int]) -> NDArray[np.float32]:
    """The hidden state after these ids, shape (N_FEATURES,)."""
    return np.array([*[-1] * N_FEATURES, *ids][-N_FEATURES:], np.float32)
