"""Assistants of Gemma 4: files of their own that read the target's KV cache.

Source: gemma4-assistant.cpp of llama.cpp's src/models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from specllama.gguf.header import Header
from specllama.heads.kind import GET_ANOTHER, HeadInfo, HeadKind, require, require_shape, width_refusals
from specllama.wording import counted

ARCHITECTURE = "gemma4-assistant"


def _read(header: Header) -> HeadInfo:
    prefix = header.architecture
    n_layer = header.integer(f"{prefix}.nextn_predict_layers")
    if not 1 <= n_layer <= header.n_layer:
        header.fail(f"{prefix}.nextn_predict_layers", f"{n_layer} of {header.n_layer} layers", GET_ANOTHER)
    width = header.integer(f"{prefix}.embedding_length_out")
    if not width or width == header.n_embd:
        reason = f"{prefix}.embedding_length_out"
        header.fail(reason, "it must be the target's hidden size, not its own", GET_ANOTHER)
    block = (
        "attn_norm attn_q attn_q_norm attn_output post_attention_norm layer_output_scale ffn_norm ffn_gate "
    )
    needed = ["token_embd", "output_norm", "nextn.pre_projection", "nextn.post_projection"]
    require(header, needed, n_layer, f"{block} ffn_norm ffn_gate ffn_up ffn_down post_ffw_norm")
    require_shape(header, "nextn.pre_projection.weight", (2 * width, header.n_embd))
    return HeadInfo(
        kind=GEMMA4_ASSISTANT,
        header=header,
        n_layer=n_layer,
        n_embd=header.n_embd,
        n_embd_target=width,
        n_vocab=header.n_vocab,
        n_proposed=header.n_vocab,
        own_embeddings=False,
    )


def _refusals(target: Header, head: HeadInfo) -> Iterator[str]:
    if target.architecture != "gemma4":
        yield f"the head is an assistant of Gemma 4, the target is {target.architecture!r}"
        return
    yield from width_refusals(head.n_embd_target, target.n_embd)
    names = ("key_length", "value_length", "key_length_swa", "value_length_swa")
    for name in names:
        a, b = (h.arch_integer(f"attention.{name}") for h in (target, head.header))
        if a != b:
            yield f"{name} differs: target {a}, head {b}; the head reads the target's KV cache"
    heads = [set(h.n_head_kv[-2:]) for h in (target, head.header)]
    if not heads[1] <= heads[0]:
        a_text, b_text = (", ".join(map(str, sorted(numbers))) for numbers in heads)
        yield f"heads of the KV cache differ: target {a_text}, head {b_text}"


def _memory_header(head: HeadInfo) -> Header:
    """Without a cache."""
    header = head.header
    more = {f"{ARCHITECTURE}.attention.head_count_kv": 0}
    return replace(header, metadata=MappingProxyType({**header.metadata, **more}))


GEMMA4_ASSISTANT = HeadKind(
    "gemma4-assistant",
    recognises=lambda header: header.architecture == ARCHITECTURE,
    read=_read,
    refusals=_refusals,
    label=lambda head: f"Gemma 4 assistant, {counted(head.n_layer, 'layer')}",
    architecture=ARCHITECTURE,
    memory_header=_memory_header,
    shares_cache=True,
    nextn_layers=True,
    untrimmable="an assistant of Gemma 4 looks its tokens up in the target",
)
