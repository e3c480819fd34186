"""Writes a trained transformer and its tokenizer as a GGUF file in f16, architecture `llama`."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

from scripts.bench.random_vocab import CHATML
from training.corpus import ENDOFTEXT, IM_END, SPECIALS
from training.model import EPS, ROPE_BASE, Transformer

N_CTX_TRAIN = 2048  # in the file; rotary positions work beyond the 512 tokens of training


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Add the vocabulary in the order of its ids, the merges, the control tokens and the chat template."""
    bpe = json.loads(tokenizer.to_str())["model"]
    ids: dict[str, int] = bpe["vocab"]
    words = sorted(ids, key=lambda word: ids[word])
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if w in SPECIALS else gguf.TokenType.NORMAL for w in words]
    )
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]])
    writer.add_bos_token_id(ids[ENDOFTEXT])
    writer.add_eos_token_id(ids[IM_END])
    writer.add_eot_token_id(ids[IM_END])
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHATML)


def write_gguf(model: Transformer, tokenizer: Tokenizer, name: str, path: Path) -> None:
    """Write the file: matrices in f16, norms in f32."""
    s = model.shape
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_license("PSF-2.0")
    writer.add_description("Trained on the CPython standard library's sources and docstrings")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(s.n_embd)
    writer.add_block_count(s.n_layer)
    writer.add_feed_forward_length(s.n_ff)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_rope_dimension_count(s.n_embd_head)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_tokenizer(writer, tokenizer)
    for key, tensor in model.state_dict().items():
        number = np.float32 if tensor.dim() == 1 else np.float16
        writer.add_tensor(key.replace("blocks.", "blk."), tensor.float().cpu().numpy().astype(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
