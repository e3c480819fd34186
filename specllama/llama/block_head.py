"""The context of a block drafter (DFlash, DSpark): the target's features are put into its cache, and one
decode drafts a block of tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specllama.core.heads import Hidden
from specllama.core.interfaces import DecodeError, NoRoomError
from specllama.llama.context import LlamaContext, get_logits
from specllama.llama.heads import HeadBatch, head_context, rows_at
from specllama.llama.library import llama
from specllama.llama.log import log
from specllama.llama.model import LlamaModel


class BlockContext:
    """Implements core.heads.BlockHead, which documents the methods.

    n_draft: tokens of a block. anchored: the row of the last token drafts the first of them; else the row
    after it does. causal: rows of a block see those before them only. mask_id: the token of the rows after
    the first. n_features: values of a row of the target's features. Raises ResourceError if memory runs out.
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
    ) -> None:
        self.n_draft, self._anchored, self._mask = n_draft, anchored, mask_id
        self.handle = head_context(model, target, n_ctx, mtp=False)
        self.memory = llama.llama_get_memory(self.handle)
        self.n_ctx = int(llama.llama_n_ctx(self.handle))
        self.n_batch = int(llama.llama_n_ubatch(self.handle))
        self.n_vocab, self.n_seq_max, self.n_features = model.n_vocab, target.n_seq_max, n_features
        llama.llama_set_causal_attn(self.handle, causal)

    def inject(self, seq_id: int, first: int, features: Hidden) -> None:
        for at in range(0, len(features), self.n_batch):
            part = features[at : at + self.n_batch]
            places = [(first + at + i, seq_id, False) for i in range(len(part))]
            self._decode(HeadBatch(places, None, part))
            llama.llama_synchronize(self.handle)

    def draft(self, last: Mapping[int, tuple[int, int]]) -> dict[int, NDArray[np.float32]]:
        n = self.n_draft if self._anchored else self.n_draft + 1
        places = [(pos + i, seq, True) for seq, (_, pos) in last.items() for i in range(n)]
        tokens = [token if i == 0 else self._mask for token, _ in last.values() for i in range(n)]
        self._decode(HeadBatch(places, tokens, None))
        address = get_logits(self.handle)
        if not address:
            raise DecodeError("llama.cpp gave no logits of the head")
        floats = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        rows = rows_at(floats, len(places), self.n_vocab).reshape(len(last), n, self.n_vocab)
        for seq, (_, pos) in last.items():
            self.truncate(seq, pos)
        return {seq: rows[i, n - self.n_draft :].copy() for i, seq in enumerate(last)}

    def truncate(self, seq_id: int, pos: int) -> None:
        llama.llama_memory_seq_rm(self.memory, seq_id, pos, -1)

    def close(self) -> None:
        """Free the cache."""
        if self.handle:
            llama.llama_free(self.handle)
            self.handle = None

    def _decode(self, batch: HeadBatch) -> None:
        result = llama.llama_decode(self.handle, batch.batch)
        if result == 1:
            raise NoRoomError
        if result != 0:
            raise DecodeError(f"llama_decode of the head returned {result}: {log.reason()}")
