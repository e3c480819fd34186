"""What a head that drafts a block at once says about the tokens of the block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class DraftedBlock(Protocol):
    """The block that follows a text."""

    def logits(self, draft: Sequence[int]) -> Logits | None:
        """Logits of the token after these tokens of the block, shape (n_vocab,); None where the block says
        nothing about it.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """Logits of each token, whatever those before it are. rows: shape (n, n_vocab)."""

    rows: Logits

    def logits(self, draft: Sequence[int]) -> Logits | None:
        return self.rows[len(draft)] if len(draft) < len(self.rows) else None


@dataclass(frozen=True, slots=True, eq=False)
class BlockLattice:
    """A few candidates for each token, with scores that depend on the candidate before (DFlash 2).

    ids: the candidates of each token, shape (n, k). scores: of each candidate after each one of the token
    before, shape (n, k, k); those of the first token are the same for all.
    """

    ids: NDArray[np.int32]
    scores: Logits
    n_vocab: int

    def logits(self, draft: Sequence[int]) -> Logits | None:
        n, before = len(draft), 0
        if n >= len(self.ids):
            return None
        if n:
            candidates = np.flatnonzero(self.ids[n - 1] == draft[-1])
            if not len(candidates):
                return None
            before = int(candidates[0])
        row = np.full(self.n_vocab, -np.inf, np.float32)
        row[self.ids[n]] = self.scores[n, before]
        return row
