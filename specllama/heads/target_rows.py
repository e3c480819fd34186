"""What kinds have in common that read rows of the target: its layers' inputs, of the right width."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specllama.gguf.architectures import LAYER_INPUTS
from specllama.gguf.header import Header
from specllama.heads.kind import HeadInfo
from specllama.heads.required import GET_ANOTHER


def read_layers(header: Header) -> tuple[int, ...]:
    """The layers of the target that the head reads. Raises GGUFError for negative ones."""
    key = f"{header.architecture}.target_layers"
    value = header.metadata.get(key)
    layers = tuple(int(i) for i in value) if isinstance(value, np.ndarray) else ()
    if any(i < 0 for i in layers):
        header.fail(key, f"layer {min(layers)} is not possible", GET_ANOTHER)
    return layers


def layer_refusals(target: Header, head: HeadInfo, last: frozenset[str]) -> Iterator[str]:
    """Of a head that reads the inputs of layers. last: architectures that hand out the output of the last one
    in the way in which the head reads it.
    """
    yield from width_refusals(head.n_embd_target, target.n_embd)
    architecture, n_layer = target.architecture, target.n_layer_trunk
    if max(head.target_layers) > n_layer:
        yield f"the head reads layer {max(head.target_layers)}, the target has {n_layer}"
    if architecture not in LAYER_INPUTS and min(head.target_layers) < n_layer:
        yield f"llama.cpp here does not hand out the layers of {architecture!r} models"
    if n_layer in head.target_layers and architecture not in last:
        yield (
            f"the head reads the output of the last layer, {n_layer - 1}, which llama.cpp here does not hand "
            f"out for {architecture!r} models"
        )
    lacks = [n for n, own in (("embeddings", head.own_embeddings), ("output", head.own_output)) if not own]
    sizes = (("hidden sizes", head.n_embd, target.n_embd), ("vocabularies", head.n_vocab, target.n_vocab))
    for name, ours, theirs in sizes:
        if lacks and ours != theirs:
            what = " and ".join(lacks)
            yield f"the head uses the target's {what}, but their {name} are {theirs} and {ours}"


def width_refusals(wanted: int, there: int) -> Iterator[str]:
    if wanted != there:
        yield f"the head reads hidden states of {wanted} elements, the target's have {there}"
