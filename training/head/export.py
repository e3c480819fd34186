"""Writes a head as a GGUF file of architecture `eagle3`, with the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from training.head.model import Head
from training.model import EPS

Kind = gguf.GGMLQuantizationType
KINDS = {"f16": Kind.F16, "q8_0": Kind.Q8_0, "q5_0": Kind.Q5_0, "q4_0": Kind.Q4_0}
N_CTX = 8192  # of the target


def write_gguf(
    head: Head,
    tokens: NDArray[np.int64],
    layers: Sequence[int],
    target: Path,
    path: Path,
    kind: Kind = Kind.Q8_0,
) -> None:
    """Write the file: matrices as `kind`, the one that reads features in eight bits at least, norms in f32.
    tokens: the ids it can draft, in the order of its
    output. The embeddings are the target's, which the head reads through the target's context.
    """
    s, reader = head.shape, gguf.GGUFReader(target)
    n_target = int(reader.fields["llama.embedding_length"].contents())
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_name("SmolLM2 135M Instruct EAGLE-3")
    writer.add_license("apache-2.0")
    writer.add_description("EAGLE-3 head for SmolLM2-135M-Instruct in Q4_1")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(s.n_embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(s.n_ff)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_rope_dimension_count(s.n_embd_head)
    writer.add_rope_freq_base(s.rope_base)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", n_target)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer.ggml.") or name == "tokenizer.chat_template":
            writer.add_key_value(
                name,
                field.contents(),
                field.types[0],
                field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None,
            )
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_vocab_size(n_vocab)
    weights = {**head.state_dict(), "fc.weight": head.fc.weight / head.scale}
    del weights["scale"]
    for key, tensor in weights.items():
        name = key if key.split(".")[0] in ("fc", "output", "output_norm") else f"blk.0.{key}"
        data = tensor.detach().float().cpu().numpy()
        if data.ndim == 1:
            writer.add_tensor(name, data)
        else:
            of_this = Kind.Q8_0 if name == "fc.weight" and kind != Kind.F16 else kind
            writer.add_tensor(name, gguf.quants.quantize(data, of_this), raw_dtype=of_this)
    writer.add_tensor("d2t", tokens.astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
