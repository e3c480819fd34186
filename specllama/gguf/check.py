"""Checks that llama.cpp could load a model or a head with this header without an exception or abort. Reads no
file.
"""

from __future__ import annotations

import math
from difflib import get_close_matches

import numpy as np

from specllama.errors import GGUFError
from specllama.gguf.architectures import ARCHITECTURES, HEAD_FILES, NOT_CAUSAL, RECURRENT
from specllama.gguf.head import tensor_names
from specllama.gguf.header import MAX_LAYERS, Header
from specllama.gguf.heads import damaged_head, is_head_file, read_head
from specllama.gguf.strings import StringArray
from specllama.gguf.trimmed import PREFIX, is_trimmed, read_trim
from specllama.gguf.types import NOT_MULTIPLIED

MAX_WIDTH = 1 << 20  # of embeddings and heads: a larger one is damage, and would later run out of memory
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
_ID_TABLES = ("tid2eid", "d2t")  # tensors that are not weights
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
NO_TOKENIZER = frozenset(("none", "no_vocab"))


def check_model(header: Header) -> None:
    """Raises GGUFError naming the key at fault for a header from which no model can be run.

    The messages name vocabulary-only files, projectors, adapters, heads and trimmed drafts as such.
    """
    if is_trimmed(header):
        what = "a trimmed draft, which can write a part of the tokens"
        header.fail(f"{PREFIX}version", what, "Name the model itself, and this file as its draft.")
    _check_model(header)


def _check_model(header: Header) -> None:
    _check_architecture(header)
    if is_head_file(header):
        what = "a head without a model: it drafts for a target"
        header.fail("general.architecture", what, "Name the model itself, and this file as its draft.")
    if not header.tensors:
        what = "a vocabulary-only file" if len(header.tokens) else "a file without weights"
        raise GGUFError(
            f"{header.path}: tensor_count at byte 8: 0: {what}", "Get a file of the model that has weights."
        )
    _check_shape(header)
    check_tokenizer(header)
    _check_embeddings(header)
    _check_types(header)
    _check_numbers(header)
    if reason := damaged_head(header):
        key = f"{header.architecture}.nextn_predict_layers"
        header.fail(key, f"{reason}: llama.cpp does not load the model")


def check_draft(header: Header) -> None:
    """As `check_model`, for a file that is to draft: a model, or a head without one.

    Raises GGUFError naming the key or tensor at fault.
    """
    read_trim(header)
    if not is_head_file(header):
        _check_model(header)
        return
    _check_architecture(header)
    _check_shape(header)
    check_tokenizer(header)
    read_head(header)
    if "token_embd.weight" in tensor_names(header):
        _check_embeddings(header)
    _check_types(header)
    _check_numbers(header)


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
        header.fail("general.architecture", f"{architecture!r} models do not generate text token by token")


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
    if prefix not in HEAD_FILES and header.integer(f"{prefix}.nextn_predict_layers") >= header.n_layer:
        header.fail(f"{prefix}.nextn_predict_layers", f"not below the {header.n_layer} layers")
    _check_experts(header)
    for name, heads in (("head_count", header.n_head), ("head_count_kv", header.n_head_kv)):
        key = f"{prefix}.attention.{name}"
        if any(not 0 <= n <= MAX_WIDTH for n in heads):
            header.fail(key, f"{max(heads, key=abs)} heads are not possible")
        if prefix not in RECURRENT and not any(heads):
            header.fail(key, "0 attention heads" if key in header.metadata else "the model needs it")
    for suffix in ("key_length", "value_length"):
        key = f"{prefix}.attention.{suffix}"
        if key in header.metadata and not 1 <= header.integer(key) <= MAX_WIDTH and prefix not in RECURRENT:
            header.fail(key, f"{header.integer(key)} is not in 1 to {MAX_WIDTH}")


def _check_experts(header: Header) -> None:
    """Raises GGUFError for numbers of experts and groups that llama.cpp's load_hparams excludes."""
    key = f"{header.architecture}.expert"
    n_experts, n_groups = header.integer(f"{key}_count"), header.integer(f"{key}_group_count")
    used, groups_used = header.arch_integer("expert_used_count"), header.integer(f"{key}_group_used_count")
    if n_experts > MAX_EXPERTS:
        header.fail(f"{key}_count", f"more than {MAX_EXPERTS}")
    if bool(n_experts) != bool(used) or used > n_experts:
        header.fail(f"{key}_used_count", f"{used} of {n_experts} experts")
    if n_groups and (n_groups >= n_experts or n_experts % n_groups):
        header.fail(f"{key}_group_count", f"{n_groups} groups of {n_experts} experts")
    if n_groups > 1 and not 0 < groups_used < n_groups:
        header.fail(f"{key}_group_used_count", f"{groups_used} of {n_groups} groups")


def check_tokenizer(header: Header) -> None:
    """Raises GGUFError for a tokenizer that llama.cpp cannot load: absent, unknown or incomplete."""
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
    """Token texts must be unique: llama.cpp asserts it, and aborts the process otherwise."""
    texts = header.token_texts
    if len(set(texts)) == len(texts):
        return
    seen: dict[bytes, int] = {}
    for i, raw in enumerate(texts):
        if raw in seen:
            text = raw.decode(errors="replace")
            header.fail("tokenizer.ggml.tokens", f"tokens {seen[raw]} and {i} have the same text {text!r}")
        seen[raw] = i


def _check_embeddings(header: Header) -> None:
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


def _check_types(header: Header) -> None:
    for t in header.tensors:
        reason = ""
        if t.type in NOT_MULTIPLIED and not any(name in t.name for name in _ID_TABLES):
            reason = "not a type of weights"
        elif len(t.shape) == 1 and t.type != "F32" and t.name.endswith(("norm.weight", ".bias")):
            reason = "norms and biases are F32"
        if reason:
            raise GGUFError(
                f"{header.path}: tensor {t.name!r} type {t.type}, data at byte {t.offset}: {reason}",
                "Get another file of the model.",
            )


def _check_numbers(header: Header) -> None:
    """Raises GGUFError for numbers of the architecture with which ggml aborts or computes nothing."""
    for key, value in header.metadata.items():
        if not isinstance(value, float) or not key.startswith(f"{header.architecture}."):
            continue
        if not math.isfinite(value):
            header.fail(key, f"{value} is not a finite number")
        if key.endswith("_epsilon") and not 0 <= value <= 1:
            header.fail(key, f"{value} is not in 0 to 1")
    key = f"{header.architecture}.rope.scaling.type"
    if key in header.metadata and header.text(key) not in ROPE_SCALINGS:
        header.fail(key, f"{header.text(key)[:60]!r} is not one of {', '.join(ROPE_SCALINGS)}")
