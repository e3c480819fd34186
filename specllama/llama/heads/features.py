"""The hidden states that a target gives out for a head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specllama.core.head_interfaces import FeatureReader, Hidden
from specllama.core.interfaces import BatchRow, DecodeError
from specllama.llama.context import LlamaContext
from specllama.llama.heads.functions import ext, rows_at
from specllama.llama.library import llama

_LAST = -1  # instead of a layer: the rows before the output norm


class TargetFeatures:
    """The hidden states that a target's decodes give to a head, side by side.

    layers: the layers whose inputs they are; the number of layers itself stands for the rows before the
    output norm, as no layers at all do. These are given out only for decodes that return logits: otherwise
    the last layer would be computed for all rows of a prompt, where one is enough.
    """

    def __init__(self, context: LlamaContext, layers: Sequence[int]) -> None:
        self.context = context
        self.reader: FeatureReader | None = None
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
