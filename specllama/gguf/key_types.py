"""The value types and greatest lengths of the metadata keys that specllama uses or llama.cpp requires."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from specllama.errors import GGUFError
from specllama.gguf.parse import MetadataEntry, StringArray

_LIST_OR_NUMBER = ("u32", "arr[u32]", "arr[i32]")
_SPECIAL = (
    "bos eos eot eom unknown padding seperator mask prefix suffix middle "
    "fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep"
)
_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("general.architecture", "general.name", "tokenizer.chat_template"), ("str",)),
    **dict.fromkeys(("general.alignment", "general.file_type"), ("u32",)),
    **dict.fromkeys(("split.no", "split.count"), ("u16",)),
    "split.tensors.count": ("i32",),
    **dict.fromkeys(("tokenizer.ggml.model", "tokenizer.ggml.pre"), ("str",)),
    **dict.fromkeys(("tokenizer.ggml.tokens", "tokenizer.ggml.merges"), ("arr[str]",)),
    "tokenizer.ggml.scores": ("arr[f32]", "arr[i32]"),
    "tokenizer.ggml.token_type": ("arr[i32]",),
    **{f"tokenizer.ggml.{t}_token_id": ("u32",) for t in _SPECIAL.split()},
    "tokenizer.ggml.suppress_tokens": ("arr[i32]",),
    **{f"tokenizer.ggml.add_{t}_token": ("bool",) for t in ("bos", "eos", "sep")},
    # of files that `specllama trim` wrote, see trimmed.py
    **{f"specllama.trim.{name}": ("u32",) for name in ("version", "n_vocab")},
    "specllama.trim.ids": ("arr[i32]",),
    **{f"specllama.trim.{name}": ("str",) for name in ("source", "source_sha256", "embeddings_type")},
    **{
        f"specllama.trim.{name}": ("u64",)
        for name in ("source_bytes", "embeddings_offset", "embeddings_bytes")
    },
    **{f"specllama.trim.{name}": ("f32",) for name in ("embeddings_scale", "coverage")},
}
_ARCH_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("context_length", "embedding_length", "block_count", "vocab_size"),
            *("expert_count", "expert_group_count", "expert_group_used_count"),
        ),
        ("u32",),
    ),
    **dict.fromkeys(
        ("feed_forward_length", "attention.head_count", "attention.head_count_kv"), _LIST_OR_NUMBER
    ),
    "expert_used_count": _LIST_OR_NUMBER,
    "rope.scaling.type": ("str",),
    **dict.fromkeys(("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"), ("f32",)),
    **{f"attention.{n}_length{tail}": ("u32",) for n in ("key", "value") for tail in ("", "_swa", "_mla")},
    **{
        f"ssm.{n}": ("u32",)
        for n in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    },
    **dict.fromkeys(("nextn_predict_layers", "attention.shared_kv_layers", "wkv.head_size"), ("u32",)),
    "target_layers": ("arr[i32]", "arr[u32]"),
    **dict.fromkeys(("target_hidden_size", "embedding_length_out", "block_size"), ("u32",)),
    **dict.fromkeys(("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size"), ("u32",)),
    **dict.fromkeys(("norm_before_residual", "norm_before_fc", "sample_from_anchor"), ("bool",)),
    **dict.fromkeys(
        ("token_shift_count", "shortconv.l_cache", "kda.head_dim", "full_attention_interval"), ("u32",)
    ),
}

MAX_TOKENS, MAX_TOKEN_BYTES = 1 << 19, 16 << 20  # twice the largest known vocabulary; of all texts together
MAX_TEMPLATE_BYTES, MAX_TEXT_BYTES = 1 << 20, 64 << 10
_ARCHITECTURE = re.compile(r"[\w.-]{0,64}", re.ASCII)
_LONGEST = {  # bytes
    "general.architecture": 64,
    "general.type": 64,
    "tokenizer.ggml.model": 4096,
    "tokenizer.ggml.pre": 4096,
    "tokenizer.chat_template": MAX_TEMPLATE_BYTES,
}


def check_types(name: str, entries: Mapping[str, MetadataEntry]) -> None:
    """Raises GGUFError, with key and byte offset, for an entry of another type than llama.cpp expects, or
    longer than any model's.

    Unknown keys pass. name: the file, for the message.
    """
    for i, (key, entry) in enumerate(entries.items()):
        if reason := _excess(key, entry):
            message = f"{name}: metadata[{i}] {key!r} at byte {entry.offset}: {reason}"
            raise GGUFError(message, "Get another file of the model.")
    architecture = entries.get("general.architecture")
    prefix = f"{architecture.value}." if architecture and isinstance(architecture.value, str) else None
    for i, (key, entry) in enumerate(entries.items()):
        allowed = _TYPES.get(key)
        if allowed is None and prefix and key.startswith(prefix):
            allowed = _ARCH_TYPES.get(key.removeprefix(prefix))
        if allowed and entry.kind not in allowed:
            message = f"{name}: metadata[{i}] {key!r} at byte {entry.offset}: its type is {entry.kind}, not "
            raise GGUFError(
                message + " or ".join(allowed), "Get another file of the model, or convert it again."
            )


def _excess(key: str, entry: MetadataEntry) -> str:
    """Why a value is too long, or holds what no model holds; "" if it does not."""
    value = entry.value
    if isinstance(value, (str, bytes)):
        most = _LONGEST.get(key) or (MAX_TEXT_BYTES if key.startswith("general.") else 0)
        if most and len(value) > most:
            return f"it has {len(value)} bytes, more than {most}"
        if key == "general.architecture" and isinstance(value, str) and not _ARCHITECTURE.fullmatch(value):
            return f"{value!r} is not a name"
    elif isinstance(value, StringArray) and key == "tokenizer.ggml.tokens":
        if len(value) > MAX_TOKENS:
            return f"{len(value)} tokens, more than {MAX_TOKENS}"
        if value.n_bytes > MAX_TOKEN_BYTES:
            return f"the tokens have {value.n_bytes} bytes, more than {MAX_TOKEN_BYTES}"
    elif isinstance(value, np.ndarray) and key == "tokenizer.ggml.scores" and np.isnan(value).any():
        return "a score is not a number"
    return ""
