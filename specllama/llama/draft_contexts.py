"""Contexts of draft models whose ids differ from the target's: they decode ids of a space that both share,
and give rows over all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow
from specllama.core.translation import KeptTokens, Translation
from specllama.gguf.header import Header
from specllama.gguf.trimmed import TrimInfo
from specllama.llama.batches import DecodeLimits, EmbeddingBatch, to_floats
from specllama.llama.context import LlamaContext
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel
from specllama.pair.vocab import Overlap

# The context of a trimmed draft model: it decodes the target's ids, and gives rows over all of them.
#
# Tokens that the draft lacks can be in its text though not in its output. llama.cpp takes their embeddings in
# place of ids, so that the draft reads the same text as its source: batches with such tokens are batches of
# embeddings, read from the end of the file. Where the file has none, a token that is kept stands for them.


class Embeddings:
    """Rows of the source's embeddings by the source's ids, from a trimmed file. n_embd: of a row."""

    def __init__(self, header: Header, trim: TrimInfo, kept: KeptTokens) -> None:
        tensor = next(t for t in header.tensors if t.name == "token_embd.weight")
        self.n_embd, self._kept, self._scale = tensor.shape[0], kept, np.float32(trim.scale)
        path = header.parts[0] if header.parts else header.path
        self._files: list[tuple[NDArray[np.uint8], str]] = []
        n_rest = trim.n_vocab - trim.n_kept
        sections = (
            (tensor.offset, tensor.n_bytes, trim.n_kept, tensor.type),
            (trim.rest_offset, trim.rest_bytes, n_rest, trim.rest_type),
        )
        for offset, n_bytes, n, kind in sections:
            mapped = np.memmap(path, np.uint8, "r", offset, (n, n_bytes // max(n, 1))) if n else None
            self._files.append((mapped if mapped is not None else np.zeros((0, 0), np.uint8), kind))
        self._rest = np.cumsum(kept.own < 0) - 1  # index of each other token among them

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The embeddings of tokens as the first layer reads them, shape (len(tokens), n_embd)."""
        ids = np.asarray(tokens, np.int64)
        own = self._kept.own[ids]
        embeddings = np.empty((len(ids), self.n_embd), np.float32)
        for lacking, (file, kind) in zip((False, True), self._files, strict=True):
            at = (own < 0) == lacking
            if at.any():
                index = self._rest[ids[at]] if lacking else own[at]
                embeddings[at] = to_floats(np.asarray(file[index]), kind, self.n_embd)
        return embeddings * self._scale


class MappedContext(LlamaContext):
    """A LlamaContext whose rows have ids and logits of a larger vocabulary than the model's, that of `kept`.
    size: n_ctx, n_seq_max and n_outputs_max.
    """

    def __init__(self, model: LlamaModel, kept: KeptTokens, *size: int, width: int = 0) -> None:
        super().__init__(model, *size)
        self.kept, self.n_vocab = kept, kept.n_vocab
        self._whole = DecodeLimits(self.n_batch, self.n_outputs_max, self.n_vocab, self.n_seq_max, width)

    def random_token(self) -> int:
        return int(self.kept.ids[super().random_token()])

    def decode(self, batch: Sequence[BatchRow], *more: Any, **named: Any) -> NDArray[np.float32]:
        return self.kept.spread(super().decode(batch, *more, **named))

    def _fill(
        self, batch: Sequence[BatchRow], n_real: int, shared: Mapping[int, Sequence[int]] | None = None
    ) -> int:
        """As in LlamaContext, from rows with ids of the larger vocabulary. Raises LimitError for others."""
        tokens = [row.token for row in batch]
        self._whole.check_tokens(min(tokens), max(tokens))
        own = self.kept.own_ids(tokens)
        rows = [row._replace(token=i) for row, i in zip(batch, own, strict=True)]
        return super()._fill(rows, n_real, shared)


class TrimmedContext(MappedContext):
    """A context over a trimmed draft model. header, trim: of the model's file. stand_in: see KeptTokens."""

    def __init__(
        self, model: LlamaModel, header: Header, trim: TrimInfo, stand_in: Callable[[int], int], *size: int
    ) -> None:
        kept, width = KeptTokens(trim.ids, trim.n_vocab, stand_in), llama.llama_model_n_embd_inp(model.handle)
        super().__init__(model, kept, *size, width=int(width))
        self._embeddings = Embeddings(header, trim, kept) if trim.rest_offset else None

    def _fill(
        self, batch: Sequence[BatchRow], n_real: int, shared: Mapping[int, Sequence[int]] | None = None
    ) -> int:
        tokens = [row.token for row in batch]
        self._whole.check_tokens(min(tokens), max(tokens))
        if self._embeddings is None or self.kept.has_all(tokens):
            self._batch = self._tokens
            return super()._fill(batch, n_real, shared)
        hidden = np.zeros((len(batch), self._whole.width), np.float32)
        hidden[:, : self._embeddings.n_embd] = self._embeddings.rows(tokens)
        row_specs = [(row.pos, row.seq_id, row.output) for row in batch]
        self._batch = EmbeddingBatch(self._whole, row_specs, None, hidden)
        return sum(row.output for row in batch[:n_real])


# The context of a draft model with another vocabulary than its target's: its ids and rows are those of the
# space that both share (core/translation.py). The tokenizers of both.


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


class ForeignContext(MappedContext):
    """A context over a draft model of another vocabulary."""

    def __init__(self, model: LlamaModel, between: Translation, *size: int) -> None:
        super().__init__(model, between.ids, *size)
        self.translation = between

    def decode(self, batch: Sequence[BatchRow], *more: Any, **named: Any) -> NDArray[np.float32]:
        rows = super().decode(batch, *more, **named)
        rows[:, self.translation.never_drafted] = -np.inf
        return rows
