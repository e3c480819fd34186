"""What a GGUF header must say so that llama.cpp loads the model instead of throwing or aborting.

Knows the keys and their types; reads nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from specllama.errors import GGUFError
from specllama.gguf.architectures import ARCHITECTURES, NOT_CAUSAL, RECURRENT
from specllama.gguf.parse import MetadataEntry
from specllama.gguf.strings import StringArray

if TYPE_CHECKING:
    from specllama.gguf.header import Header

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS: above it llama.cpp aborts
MAX_WIDTH = 1 << 20  # of embeddings and heads: more is damage, and would only fail later as memory
MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS: above it llama.cpp aborts

# Tokenizers that llama.cpp knows by `tokenizer.ggml.model`, and the type that it makes of each.
TOKENIZERS = {
    "llama": "spm",
    "bert": "wpm",
    "gpt2": "bpe",
    "hybriddna": "bpe",
    "whitespace": "bpe",
    "gemma4": "bpe",
    "t5": "ugm",
    "rwkv": "rwkv",
    "test": "test",
    "plamo2": "plamo2",
}
NO_TOKENIZER = frozenset(("none", "no_vocab"))

_LIST_OR_NUMBER = ("u32", "arr[u32]", "arr[i32]")
_SPECIAL = (
    "bos eos eot eom unknown padding seperator mask prefix suffix middle "
    "fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep"
)
_KINDS: dict[str, tuple[str, ...]] = {
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
_ARCH_KINDS: dict[str, tuple[str, ...]] = {
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


def check_kinds(name: str, entries: Mapping[str, MetadataEntry]) -> None:
    """Refuse keys that we use, or llama.cpp requires, with another type than it expects. Raises GGUFError."""
    architecture = entries.get("general.architecture")
    prefix = f"{architecture.value}." if architecture and isinstance(architecture.value, str) else None
    for i, (key, entry) in enumerate(entries.items()):
        allowed = _KINDS.get(key)
        if allowed is None and prefix and key.startswith(prefix):
            allowed = _ARCH_KINDS.get(key.removeprefix(prefix))
        if allowed and entry.kind not in allowed:
            message = f"{name}: metadata[{i}] {key!r} at byte {entry.offset}: its type is {entry.kind}, not "
            raise GGUFError(
                message + " or ".join(allowed), "Get another file of the model, or convert it again."
            )


def check_model(header: Header) -> None:
    """Refuse a header that cannot become a running model: GGUFError with the key at fault.

    Vocabulary-only files, projectors and adapters fail here with what they are.
    """
    _check_architecture(header)
    if not header.tensors:
        what = "a vocabulary-only file" if len(header.tokens) else "a file without weights"
        raise GGUFError(
            f"{header.path}: tensor_count at byte 8: 0: {what}", "Get a file of the model that has weights."
        )
    _check_shape(header)
    check_tokenizer(header)
    _check_tensors(header)


def _check_architecture(header: Header) -> None:
    architecture, kind = header.architecture, header.text("general.type")
    if kind in ("adapter", "mmproj") or architecture == "clip":
        what = "an adapter (LoRA)" if kind == "adapter" else "a multimodal projector (mmproj)"
        header.fail("general.architecture", f"{what}, not a language model", "Name the model itself.")
    if not architecture:
        header.fail("general.architecture", "without it the file cannot be loaded")
    if architecture not in ARCHITECTURES:
        close = get_close_matches(architecture, ARCHITECTURES, 1)
        hint = f"Did the converter mean {close[0]!r}? " if close else ""
        header.fail(
            "general.architecture",
            f"{architecture!r} is unknown to llama.cpp here",
            hint + "Update specllama.",
        )
    if architecture in NOT_CAUSAL:
        header.fail("general.architecture", f"{architecture!r} models do not write text token after token")


def _check_shape(header: Header) -> None:
    prefix = header.architecture
    for suffix, most in (
        ("block_count", MAX_LAYERS),
        ("embedding_length", MAX_WIDTH),
        ("context_length", 1 << 31),
    ):
        key = f"{prefix}.{suffix}"
        value = header.integer(key)
        if not 1 <= value <= most:
            header.fail(
                key, f"{value} is not in 1 to {most}" if key in header.metadata else "the model needs it"
            )
    if header.integer(f"{prefix}.nextn_predict_layers") >= header.n_layer:
        header.fail(f"{prefix}.nextn_predict_layers", f"not below the {header.n_layer} layers")
    if header.integer(f"{prefix}.expert_count") > MAX_EXPERTS:
        header.fail(f"{prefix}.expert_count", f"more than {MAX_EXPERTS}")
    for name, heads in (("head_count", header.n_head), ("head_count_kv", header.n_head_kv)):
        key = f"{prefix}.attention.{name}"
        if any(not 0 <= n <= MAX_WIDTH for n in heads):
            header.fail(key, f"{max(heads, key=abs)} heads cannot be")
        if prefix not in RECURRENT and not any(heads):
            header.fail(key, "0 attention heads" if key in header.metadata else "the model needs it")
    for suffix in ("key_length", "value_length"):
        key = f"{prefix}.attention.{suffix}"
        if key in header.metadata and not 1 <= header.integer(key) <= MAX_WIDTH and prefix not in RECURRENT:
            header.fail(key, f"{header.integer(key)} is not in 1 to {MAX_WIDTH}")


def check_tokenizer(header: Header) -> None:
    """Refuse a header whose tokenizer llama.cpp cannot load: absent, unknown, incomplete (GGUFError)."""
    key = "tokenizer.ggml.model"
    model = header.text(key)
    if not model or model in NO_TOKENIZER:
        header.fail(
            key, "the file has no tokenizer", "Get or convert a file of the model with its tokenizer."
        )
    if model not in TOKENIZERS:
        header.fail(key, f"{model!r} is unknown, not one of {', '.join(TOKENIZERS)}")
    n_tokens = len(header.tokens)
    if n_tokens == 0:
        header.fail("tokenizer.ggml.tokens", "the tokenizer has no tokens")
    for name in ("scores", "token_type"):
        values = header.metadata.get(f"tokenizer.ggml.{name}")
        if isinstance(values, np.ndarray) and len(values) < n_tokens:
            header.fail(f"tokenizer.ggml.{name}", f"{len(values)} values for {n_tokens} tokens")
    merges = header.metadata.get("tokenizer.ggml.merges")
    needs_merges = TOKENIZERS[model] == "bpe" and header.text("tokenizer.ggml.pre") != "kimi-k2"
    if needs_merges and not isinstance(merges, StringArray):
        header.fail("tokenizer.ggml.merges", f"a {model!r} tokenizer needs them")
    _check_unique(header)


def _check_unique(header: Header) -> None:
    # llama.cpp asserts that texts are unique, which ends the process: of each what lies before a NUL, and
    # where that is nothing a name that it makes itself.
    raws = header.tokens.raws()
    if not all(raws) or b"\0" in b"".join(raws):
        raws = [raw.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, raw in enumerate(raws)]
    if len(set(raws)) == len(raws):
        return
    seen: dict[bytes, int] = {}
    for i, raw in enumerate(raws):
        if raw in seen:
            text = raw.decode(errors="replace")
            header.fail("tokenizer.ggml.tokens", f"tokens {seen[raw]} and {i} have the same text {text!r}")
        seen[raw] = i


def _check_tensors(header: Header) -> None:
    embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    if embedding is None:
        reason = "token_embd.weight is not among them"
        raise GGUFError(f"{header.path}: {len(header.tensors)} tensors: {reason}", "Get the whole model.")
    expected = (header.n_embd, header.n_vocab)
    shape = (*embedding.shape, 1)[:2]
    if shape != expected:
        reason = (
            f"{shape[0]} × {shape[1]}, but embedding_length × vocabulary is {expected[0]} × {expected[1]}"
        )
        message = (
            f"{header.path}: tensor {embedding.name!r} dimensions, data at byte {embedding.offset}: {reason}"
        )
        raise GGUFError(message, "Get another file of the model.")
