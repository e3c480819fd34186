"""The parts of a file with a head, as headers of their own, so that the memory of each can be planned.

llama.cpp keeps two contexts for them: the model's has no cache for the head's blocks, the head's none for the
others.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from specllama.gguf.architectures import HEAD_FILES
from specllama.gguf.head import HeadInfo, HeadKind
from specllama.gguf.header import Header
from specllama.gguf.heads import is_head_file, read_head
from specllama.gguf.parse import TensorInfo, Value

_F32 = 4


def without_head(header: Header) -> Header:
    """The model without its blocks of multi-token prediction, which its own context does not use."""
    n = header.n_layer_trunk
    if n == header.n_layer or header.architecture in HEAD_FILES:
        return header
    dropped = tuple(f"blk.{i}." for i in range(n, header.n_layer))
    tensors = tuple(t for t in header.tensors if not t.name.startswith(dropped))
    return _blocks(header, range(n), tensors)


def as_head(draft: Header | HeadInfo) -> Header | HeadInfo:
    """The head that a draft's file is; the header of another file as it is."""
    if isinstance(draft, HeadInfo) or not is_head_file(draft):
        return draft
    return read_head(draft) or draft


def head_alone(head: HeadInfo) -> Header:
    """What the head's context has: its blocks, and the tensors that it does not use from the target."""
    header = head.header
    if head.kind is not HeadKind.MTP:
        # An assistant reads the target's cache.
        more = {f"{header.architecture}.attention.head_count_kv": 0} if head.shares_cache else {}
        return replace(header, metadata=MappingProxyType({**header.metadata, **more}))
    name = "" if head.own_file else f"the head of {header.name}"
    found = _blocks(header, range(head.n_layer_target, header.n_layer), head.tensors)
    more = {f"{header.architecture}.full_attention_interval": 1}  # all of its blocks attend
    more |= {"general.name": name} if name else {}  # type: ignore[dict-item]
    return replace(found, metadata=MappingProxyType({**found.metadata, **more}))


def row_buffers(head: HeadInfo, n_batch: int) -> int:
    """Bytes of the buffers through which hidden states of a batch go from the target to the head and back."""
    width = head.n_embd_target * max(1, len(head.target_layers))
    return n_batch * (width + max(head.n_embd, head.n_embd_target)) * _F32


def _blocks(header: Header, kept: range, tensors: tuple[TensorInfo, ...]) -> Header:
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
