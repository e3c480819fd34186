"""The value types of the metadata keys that specllama uses or llama.cpp requires."""

from __future__ import annotations

from collections.abc import Mapping

from specllama.errors import GGUFError
from specllama.gguf.parse import MetadataEntry

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
}
_ARCH_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("context_length", "embedding_length", "block_count", "vocab_size", "expert_count"), ("u32",)
    ),
    **dict.fromkeys(
        ("feed_forward_length", "attention.head_count", "attention.head_count_kv"), _LIST_OR_NUMBER
    ),
    "expert_used_count": _LIST_OR_NUMBER,
    **{f"attention.{n}_length{tail}": ("u32",) for n in ("key", "value") for tail in ("", "_swa", "_mla")},
    **{
        f"ssm.{n}": ("u32",)
        for n in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    },
    **dict.fromkeys(("nextn_predict_layers", "attention.shared_kv_layers", "wkv.head_size"), ("u32",)),
    **dict.fromkeys(
        ("token_shift_count", "shortconv.l_cache", "kda.head_dim", "full_attention_interval"), ("u32",)
    ),
}


def check_types(name: str, entries: Mapping[str, MetadataEntry]) -> None:
    """Raises GGUFError, with key and byte offset, for an entry of another type than llama.cpp expects.

    Unknown keys pass. name: the file, for the message.
    """
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
