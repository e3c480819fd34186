"""A header of some blocks of another."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from specllama.gguf.header import Header
from specllama.gguf.parse import TensorInfo, Value


def of_blocks(header: Header, kept: range, tensors: tuple[TensorInfo, ...]) -> Header:
    """A header of these blocks, numbered from 0, and these tensors."""
    prefix = f"{header.architecture}."
    metadata: dict[str, Value] = {}
    for key, value in header.metadata.items():
        if isinstance(value, np.ndarray) and key.startswith(prefix) and len(value) == header.n_layer:
            value = value[kept.start : kept.stop]
        metadata[key] = value
    metadata[f"{prefix}block_count"] = len(kept)
    metadata.pop(f"{prefix}nextn_predict_layers", None)
    renamed = tuple(replace(t, name=_renumbered(t.name, kept.start)) for t in tensors)
    return replace(header, metadata=MappingProxyType(metadata), tensors=renamed)


def _renumbered(name: str, start: int) -> str:
    first, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    return f"blk.{int(number) - start}.{rest}" if first == "blk" and number.isdigit() else name
