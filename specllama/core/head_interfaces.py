"""The interface of trained heads: small networks that draft from hidden states of the target.

The drafters know only these; llama/heads implements them with llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow, Drafter

# What a head that drafts a block at once says about the tokens of the block.


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


Hidden = NDArray[np.float32]  # hidden states, one per row


class HeadRow(NamedTuple):
    """One row of a head's decode: a token and the hidden state that it is paired with, shape (n_embd,).

    output: whether to return logits and hidden state of the row.
    """

    token: int
    pos: int
    seq_id: int
    hidden: Hidden
    output: bool


class FeatureReader(Protocol):
    """Receives what the target computed, as drafters do that have `reads_features`."""

    def features_decoded(
        self, batch: Sequence[BatchRow], features: Hidden, branches: Sequence[Sequence[BatchRow]] = ()
    ) -> None:
        """The target decoded these rows, then those of branches; `features`, shape (number of all rows,
        n_features), is valid until the call returns.
        """
        ...


def is_feature_reader(drafter: Drafter) -> TypeGuard[FeatureReader]:
    """Whether a drafter receives what the target computed."""
    return drafter.reads_features


class DraftHead(Protocol):
    """A trained head with a cache of its own.

    Its row for token i of a text pairs the token with the target's features of token i - 1; later rows of a
    draft take the head's own hidden state instead, or that of the head that drafted the token before.
    """

    n_ctx: int  # tokens; one pool shared by all sequences
    n_batch: int  # most rows of one decode
    n_vocab: int
    n_seq_max: int
    n_features: int  # width of the target's features
    lag: int  # positions in its cache are those of the text minus this
    reads_target: bool  # it reads the target's cache and keeps none: all rows of a draft have one position

    @property
    def following(self) -> Sequence[DraftHead]:
        """Heads that draft the second token of a draft, the third and so on, each with a cache of its own;
        the last one drafts all further tokens. Empty where this head drafts all.
        """
        ...

    def hidden(self, seq_id: int, features: Hidden) -> Hidden:
        """The hidden states for features of consecutive tokens, shape (n, n_embd). Raises DecodeError."""
        ...

    def decode(self, rows: Sequence[HeadRow], n_rows: int = 0) -> tuple[NDArray[np.float32], Hidden]:
        """Logits, shape (n_outputs, n_vocab), and hidden states, shape (n_outputs, n_embd), of the rows with
        `output`. Logits are a view, valid until the next call. n_rows: the decode is filled up to so many,
        where there is room. Raises NoRoomError, DecodeError.
        """
        ...

    def truncate(self, seq_id: int, pos: int) -> None:
        """Remove the cells at and after a position; does nothing where the cache is the target's."""
        ...


@runtime_checkable
class BlockHead(Protocol):
    """A head that drafts a whole block of tokens in one decode, from the target's features in its cache."""

    n_ctx: int  # tokens; one pool shared by all sequences
    n_vocab: int
    n_seq_max: int
    n_features: int  # width of the target's features
    n_draft: int  # tokens of a block

    def inject(self, seq_id: int, first: int, features: Hidden) -> None:
        """Put the features of the tokens at positions `first` and after into the cache, shape (n,
        n_features). Raises NoRoomError, DecodeError.
        """
        ...

    def draft(self, last: Mapping[int, tuple[int, int]]) -> dict[int, DraftedBlock]:
        """The block of `n_draft` tokens after the last one of each sequence; the cache stays as it was. last:
        id and position, by sequence. Raises NoRoomError, DecodeError.
        """
        ...

    def truncate(self, seq_id: int, pos: int) -> None:
        """Remove the cells at and after a position."""
        ...
