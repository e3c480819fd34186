"""Heads in files of the architecture dflash: one decode drafts a block of tokens. DFlash (arXiv 2602.06036);
DFlash 2, which has a selector among the candidates for each token; DSpark, with a Markov model of a token
after the one before it.

Sources: dflash.cpp of llama.cpp's src/models, and its common/speculative.cpp.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from specllama.errors import GGUFError
from specllama.gguf.architectures import LAST_LAYER_OUTPUT
from specllama.gguf.header import Header, tensor_names
from specllama.heads import kind
from specllama.heads.kind import GET_ANOTHER

ARCHITECTURE = "dflash"
MARKOV = "markov_w1.weight"  # tells a DSpark head from a DFlash head
MAX_BLOCK = 256  # tokens that a block drafter proposes at once; trained ones have 4 to 16
_SELECTOR_KEYS = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")


def _read(header: Header) -> kind.HeadInfo:
    """The head in a file. Raises GGUFError."""
    names, top_k, layers = tensor_names(header), _selector_top_k(header), kind.read_layers(header)
    if not layers:
        header.fail("dflash.target_layers", "the head needs it", GET_ANOTHER)
    is_dspark = MARKOV in names
    anchored = is_dspark and header.flag("dflash.sample_from_anchor") is not False
    block_size = header.integer("dflash.block_size", 0 if is_dspark or top_k else 16)
    if not (1 if is_dspark else 2) <= block_size <= MAX_BLOCK:
        header.fail("dflash.block_size", f"{block_size} is not in 2 to {MAX_BLOCK}", GET_ANOTHER)
    block = "attn_norm attn_q attn_k attn_output attn_q_norm attn_k_norm ffn_norm ffn_gate ffn_up ffn_down"
    if header.arch_integer("hyper_connection.count"):
        block = "attn_norm attn_kv attn_kv_norm attn_q_a attn_q_b ffn_norm ffn_gate_inp ffn_down_exps"
    needed = ["fc", "enc.output_norm", "output_norm", *(["markov_w2"] if is_dspark else [])]
    kind.require(header, needed, header.n_layer, block)
    kind.require_shape(header, "fc.weight", (len(layers) * header.n_embd, header.n_embd))
    own_embeddings = "token_embd.weight" in names
    own_output = own_embeddings or "output.weight" in names
    mask = header.integer("tokenizer.ggml.mask_token_id", -1)
    return kind.HeadInfo(
        kind=DSPARK if is_dspark else DFLASH,
        header=header,
        n_layer=header.n_layer,
        n_embd=header.n_embd,
        n_embd_target=header.n_embd,
        n_vocab=header.n_vocab,
        n_proposed=kind.n_proposed(header, own_output),
        target_layers=layers,
        own_embeddings=own_embeddings,
        own_output=own_output,
        n_draft_max=block_size if anchored else block_size - 1,
        block_size=block_size,
        selector_top_k=top_k,
        anchored=anchored,
        causal=header.flag("dflash.attention.causal") is True,
        mask_id=mask if 0 <= mask < header.n_vocab else None,
    )


def _selector_top_k(header: Header) -> int:
    """The candidates among which the selector of a DFlash 2 head chooses, 0 without one. Raises GGUFError for
    an incomplete one, or one that llama.cpp's graph does not use.
    """
    names = tensor_names(header)
    if not any(name.startswith("selector_") for name in names):
        return 0
    needed = ["selector_hidden", "selector_predecessor", "selector_successor"]
    kind.require(header, needed, header.n_layer, "attn_conv_proj ffn_conv_proj")
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
    for i, part in product(range(header.n_layer), ("attn", "ffn")):
        if (name := f"blk.{i}.{part}_conv_base") not in names:
            raise GGUFError(f"{header.path}: {len(names)} tensors: {name} is not among them", GET_ANOTHER)
    kind.require_shape(header, "selector_predecessor.weight", (rank, header.n_vocab))
    kind.require_shape(header, "selector_successor.weight", (rank, header.n_vocab))
    kind.require_shape(header, "selector_hidden.weight", (header.n_embd, rank))
    return top_k


DFLASH = kind.HeadKind(
    "dflash",
    recognises=lambda header: header.architecture == ARCHITECTURE and MARKOV not in tensor_names(header),
    read=_read,
    refusals=lambda target, head: kind.layer_refusals(target, head, LAST_LAYER_OUTPUT),
    label=lambda h: f"{'DFlash 2' if h.selector_top_k else 'DFlash'}, blocks of {h.block_size}",
    architecture=ARCHITECTURE,
    drafts_blocks=True,
)
DSPARK = replace(
    DFLASH,
    name="dspark",
    recognises=lambda header: header.architecture == ARCHITECTURE and MARKOV in tensor_names(header),
    label=lambda head: f"DSpark, blocks of {head.block_size}",
)
