"""The files that hold nothing but a head: EAGLE-3, DFlash (1 and 2), DSpark and Gemma 4 assistants.

Each function raises GGUFError for a file from which llama.cpp could not load the head, or that would end the
process later. Sources: eagle3.cpp, dflash.cpp and gemma4-assistant.cpp of llama.cpp's src/models, and its
common/speculative.cpp.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from specllama.errors import GGUFError, IntegrityError
from specllama.gguf.head import GET_ANOTHER, HeadInfo, HeadKind, dims, require, require_shape, tensor_names
from specllama.gguf.header import Header

MAX_BLOCK = 256  # tokens that a block drafter proposes at once; trained ones have 4 to 16
_EAGLE3_LAYERS = 3
_SELECTOR_KEYS = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")


def gemma4_assistant(header: Header) -> HeadInfo:
    prefix = header.architecture
    n_layer = header.integer(f"{prefix}.nextn_predict_layers")
    if not 1 <= n_layer <= header.n_layer:
        header.fail(f"{prefix}.nextn_predict_layers", f"{n_layer} of {header.n_layer} layers", GET_ANOTHER)
    width = header.integer(f"{prefix}.embedding_length_out")
    if not width or width == header.n_embd:
        header.fail(
            f"{prefix}.embedding_length_out", "it must be the target's hidden size, not its own", GET_ANOTHER
        )
    block = (
        "attn_norm attn_q attn_q_norm attn_output post_attention_norm layer_output_scale ffn_norm ffn_gate "
    )
    needed = ["token_embd", "output_norm", "nextn.pre_projection", "nextn.post_projection"]
    require(header, needed, n_layer, f"{block} ffn_norm ffn_gate ffn_up ffn_down post_ffw_norm")
    require_shape(header, "nextn.pre_projection.weight", (2 * width, header.n_embd))
    return HeadInfo(
        kind=HeadKind.GEMMA4_ASSISTANT,
        header=header,
        own_file=True,
        n_layer=n_layer,
        n_embd=header.n_embd,
        n_embd_target=width,
        n_vocab=header.n_vocab,
        n_proposed=header.n_vocab,
        own_embeddings=False,
    )


def eagle3(header: Header) -> HeadInfo:
    if header.n_layer != 1:
        header.fail("eagle3.block_count", f"{header.n_layer}, an EAGLE-3 head has one layer", GET_ANOTHER)
    layers = _target_layers(header)
    if len(layers) != _EAGLE3_LAYERS:
        header.fail("eagle3.target_layers", f"{len(layers)} layers, three are needed", GET_ANOTHER)
    width = header.integer("eagle3.target_hidden_size")
    if width < 1:
        header.fail("eagle3.target_hidden_size", "the head needs it", GET_ANOTHER)
    before = ["enc.output_norm"] if header.flag("eagle3.norm_before_fc") else []
    block = "attn_norm attn_norm_2 attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down"
    require(header, ["fc", "output_norm", *before], 1, block)
    require_shape(header, "fc.weight", (len(layers) * width, header.n_embd))
    names = tensor_names(header)
    return HeadInfo(
        kind=HeadKind.EAGLE3,
        header=header,
        own_file=True,
        n_layer=1,
        n_embd=header.n_embd,
        n_embd_target=width,
        n_vocab=header.n_vocab,
        n_proposed=_n_proposed(header, "output.weight" in names),
        target_layers=layers,
        own_embeddings="token_embd.weight" in names,
        own_output="output.weight" in names,
    )


def block_drafter(header: Header) -> HeadInfo:
    names = tensor_names(header)
    is_dspark, top_k = "markov_w1.weight" in names, _selector(header)
    layers = _target_layers(header)
    if not layers:
        header.fail("dflash.target_layers", "the head needs it", GET_ANOTHER)
    block_size = header.integer("dflash.block_size", 0 if is_dspark or top_k else 16)
    if not 2 - is_dspark <= block_size <= MAX_BLOCK:
        header.fail("dflash.block_size", f"{block_size} is not in 2 to {MAX_BLOCK}", GET_ANOTHER)
    block = "attn_norm attn_q attn_k attn_output attn_q_norm attn_k_norm ffn_norm ffn_gate ffn_up ffn_down"
    if header.arch_integer("hyper_connection.count"):
        block = "attn_norm attn_kv attn_kv_norm attn_q_a attn_q_b ffn_norm ffn_gate_inp ffn_down_exps"
    needed = ["fc", "enc.output_norm", "output_norm", *(["markov_w2"] if is_dspark else [])]
    require(header, needed, header.n_layer, block)
    require_shape(header, "fc.weight", (len(layers) * header.n_embd, header.n_embd))
    own_embeddings = "token_embd.weight" in names
    own_output = own_embeddings or "output.weight" in names
    anchor = header.flag("dflash.sample_from_anchor") is not False
    mask = header.integer("tokenizer.ggml.mask_token_id", -1)
    return HeadInfo(
        kind=HeadKind.DSPARK if is_dspark else HeadKind.DFLASH,
        header=header,
        own_file=True,
        n_layer=header.n_layer,
        n_embd=header.n_embd,
        n_embd_target=header.n_embd,
        n_vocab=header.n_vocab,
        n_proposed=_n_proposed(header, own_output),
        target_layers=layers,
        own_embeddings=own_embeddings,
        own_output=own_output,
        n_draft_max=block_size if is_dspark and anchor else block_size - 1,
        block_size=block_size,
        selector_top_k=top_k,
        sample_from_anchor=anchor,
        causal=header.flag("dflash.attention.causal") is True,
        has_confidence="conf_proj.weight" in names,
        mask_id=mask if 0 <= mask < header.n_vocab else None,
    )


def _selector(header: Header) -> int:
    """The candidates among which the selector of a DFlash 2 head chooses, 0 without one. Raises GGUFError for
    an incomplete one, or one that llama.cpp's graph does not use.
    """
    names = tensor_names(header)
    if not any(name.startswith("selector_") for name in names):
        return 0
    needed = ["selector_hidden", "selector_predecessor", "selector_successor"]
    require(header, needed, header.n_layer, "attn_conv_proj ffn_conv_proj")
    if "markov_w1.weight" in names or header.arch_integer("hyper_connection.count"):
        raise GGUFError(f"{header.path}: llama.cpp here does not run a selector in such a head", GET_ANOTHER)
    values = {name: header.arch_integer(name) for name in _SELECTOR_KEYS}
    for name, value in values.items():
        if value < 1:
            header.fail(f"dflash.{name}", f"{value}, a selector needs 1 or more", GET_ANOTHER)
    if header.n_embd % values["conv_group_size"]:
        reason = f"{values['conv_group_size']} does not divide the hidden size {header.n_embd}"
        header.fail("dflash.conv_group_size", reason, GET_ANOTHER)
    top_k, rank = values["selector_top_k"], values["selector_rank"]
    if top_k * (top_k + 1) > header.n_embd or top_k > header.n_vocab:
        header.fail(
            "dflash.selector_top_k", f"{top_k} candidates do not fit into {header.n_embd} values", GET_ANOTHER
        )
    require(
        header, ["selector_predecessor", "selector_successor"], header.n_layer, "attn_conv_proj ffn_conv_proj"
    )
    for i, kind in product(range(header.n_layer), ("attn", "ffn")):
        if (name := f"blk.{i}.{kind}_conv_base") not in names:
            raise GGUFError(f"{header.path}: {len(names)} tensors: {name} is not among them", GET_ANOTHER)
    require_shape(header, "selector_predecessor.weight", (rank, header.n_vocab))
    require_shape(header, "selector_successor.weight", (rank, header.n_vocab))
    require_shape(header, "selector_hidden.weight", (header.n_embd, rank))
    return top_k


def _target_layers(header: Header) -> tuple[int, ...]:
    """The layers of the target that the head reads. Raises GGUFError for negative ones."""
    key = f"{header.architecture}.target_layers"
    value = header.metadata.get(key)
    layers = tuple(int(i) for i in value) if isinstance(value, np.ndarray) else ()
    if any(i < 0 for i in layers):
        header.fail(key, f"layer {min(layers)} is not possible", GET_ANOTHER)
    return layers


def _n_proposed(header: Header, own_output: bool) -> int:
    """Tokens that an EAGLE-3 or DFlash head proposes. Raises GGUFError for a d2t tensor that does not fit."""
    info = next((t for t in header.tensors if t.name == "d2t"), None)
    if info is None:
        return header.n_vocab
    where = f"{header.path}: tensor 'd2t', data at byte {info.offset}"
    if info.type != "I64" or len(info.shape) != 1 or not 1 <= info.n_elements <= header.n_vocab:
        found = f"{dims(info.shape)} of type {info.type}"
        raise GGUFError(
            f"{where}: {found}, not I64 and one id for each of up to {header.n_vocab} tokens", GET_ANOTHER
        )
    if not own_output:
        raise GGUFError(
            f"{where}: a shortened vocabulary needs output.weight, which the file lacks", GET_ANOTHER
        )
    if "output.weight" in tensor_names(header):
        require_shape(header, "output.weight", (header.n_embd, info.n_elements))
    return info.n_elements


def read_d2t(head: HeadInfo) -> None:
    """Check the ids in a head's d2t tensor, which is read from the local file.

    Raises GGUFError for ids outside the vocabulary or twice: llama.cpp would write outside its buffers. Does
    nothing without such a tensor.
    """
    info = next((t for t in head.header.tensors if t.name == "d2t"), None)
    if info is None:
        return
    path = head.header.parts[info.part] if head.header.parts else head.path
    try:
        with open(path, "rb") as source:
            source.seek(info.offset)
            data = source.read(info.n_bytes)
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror or error}") from None
    ids = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
    where = f"{path}: tensor 'd2t', data at byte {info.offset}"
    if len(ids) != head.n_proposed:
        raise GGUFError(f"{where}: {len(ids)} ids of {head.n_proposed}", GET_ANOTHER)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < head.n_vocab:
        raise GGUFError(f"{where}: ids from {ids.min()} to {ids.max()} of {head.n_vocab} tokens", GET_ANOTHER)
    if len(np.unique(ids)) != len(ids):
        raise GGUFError(f"{where}: an id occurs twice", GET_ANOTHER)
