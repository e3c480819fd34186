"""A trimmed head with a tokenizer of its own, as one with the target's ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.head_interfaces import DraftHead, HeadRow, Hidden
from specllama.core.kept_tokens import KeptTokens


class TrimmedHead:
    """A `DraftHead` over a trimmed one: rows have the target's ids, logits all of them."""

    def __init__(self, head: DraftHead, kept: KeptTokens) -> None:
        self._head, self._kept = head, kept
        self.n_ctx, self.n_batch, self.n_seq_max = head.n_ctx, head.n_batch, head.n_seq_max
        self.n_features, self.lag, self.reads_target = head.n_features, head.lag, head.reads_target
        self.n_vocab = kept.n_vocab
        self.following: Sequence[DraftHead] = [TrimmedHead(one, kept) for one in head.following]

    def hidden(self, seq_id: int, features: Hidden) -> Hidden:
        return self._head.hidden(seq_id, features)

    def decode(self, rows: Sequence[HeadRow], n_rows: int = 0) -> tuple[NDArray[np.float32], Hidden]:
        own = self._kept.own_ids(row.token for row in rows)
        mapped = [row._replace(token=i) for row, i in zip(rows, own, strict=True)]
        logits, hidden = self._head.decode(mapped, n_rows)
        return self._kept.spread(logits), hidden

    def truncate(self, seq_id: int, pos: int) -> None:
        self._head.truncate(seq_id, pos)
