"""The context of a block drafter (DFlash, DFlash 2, DSpark): the target's features are put into its cache,
and one decode drafts a block of tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specllama.core.blocks import BlockLattice, BlockRows, DraftedBlock
from specllama.core.head_interfaces import Hidden
from specllama.core.interfaces import DecodeError, NoRoomError
from specllama.errors import ResourceError
from specllama.llama.context import LlamaContext
from specllama.llama.decode_limits import DecodeLimits
from specllama.llama.embedding_batch import FLOATS, EmbeddingBatch
from specllama.llama.heads.context import head_context
from specllama.llama.heads.functions import nextn_rows, rows_at, set_nextn
from specllama.llama.library import llama
from specllama.llama.log import log
from specllama.llama.logits import get_logits
from specllama.llama.model import LlamaModel


class BlockContext:
    """Implements core.head_interfaces.BlockHead, which documents the methods.

    n_draft: tokens of a block. anchored: the row of the last token drafts the first of them; else the row
    after it does. causal: rows of a block see those before them only. mask_id: the token of the rows after
    the first. n_features: values of a row of the target's features. top_k: candidates that its selector has
    for each token; 0: it has none, and gives logits. Raises ResourceError if memory runs out, or a block does
    not fit into a physical batch.
    """

    def __init__(
        self,
        model: LlamaModel,
        target: LlamaContext,
        n_ctx: int,
        *,
        n_draft: int,
        anchored: bool,
        causal: bool,
        mask_id: int,
        n_features: int,
        top_k: int = 0,
    ) -> None:
        self.n_draft, self._mask, self._top_k = n_draft, mask_id, top_k
        self._n_rows = n_draft if anchored else n_draft + 1
        self.handle = head_context(model, target, n_ctx, nextn_layers=False)
        self.memory = llama.llama_get_memory(self.handle)
        self.n_ctx = int(llama.llama_n_ctx(self.handle))
        self.n_batch = int(llama.llama_n_ubatch(self.handle))
        self.n_vocab, self.n_seq_max, self.n_features = model.n_vocab, target.n_seq_max, n_features
        # llama.cpp's graphs want blocks whole.
        self._n_blocks = min(self.n_batch, target.n_outputs_max) // self._n_rows
        if not self._n_blocks:
            self.close()
            raise ResourceError(f"a block of {self._n_rows} rows does not fit into a physical batch")
        self._n_embd = int(llama.llama_model_n_embd(model.handle))
        self._limits = DecodeLimits(
            self.n_batch, target.n_outputs_max, self.n_vocab, self.n_seq_max, width=n_features
        )
        if top_k:
            set_nextn(self.handle)
        llama.llama_set_causal_attn(self.handle, causal)

    def inject(self, seq_id: int, first: int, features: Hidden) -> None:
        for at in range(0, len(features), self.n_batch):
            part = features[at : at + self.n_batch]
            row_specs = [(first + at + i, seq_id, False) for i in range(len(part))]
            self._decode(EmbeddingBatch(self._limits, row_specs, None, part))
            llama.llama_synchronize(self.handle)

    def draft(self, last: Mapping[int, tuple[int, int]]) -> dict[int, DraftedBlock]:
        blocks: dict[int, DraftedBlock] = {}
        seqs = list(last)
        for at in range(0, len(seqs), self._n_blocks):
            blocks.update(self._draft({seq: last[seq] for seq in seqs[at : at + self._n_blocks]}))
        return blocks

    def _draft(self, last: Mapping[int, tuple[int, int]]) -> dict[int, DraftedBlock]:
        """The blocks of as many sequences as fit into a physical batch."""
        n, outputs = self._n_rows, not self._top_k
        row_specs = [(pos + i, seq, outputs) for seq, (_, pos) in last.items() for i in range(n)]
        tokens = [token if i == 0 else self._mask for token, _ in last.values() for i in range(n)]
        self._decode(EmbeddingBatch(self._limits, row_specs, tokens, None))
        if self._top_k:
            width, address = self._n_embd, nextn_rows(self.handle)
        else:
            width, address = self.n_vocab, ctypes.cast(get_logits(self.handle), FLOATS)
        rows = rows_at(address, len(row_specs), width).reshape(len(last), n, width)
        blocks = {seq: self._block(rows[i, n - self.n_draft :]) for i, seq in enumerate(last)}
        for seq, (_, pos) in last.items():
            self.truncate(seq, pos)
        return blocks

    def _block(self, rows: NDArray[np.float32]) -> DraftedBlock:
        """A block of its rows of logits, or of what a selector gives: k ids, and k × k scores."""
        k = self._top_k
        if not k:
            return BlockRows(rows.copy())
        scores = rows[:, k : k + k * k].reshape(len(rows), k, k).copy()
        return BlockLattice(rows[:, :k].astype(np.int32), scores, self.n_vocab)

    def truncate(self, seq_id: int, pos: int) -> None:
        self._limits.check_seqs(seq_id, seq_id)
        llama.llama_memory_seq_rm(self.memory, seq_id, pos, -1)

    def close(self) -> None:
        """Free the cache."""
        if self.handle:
            llama.llama_free(self.handle)
            self.handle = None

    def _decode(self, batch: EmbeddingBatch) -> None:
        result = llama.llama_decode(self.handle, batch.batch)
        if result == 1:
            raise NoRoomError
        if result != 0:
            raise DecodeError(f"llama_decode of the head returned {result}: {log.reason()}")
