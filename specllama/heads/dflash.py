"""Heads in files of the architecture dflash: one decode drafts a block of tokens. DFlash (arXiv 2602.06036);
DFlash 2, which has a selector among the candidates for each token; DSpark, with a Markov model of a token
after the one before it.

Sources: dflash.cpp of llama.cpp's src/models, and its common/speculative.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from specllama.errors import GGUFError
from specllama.gguf.architectures import LAST_LAYER_OUTPUT
from specllama.gguf.header import Header, tensor_names
from specllama.heads.kind import (
    GET_ANOTHER,
    HeadInfo,
    HeadKind,
    layer_refusals,
    n_proposed,
    read_layers,
    require,
    require_shape,
)

ARCHITECTURE = "dflash"
MARKOV = "markov_w1.weight"  # tells a DSpark head from a DFlash head
MAX_BLOCK = 256  # tokens that a block drafter proposes at once; trained ones have 4 to 16
_SELECTOR_KEYS = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")


def _read(
    header: Header,
    kind: HeadKind,
    *,
    top_k: int,
    unset_size: int,
    least_size: int,
    needed: Sequence[str] = (),
    anchored: bool = False,
) -> HeadInfo:
    """The head in a file. top_k: of its selector. unset_size: tokens of a block where the file does not say,
    least_size: fewest. needed: weights that not all have. anchored: see `HeadInfo`. Raises GGUFError.
    """
    names, layers = tensor_names(header), read_layers(header)
    if not layers:
        header.fail("dflash.target_layers", "the head needs it", GET_ANOTHER)
    block_size = header.integer("dflash.block_size", unset_size)
    if not least_size <= block_size <= MAX_BLOCK:
        header.fail("dflash.block_size", f"{block_size} is not in 2 to {MAX_BLOCK}", GET_ANOTHER)
    block = "attn_norm attn_q attn_k attn_output attn_q_norm attn_k_norm ffn_norm ffn_gate ffn_up ffn_down"
    if header.arch_integer("hyper_connection.count"):
        block = "attn_norm attn_kv attn_kv_norm attn_q_a attn_q_b ffn_norm ffn_gate_inp ffn_down_exps"
    require(header, ["fc", "enc.output_norm", "output_norm", *needed], header.n_layer, block)
    require_shape(header, "fc.weight", (len(layers) * header.n_embd, header.n_embd))
    own_embeddings = "token_embd.weight" in names
    own_output = own_embeddings or "output.weight" in names
    mask = header.integer("tokenizer.ggml.mask_token_id", -1)
    return HeadInfo(
        kind=kind,
        header=header,
        own_file=True,
        n_layer=header.n_layer,
        n_embd=header.n_embd,
        n_embd_target=header.n_embd,
        n_vocab=header.n_vocab,
        n_proposed=n_proposed(header, own_output),
        target_layers=layers,
        own_embeddings=own_embeddings,
        own_output=own_output,
        n_draft_max=block_size if anchored else block_size - 1,
        block_size=block_size,
        selector_top_k=top_k,
        anchored=anchored,
        causal=header.flag("dflash.attention.causal") is True,
        has_confidence="conf_proj.weight" in names,
        mask_id=mask if 0 <= mask < header.n_vocab else None,
    )


def _refusals(target: Header, head: HeadInfo) -> Iterator[str]:
    """Why a block drafter cannot draft for a target."""
    return layer_refusals(target, head, LAST_LAYER_OUTPUT)


def _selector_top_k(header: Header) -> int:
    """The candidates among which the selector of a DFlash 2 head chooses, 0 without one. Raises GGUFError for
    an incomplete one, or one that llama.cpp's graph does not use.
    """
    names = tensor_names(header)
    if not any(name.startswith("selector_") for name in names):
        return 0
    needed = ["selector_hidden", "selector_predecessor", "selector_successor"]
    require(header, needed, header.n_layer, "attn_conv_proj ffn_conv_proj")
    if MARKOV in names or header.arch_integer("hyper_connection.count"):
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
    for i, kind in product(range(header.n_layer), ("attn", "ffn")):
        if (name := f"blk.{i}.{kind}_conv_base") not in names:
            raise GGUFError(f"{header.path}: {len(names)} tensors: {name} is not among them", GET_ANOTHER)
    require_shape(header, "selector_predecessor.weight", (rank, header.n_vocab))
    require_shape(header, "selector_successor.weight", (rank, header.n_vocab))
    require_shape(header, "selector_hidden.weight", (header.n_embd, rank))
    return top_k


def _read_dflash(header: Header) -> HeadInfo:
    top_k = _selector_top_k(header)
    return _read(header, DFLASH, top_k=top_k, unset_size=0 if top_k else 16, least_size=2)


DFLASH = HeadKind(
    "dflash",
    recognises=lambda header: header.architecture == ARCHITECTURE and MARKOV not in tensor_names(header),
    read=_read_dflash,
    refusals=_refusals,
    label=lambda h: f"{'DFlash 2' if h.selector_top_k else 'DFlash'}, blocks of {h.block_size}",
    architecture=ARCHITECTURE,
    drafts_blocks=True,
)


def _read_dspark(header: Header) -> HeadInfo:
    return _read(
        header,
        DSPARK,
        top_k=_selector_top_k(header),  # which llama.cpp does not run in such a head
        unset_size=0,
        least_size=1,
        needed=("markov_w2",),
        anchored=header.flag("dflash.sample_from_anchor") is not False,
    )


DSPARK = HeadKind(
    "dspark",
    recognises=lambda header: header.architecture == ARCHITECTURE and MARKOV in tensor_names(header),
    read=_read_dspark,
    refusals=_refusals,
    label=lambda head: f"DSpark, blocks of {head.block_size}",
    architecture=ARCHITECTURE,
    drafts_blocks=True,
)
