"""The tokens of a trimmed vocabulary, and rows of logits over the whole one.

A trimmed draft has fewer tokens than its target, under other ids. Where its rows are spread over the whole
vocabulary, with minus infinity for the tokens that it lacks, all else works with the target's ids: the
sampler's noise, biases and penalties, grammars, caches and statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray


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
