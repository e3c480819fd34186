"""The context of a draft model with another vocabulary than its target's: its ids and rows are those of the
space that both share (core/translation.py). The tokenizers of both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow
from specllama.core.kept_tokens import KeptTokens
from specllama.core.translation import Translation
from specllama.llama.context import LlamaContext
from specllama.llama.decode_limits import DecodeLimits
from specllama.llama.model import LlamaModel
from specllama.pair.vocab import Overlap


class ModelSpeller:
    """Implements core.translation.Speller with the vocabulary of a model."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.piece = model.piece

    def spelt(self, token: int) -> bytes:
        return self._model.piece(token) or self._model.token_text(token).encode()

    def tokenize(self, text: str) -> list[int]:
        """Some tokenizers put a space before a text: here the text follows a line end, whose tokens are
        removed.
        """
        before = self._line_end
        if not before:
            return self._model.tokenize(text, False, False)
        ids = self._model.tokenize(f"\n{text}", False, False)
        return ids[len(before) :] if ids[: len(before)] == before else ids

    def byte(self, value: int) -> int | None:
        return self._bytes.get(bytes([value]))

    @functools.cached_property
    def _line_end(self) -> list[int]:
        """The tokens of a line end with what the tokenizer puts before it; none if it puts nothing there."""
        text = b"".join(map(self._model.piece, self._model.tokenize("a", False, False)))
        return [] if text == b"a" else self._model.tokenize("\n", False, False)

    @functools.cached_property
    def _bytes(self) -> dict[bytes, int]:
        pieces = ((self._model.piece(token), token) for token in range(self._model.n_vocab))
        return {piece: token for piece, token in pieces if len(piece) == 1}


def translation(target: LlamaModel, draft: LlamaModel, overlap: Overlap) -> Translation:
    """The translation between two models. overlap: of their vocabularies."""
    ids = overlap.to_target.copy()
    lacking = np.flatnonzero(ids < 0)
    n_target = target.n_vocab
    ids[lacking] = n_target + np.arange(len(lacking))
    return Translation(
        ModelSpeller(target),
        ModelSpeller(draft),
        n_target,
        KeptTokens(ids, n_target + len(lacking), lambda _token: 0),
        ids[overlap.never_drafted],
        overlap.may_grow,
    )


class ForeignContext(LlamaContext):
    """A LlamaContext over a draft model of another vocabulary."""

    def __init__(
        self, model: LlamaModel, between: Translation, n_ctx: int, n_seq_max: int = 1, n_outputs_max: int = 64
    ) -> None:
        super().__init__(model, n_ctx, n_seq_max, n_outputs_max)
        self.translation = between
        self.n_vocab = between.ids.n_vocab
        self._shared = DecodeLimits(self.n_batch, self.n_outputs_max, self.n_vocab, n_seq_max)

    @property
    def any_token(self) -> int:
        return int(self.translation.ids.ids[super().any_token])

    def decode(self, batch: Sequence[BatchRow], *more: Any, **named: Any) -> NDArray[np.float32]:
        rows = self.translation.ids.spread(super().decode(batch, *more, **named))
        rows[:, self.translation.never_drafted] = -np.inf
        return rows

    def _fill(
        self, batch: Sequence[BatchRow], n_real: int, shared: Mapping[int, Sequence[int]] | None = None
    ) -> int:
        """As in LlamaContext, from rows with ids of the shared space. Raises ValueError for others."""
        tokens = [row.token for row in batch]
        self._shared.check_tokens(min(tokens), max(tokens))
        own = self.translation.ids.own_ids(tokens)
        rows = [row._replace(token=i) for row, i in zip(batch, own, strict=True)]
        return super()._fill(rows, n_real, shared)
