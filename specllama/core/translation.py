"""Between the tokens of a draft model and those of a target with another vocabulary, by way of their
bytes.

A draft's tokens have ids of one space with the target's: those that the target has too have the
target's id, all others have ids from the target's number of tokens on. Where the draft's rows are
spread over this space, the sampler's noise, biases and penalties of shared tokens are the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# The tokens of a trimmed vocabulary, and rows of logits over the whole one.
#
# A trimmed draft has fewer tokens than its target, under other ids. Where its rows are spread over the whole
# vocabulary, with minus infinity for the tokens that it lacks, all else works with the target's ids: the
# sampler's noise, biases and penalties, grammars, caches and statistics.


class KeptTokens:
    """Maps between own ids, from 0 to len(ids) - 1, and those of the whole vocabulary of n_vocab tokens.

    ids: the whole vocabulary's id of each own token, ascending. own: the own id of each token of the whole
    vocabulary, -1 for those that are lacking; shape (n_vocab,). stand_in: the own token that stands for a
    lacking one in a text.
    """

    def __init__(self, ids: NDArray[np.int64], n_vocab: int, stand_in: Callable[[int], int]) -> None:
        self.ids, self.n_vocab = ids, n_vocab
        self.own = np.full(n_vocab, -1, np.int64)
        self.own[ids] = np.arange(len(ids))
        self._stand_in = stand_in
        self._rows = np.zeros((0, n_vocab), np.float32)

    def has_all(self, tokens: Iterable[int]) -> bool:
        """Whether none of these tokens is lacking."""
        return all(self.own[token] >= 0 for token in tokens)

    def own_ids(self, tokens: Iterable[int]) -> list[int]:
        """The own ids of tokens of a text, stand-ins for those that are lacking."""
        pairs = ((token, int(self.own[token])) for token in tokens)
        return [own if own >= 0 else self._stand_in(token) for token, own in pairs]

    def spread(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows over the whole vocabulary, shape (n, n_vocab), of rows of own tokens. A view, valid until the
        next call.
        """
        n = len(rows)
        if n > len(self._rows):
            self._rows = np.full((n, self.n_vocab), -np.inf, np.float32)
        whole = self._rows[:n]
        for row, own in zip(whole, rows, strict=True):  # faster than with both dimensions at once
            row[self.ids] = own
        return whole


class Speller(Protocol):
    """The tokenizer of a model."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token, empty for a control token."""

    def spelt(self, token: int) -> bytes:
        """The bytes of a token, of a control token those of its name."""

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text that follows another one, none of them a control token."""

    def byte(self, value: int) -> int | None:
        """The token of a byte, None without one."""


@dataclass(frozen=True, eq=False)
class Translation:
    """target, draft: the tokenizers. n_target: tokens of the target; ids from there on are the draft's alone.
    ids: from the draft's own ids to the shared space; never_drafted: ids in it that are not drafted.
    may_grow: by the target's id, whether the text of a token is the beginning of a token that the draft
    lacks.
    """

    target: Speller
    draft: Speller
    n_target: int
    ids: KeptTokens
    never_drafted: NDArray[np.int64]
    may_grow: NDArray[np.bool_]

    def piece(self, token: int) -> bytes:
        """The bytes of a token of the draft, by its id in the shared space; empty for a control token."""
        return self.draft.piece(int(self.ids.own[token]))

    def drafted(self, data: bytes) -> list[int]:
        """The draft's tokens of a text, by their ids in the shared space. Bytes for which it has no token are
        left out.
        """
        return [int(self.ids.ids[token]) for token in _tokens(self.draft, data)]

    def read(self, tokens: list[int]) -> list[int]:
        """As `drafted`, for a text of the target. Control tokens that the draft lacks are read as their
        names.
        """
        draft_ids: list[int] = []
        data = b""
        for token in tokens:
            if piece := self.target.piece(token):
                data += piece
            elif self.ids.own[token] >= 0:
                draft_ids += [*self.drafted(data), token]
                data = b""
            else:
                data += self.target.spelt(token)
        return [*draft_ids, *self.drafted(data)]


def whole_characters(data: bytes) -> int:
    """Bytes before an incomplete character at the end."""
    for n in range(1, min(4, len(data) + 1)):
        byte = data[-n]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - n if length > n else len(data)
        if byte < 0x80:
            break
    return len(data)


def _tokens(speller: Speller, data: bytes) -> Iterator[int]:
    while data:
        try:
            yield from speller.tokenize(data.decode())
            return
        except UnicodeDecodeError as error:
            yield from speller.tokenize(data[: error.start].decode())
            values = (speller.byte(value) for value in data[error.start : error.end])
            yield from (token for token in values if token is not None)
            data = data[error.end :]
