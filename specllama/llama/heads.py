"""The context of a head that drafts token by token: its cache, and decodes in it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import (
    BatchRow,
    BlockLattice,
    BlockRows,
    DecodeError,
    DraftedBlock,
    Drafter,
    HeadRow,
    Hidden,
    NoRoomError,
)
from specllama.errors import ResourceError
from specllama.llama.batches import FLOATS, DecodeLimits, EmbeddingBatch, get_logits, run_decode
from specllama.llama.context import LlamaContext
from specllama.llama.library import ggml, llama, log
from specllama.llama.model import LlamaModel, NativeContext, context_params

# Functions of llama-ext.h, with which hidden states of a context are read.
#
# llama.cpp exports them under C++ names and does not promise to keep them: they are looked up by name, and
# without one of them heads cannot be used.


_OF = " of the head"  # what was decoded, for errors
_CONTEXT, _LAYER, _BOOL = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool
_FUNCTIONS: dict[str, tuple[str, Any, list[Any]]] = {
    "set_nextn": ("_Z26llama_set_embeddings_nextnP13llama_contextbb", None, [_CONTEXT, _BOOL, _BOOL]),
    "get_nextn": ("_Z26llama_get_embeddings_nextnP13llama_context", FLOATS, [_CONTEXT]),
    "set_layer": ("_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, [_CONTEXT, _LAYER, _BOOL]),
    "set_offset": ("_Z28llama_set_nextn_layer_offsetP13llama_contexti", None, [_CONTEXT, ctypes.c_int32]),
    "get_layer": ("_Z30llama_get_embeddings_layer_inpP13llama_contextj", FLOATS, [_CONTEXT, _LAYER]),
}


missing = [symbol for symbol, _, _ in _FUNCTIONS.values() if not hasattr(ggml, symbol)]
ext: Any = SimpleNamespace()  # the functions by the names above
for _name, (_symbol, _result, _arguments) in _FUNCTIONS.items() if not missing else ():
    setattr(ext, _name, _function := getattr(ggml, _symbol))
    _function.restype, _function.argtypes = _result, _arguments


def unsupported() -> str:
    """Why heads cannot be used with this build of llama.cpp, "" if they can."""
    return f"this build of llama.cpp does not export {missing[0]}" if missing else ""


def rows_at(address: Any, n: int, width: int) -> NDArray[np.float32]:
    """A view of n rows of floats. Raises DecodeError where llama.cpp has none."""
    if not address:
        raise DecodeError("llama.cpp gave no hidden states")
    return np.ctypeslib.as_array(address, (n, width))


@dataclass(frozen=True, slots=True)
class NoTarget:
    """In place of a target's context, for a head that uses nothing of it, with what a head needs of one."""

    model: LlamaModel
    handle: Any = None
    n_seq_max: int = 1
    n_outputs_max: int = 16
    n_threads: int = 1
    n_threads_batch: int = 1


def head_params(model: LlamaModel, target: LlamaContext | NoTarget, n_ctx: int, *, nextn_layers: bool) -> Any:
    """llama.cpp's parameters for the context of a head of the target. nextn_layers: llama.cpp runs it as
    layers for multi-token prediction.
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
    return params


class HeadContext(NativeContext):
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
        target: LlamaContext | NoTarget,
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
        self.open(model, head_params(model, target, n_ctx, nextn_layers=not encodes))
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
        numbers = np.arange(1, self.n_features + 1)
        rows = [HeadRow(i, i, 0, np.sin((i + 2) * numbers**2.0).astype(np.float32), False) for i in range(2)]
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
            after = [last.pos + (0 if self.reads_target else 1 + i) for i in range(n)]
            further = [last._replace(pos=pos, output=False) for pos in after]
            try:
                return self._decode([*rows, *further])
            except NoRoomError:  # there is room for the rows alone, perhaps
                pass
            finally:
                self.truncate(last.seq_id, last.pos + 1)
        return self._decode(rows)

    def _decode(self, rows: Sequence[HeadRow]) -> tuple[NDArray[np.float32], Hidden]:
        outputs = [i for i, row in enumerate(rows) if row.output]
        # An EAGLE-3 graph computes all rows and returns the first ones, whichever have an output.
        every = self._encodes and bool(outputs)
        row_specs = [(row.pos, row.seq_id, row.output or every) for row in rows]
        hidden = np.array([row.hidden for row in rows], np.float32)
        batch = EmbeddingBatch(self._limits, row_specs, [row.token for row in rows], hidden)
        run_decode(self.handle, batch, _OF)
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
        super().close()


# The context of a block drafter (DFlash, DFlash 2, DSpark): the target's features are put into its cache, and
# one decode drafts a block of tokens.


class BlockContext(NativeContext):
    """Implements core.interfaces.BlockHead, which documents the methods.

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
        self.open(model, head_params(model, target, n_ctx, nextn_layers=False))
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
            ext.set_nextn(self.handle, True, False)  # a row for each token of a decode
        llama.llama_set_causal_attn(self.handle, causal)

    def inject(self, seq_id: int, first: int, features: Hidden) -> None:
        for at in range(0, len(features), self.n_batch):
            part = features[at : at + self.n_batch]
            row_specs = [(first + at + i, seq_id, False) for i in range(len(part))]
            run_decode(self.handle, EmbeddingBatch(self._limits, row_specs, None, part), _OF)
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
        run_decode(self.handle, EmbeddingBatch(self._limits, row_specs, tokens, None), _OF)
        if self._top_k:
            width, address = self._n_embd, ext.get_nextn(self.handle)
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


_LAST = -1  # instead of a layer: the rows before the output norm


class TargetFeatures:
    """The hidden states that a target's decodes give to a head, side by side.

    layers: the layers whose inputs they are; the number of layers itself stands for the rows before the
    output norm, as no layers at all do. These are given out only for decodes that return logits: otherwise
    the last layer would be computed for all rows of a prompt, where one is enough.
    """

    def __init__(self, context: LlamaContext, layers: Sequence[int]) -> None:
        self.context = context
        self.reader: Drafter | None = None
        handle, n_layer = context.model.handle, context.model.n_layer
        if any(layer < 0 for layer in layers):
            raise DecodeError(f"a head reads layers from 0 on, not {min(layers)}")
        self._layers = [layer if layer < n_layer else _LAST for layer in layers] or [_LAST]
        width = llama.llama_model_n_embd if layers else llama.llama_model_n_embd_out
        self._n_embd = int(width(handle))
        self._needs_last, self._on = _LAST in self._layers, False
        for layer in self._layers:
            if layer != _LAST:
                ext.set_layer(context.handle, layer, True)

    @property
    def width(self) -> int:
        """Values of a row."""
        return self._n_embd * len(self._layers)

    def before(self, n_outputs: int) -> None:
        wanted = n_outputs > 0
        if self._needs_last and wanted != self._on:
            self._on = wanted
            ext.set_nextn(self.context.handle, wanted, False)

    def after(self, batch: Sequence[BatchRow], branches: Sequence[Sequence[BatchRow]] = ()) -> None:
        """Give the features of a finished decode to the reader."""
        if self.reader is None or (self._needs_last and not self._on):
            return
        n = len(batch) + sum(map(len, branches))
        layers = [self._read(layer, n) for layer in self._layers]
        features = layers[0] if len(layers) == 1 else np.concatenate(layers, axis=1)
        self.reader.features_decoded(batch, features, branches)

    def _read(self, layer: int, n: int) -> Hidden:
        handle = self.context.handle
        address = ext.get_nextn(handle) if layer == _LAST else ext.get_layer(handle, layer)
        return rows_at(address, n, self._n_embd)

    def close(self) -> None:
        """Give out nothing from the next decode on."""
        for layer in self._layers:
            if layer != _LAST:
                ext.set_layer(self.context.handle, layer, False)
        if self._needs_last:
            ext.set_nextn(self.context.handle, False, False)
        self.context.features = None
