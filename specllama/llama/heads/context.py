"""The context of a head that drafts token by token: its cache, and decodes in it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.head_interfaces import HeadRow, Hidden
from specllama.core.interfaces import DecodeError, NoRoomError
from specllama.errors import ResourceError
from specllama.llama.context_params import context_params
from specllama.llama.decode_limits import DecodeLimits
from specllama.llama.embedding_batch import FLOATS, EmbeddingBatch
from specllama.llama.heads.functions import ext, rows_at
from specllama.llama.heads.host import HeadHost
from specllama.llama.library import llama
from specllama.llama.log import log
from specllama.llama.logits import get_logits
from specllama.llama.model import LlamaModel


def head_context(model: LlamaModel, target: HeadHost, n_ctx: int, *, nextn_layers: bool) -> Any:
    """A llama_context for a head of the target. nextn_layers: llama.cpp runs it as layers for multi-token
    prediction. Raises ResourceError if memory runs out.
    """
    own, of_target = model.settings, target.model.settings
    params = context_params(own, n_ctx, target.n_seq_max, target.n_outputs_max, 0)
    if (own.n_threads, own.n_threads_batch) == (of_target.n_threads, of_target.n_threads_batch):
        params.n_threads, params.n_threads_batch = target.n_threads, target.n_threads_batch  # as tuned
    # The rows of the longest draft must fit into one physical batch.
    params.n_ubatch = max(params.n_ubatch, min(params.n_batch, params.n_outputs_max))
    params.swa_full, params.ctx_other = True, target.handle
    if nextn_layers:
        params.ctx_type = llama.LLAMA_CONTEXT_TYPE_MTP
    log.clear()
    handle = llama.llama_init_from_model(model.handle, params)
    if not handle:
        raise ResourceError(f"llama.cpp cannot make a context for the head: {log.reason()}")
    return handle


class HeadContext:
    """The cache of a head and decodes in it; implements `DraftHead`, which documents the methods.

    model: the head's file, or the target's own model, loaded with its head. target: the context of the
    target, whose embeddings, output matrix or cache the head may use. encodes: an encoder turns features into
    hidden states, else llama.cpp runs the head as layers for multi-token prediction. reads_target: it has no
    cache of its own. n_features: values of a row of the target's features. n_layer: layers of which each
    drafts the token of its place, each in a context of its own, as llama.cpp keeps one set of cells for all;
    layer: the one of this context. Raises ResourceError if memory runs out.
    """

    def __init__(
        self,
        model: LlamaModel,
        target: HeadHost,
        n_ctx: int,
        *,
        encodes: bool,
        n_features: int,
        reads_target: bool = False,
        n_layer: int = 1,
        layer: int = 0,
    ) -> None:
        self.model, self.reads_target, self._encodes = model, reads_target, encodes
        self.n_seq_max, self.lag = target.n_seq_max, int(encodes)
        self.handle = head_context(model, target, n_ctx, nextn_layers=not encodes)
        self.memory = llama.llama_get_memory(self.handle)
        self.n_ctx = int(llama.llama_n_ctx(self.handle))
        # An encoder's batch must fit into one physical batch.
        self.n_batch = min(int(llama.llama_n_ubatch(self.handle)), target.n_outputs_max)
        self.n_vocab, self.n_features = model.n_vocab, n_features
        self._n_embd = int(llama.llama_model_n_embd(model.handle))
        self._n_hidden = self._n_embd if encodes else int(llama.llama_model_n_embd_out(model.handle))
        self._all_rows = False
        shared = self.n_batch, target.n_outputs_max, self.n_vocab, self.n_seq_max
        self._limits = DecodeLimits(*shared, width=self._n_hidden)
        self._encoding = DecodeLimits(*shared, width=n_features)
        ext.set_nextn(self.handle, True, True)
        self.following: list[HeadContext] = []
        if layer:
            ext.set_offset(self.handle, layer)
        try:
            if not (encodes or reads_target) and self._gives_all_rows():
                self._all_rows = True
                ext.set_nextn(self.handle, True, False)
            for i in range(layer + 1, n_layer if not layer else 0):
                self.following.append(
                    HeadContext(model, target, n_ctx, encodes=encodes, n_features=n_features, layer=i)
                )
        except (ResourceError, DecodeError):
            self.close()
            raise

    def _gives_all_rows(self) -> bool:
        """Whether the graph's hidden states are those of all rows of a decode, so that of rows with an output
        not the right ones would be returned: some of llama.cpp's graphs set t_h_nextn before they leave rows
        out, some after.
        """
        rng = np.random.default_rng(0)
        rows = [
            HeadRow(i, i, 0, rng.normal(size=self.n_features).astype(np.float32), False) for i in range(2)
        ]
        outputs = []
        for first in (False, True):
            outputs.append(self.decode([rows[0]._replace(output=first), rows[1]._replace(output=True)])[1])
            self.truncate(0, 0)
        (last,), both = outputs
        return bool(np.abs(last - both[0]).max() < np.abs(last - both[1]).max())

    def hidden(self, seq_id: int, features: Hidden) -> Hidden:
        self._limits.check_seqs(seq_id, seq_id)
        if not self._encodes:
            return features
        states, first = [], int(llama.llama_memory_seq_pos_max(self.memory, seq_id)) + 1
        for at in range(0, len(features), self.n_batch):
            part = features[at : at + self.n_batch]
            batch = EmbeddingBatch(
                self._encoding, [(first + i, seq_id, True) for i in range(len(part))], None, part
            )
            result = llama.llama_encode(self.handle, batch.batch)
            if result != 0:
                raise DecodeError(f"llama_encode of the head returned {result}: {log.reason()}")
            llama.llama_synchronize(self.handle)
            states.append(rows_at(ext.get_nextn(self.handle), len(part), self._n_embd).copy())
        return states[0] if len(states) == 1 else np.concatenate(states)

    def decode(self, rows: Sequence[HeadRow], n_rows: int = 0) -> tuple[NDArray[np.float32], Hidden]:
        if n_rows > len(rows):
            last, n = rows[-1], min(n_rows, self.n_batch) - len(rows)
            further = [last._replace(pos=self._after(last.pos, i), output=False) for i in range(n)]
            try:
                return self._decode([*rows, *further])
            except NoRoomError:  # there is room for the rows alone, perhaps
                pass
            finally:
                self.truncate(last.seq_id, last.pos + 1)
        return self._decode(rows)

    def _after(self, pos: int, i: int) -> int:
        """The position of the row i places after the next one."""
        return pos if self.reads_target else pos + 1 + i

    def _decode(self, rows: Sequence[HeadRow]) -> tuple[NDArray[np.float32], Hidden]:
        outputs = [i for i, row in enumerate(rows) if row.output]
        # An EAGLE-3 graph computes all rows and returns the first ones, whichever have an output.
        every = self._encodes and bool(outputs)
        row_specs = [(row.pos, row.seq_id, row.output or every) for row in rows]
        hidden = np.array([row.hidden for row in rows], np.float32)
        batch = EmbeddingBatch(self._limits, row_specs, [row.token for row in rows], hidden)
        result = llama.llama_decode(self.handle, batch.batch)
        if result == 1:
            raise NoRoomError
        if result != 0:
            raise DecodeError(f"llama_decode of the head returned {result}: {log.reason()}")
        if not outputs:
            llama.llama_synchronize(self.handle)
            return np.zeros((0, self.n_vocab), np.float32), np.zeros((0, self._n_hidden), np.float32)
        address, n = get_logits(self.handle), len(rows) if every else len(outputs)
        if not address:
            raise DecodeError("llama.cpp gave no logits of the head")
        logits = rows_at(ctypes.cast(address, FLOATS), n, self.n_vocab)
        if self._all_rows:
            return logits, rows_at(ext.get_nextn(self.handle), len(rows), self._n_hidden)[outputs]
        after = rows_at(ext.get_nextn(self.handle), n, self._n_hidden)
        return (logits[outputs], after[outputs]) if every else (logits, after.copy())

    def truncate(self, seq_id: int, pos: int) -> None:
        self._limits.check_seqs(seq_id, seq_id)
        if not self.reads_target:
            llama.llama_memory_seq_rm(self.memory, seq_id, pos, -1)

    def close(self) -> None:
        """Free the caches."""
        for other in self.following:
            other.close()
        if self.handle:
            llama.llama_free(self.handle)
            self.handle = None
