"""EAGLE-3 heads: files whose encoder makes hidden states of the inputs of three layers of the target.

Source: eagle3.cpp of llama.cpp's src/models.
"""

from __future__ import annotations

from specllama.gguf.architectures import NEXTN_ROWS
from specllama.gguf.header import Header, tensor_names
from specllama.heads import kind

ARCHITECTURE = "eagle3"
_N_LAYERS = 3  # of the target, that it reads


def _read(header: Header) -> kind.HeadInfo:
    if header.n_layer != 1:
        why = f"{header.n_layer}, an EAGLE-3 head has one layer"
        header.fail("eagle3.block_count", why, kind.GET_ANOTHER)
    layers = kind.read_layers(header)
    if len(layers) != _N_LAYERS:
        header.fail("eagle3.target_layers", f"{len(layers)} layers, three are needed", kind.GET_ANOTHER)
    width = header.integer("eagle3.target_hidden_size")
    if width < 1:
        header.fail("eagle3.target_hidden_size", "the head needs it", kind.GET_ANOTHER)
    before = ["enc.output_norm"] if header.flag("eagle3.norm_before_fc") else []
    block = "attn_norm attn_norm_2 attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down"
    kind.require(header, ["fc", "output_norm", *before], 1, block)
    kind.require_shape(header, "fc.weight", (len(layers) * width, header.n_embd))
    names = tensor_names(header)
    return kind.HeadInfo(
        kind=EAGLE3,
        header=header,
        n_layer=1,
        n_embd=header.n_embd,
        n_embd_target=width,
        n_vocab=header.n_vocab,
        n_proposed=kind.n_proposed(header, "output.weight" in names),
        target_layers=layers,
        own_embeddings="token_embd.weight" in names,
        own_output="output.weight" in names,
    )


EAGLE3 = kind.HeadKind(
    "eagle3",
    recognises=lambda header: header.architecture == ARCHITECTURE,
    read=_read,
    refusals=lambda target, head: kind.layer_refusals(target, head, NEXTN_ROWS),
    label=lambda _head: "EAGLE-3",
    architecture=ARCHITECTURE,
    encodes=True,
)
