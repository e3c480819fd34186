"""A head that knows the function of a `TableContext`; a mask and a drafter that are given by functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Drafter, HeadRow, Hidden, Mask, Proposal, Sampler
from specllama.drafters import REGISTRY
from specllama.testing import N_FEATURES, last_ids, table_row


class TableHead:
    """A head that knows the function of a `TableContext`: its hidden states are the last ids, so it is right
    wherever those of the target were the right ones. Asserts positions. n_rows: rows evaluated so far.
    """

    def __init__(
        self,
        n_vocab: int = 32,
        n_ctx: int = 256,
        n_seq_max: int = 1,
        lag: int = 0,
        reads_target: bool = False,
    ) -> None:
        self.n_vocab, self.n_ctx, self.n_batch, self.n_seq_max = n_vocab, n_ctx, 16, n_seq_max
        self.n_features, self.lag, self.reads_target = N_FEATURES, lag, reads_target
        self.following: Sequence[TableHead] = ()
        self.positions: dict[int, list[int]] = {i: [] for i in range(n_seq_max)}
        self.n_rows = 0

    def hidden(self, seq_id: int, features: Hidden) -> Hidden:  # noqa: ARG002
        return features.copy()

    def decode(self, rows: Sequence[HeadRow], n_rows: int = 0) -> tuple[NDArray[np.float32], Hidden]:  # noqa: ARG002
        assert 0 < len(rows) <= self.n_batch, "llama.cpp aborts on more rows than n_batch"
        logits, hidden = [np.zeros((0, self.n_vocab), np.float32)], [np.zeros((0, N_FEATURES), np.float32)]
        for row in rows:
            at = self.positions[row.seq_id]
            assert self.reads_target or not at or row.pos == at[-1] + 1, f"{row.pos} follows {at[-1:]}"
            at.append(row.pos)
            ids = [int(i) for i in row.hidden if i >= 0] + [row.token]
            if row.output:
                logits.append(table_row(ids, self.n_vocab)[None])
                hidden.append(last_ids(ids)[None])
        self.n_rows += len(rows)
        return np.concatenate(logits), np.concatenate(hidden)

    def truncate(self, seq_id: int, pos: int) -> None:
        self.positions[seq_id] = [p for p in self.positions[seq_id] if p < pos]


class TableMask:
    """A grammar given by a function; see `interfaces.Mask`.

    legal_after: from the output so far to the legal next ids. A forced run continues while there is exactly
    one legal id, up to 8 ids.
    """

    def __init__(self, n_vocab: int, legal_after: Callable[[Sequence[int]], Collection[int]]) -> None:
        self.n_vocab, self.legal_after = n_vocab, legal_after
        self.output: list[int] = []

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        return self.legal(ahead) == len(ahead) and token in self.legal_after([*self.output, *ahead])

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        allowed = np.zeros(self.n_vocab, np.bool_)
        if self.legal(ahead) == len(ahead):
            allowed[list(self.legal_after([*self.output, *ahead]))] = True
        return allowed

    def legal(self, tokens: Sequence[int]) -> int:
        for i, token in enumerate(tokens):
            if token not in self.legal_after([*self.output, *tokens[:i]]):
                return i
        return len(tokens)

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        run: list[int] = []
        while len(run) < 8 and len(only := list(self.legal_after([*self.output, *ahead, *run]))) == 1:
            run += only
        return run

    def accept(self, token: int) -> None:
        assert token in self.legal_after(self.output), f"token {token} is not legal after {self.output}"
        self.output.append(token)


class ScriptedDrafter(Drafter):
    """A drafter given by a function.

    guess: from (ids of the sequence, tokens drafted so far) to the next token, or None.
    """

    def __init__(
        self,
        guess: Callable[[Sequence[int], Sequence[int]], int | None],
        name: str = "model",
        confidence: float = 0.9,
        continues: bool = True,
    ) -> None:
        entry = REGISTRY.get(name)
        if entry is not None:
            self.runs_model, self.forces = entry.runs_model, entry.forces
            self.prior, self.n_positions = entry.prior, entry.n_positions
        self.name, self.continues = name, continues
        self.guess, self.confidence = guess, confidence
        self.histories: dict[int, list[int]] = {}

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:  # noqa: ARG002
        self.histories[seq_id] = list(prompt)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        tokens = {seq: self.guess(self.histories[seq], draft) for seq, draft in drafts.items()}
        return {seq: Proposal(token, self.confidence) for seq, token in tokens.items() if token is not None}

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.histories[seq_id].extend(tokens)

    def forget(self, seq_id: int) -> None:
        self.histories.pop(seq_id, None)
