"""Checks of the parts of a header without which llama.cpp would load it with an exception or abort. Reads no
file; heads/check.py knows which of them a model and a head must pass.
"""

from __future__ import annotations

import math
from difflib import get_close_matches

import numpy as np

from specllama.errors import GGUFError, UsageError, option
from specllama.gguf.architectures import ARCHITECTURES, ENCODERS, NOT_CAUSAL, RECURRENT, TOKENIZERS
from specllama.gguf.header import MAX_LAYERS, Header, dims
from specllama.gguf.parse import NOT_MULTIPLIED, StringArray

MAX_WIDTH = 1 << 20  # of embeddings and heads: a larger one is damage, and would later run out of memory
MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS: above it llama.cpp aborts
_ID_TABLES = ("tid2eid", "d2t")  # tensors that are not weights
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
NO_TOKENIZER = frozenset(("none", "no_vocab"))


def check_architecture(header: Header, embeds: bool = False) -> None:
    """Raises GGUFError for what is no language model, or none that llama.cpp here generates text with.
    embeds: it is to make vectors instead, as encoders do too.
    """
    architecture, kind = header.architecture, header.text("general.type")
    if kind == "adapter" or is_projector(header):
        what, flag = "an adapter (LoRA)", option("lora")
        if kind != "adapter":
            of = header.text("general.basename") or header.text("general.name")
            what, flag = f"a multimodal projector (mmproj){of and f' of {of}'}", option("mmproj")
        hint = f"{option('model')} names a model, and {flag} this file: run, chat and serve take both."
        raise GGUFError(f"{header.path} is {what}, not a language model", hint)
    if not architecture:
        header.fail("general.architecture", "without it the file cannot be loaded")
    if architecture not in ARCHITECTURES:
        close = get_close_matches(architecture, ARCHITECTURES, 1)
        hint = f"Did the converter mean {close[0]!r}? " if close else ""
        reason = "general.architecture"
        header.fail(reason, f"{architecture!r} is unknown to llama.cpp here", hint + "Update specllama.")
    if architecture in NOT_CAUSAL and not (embeds and architecture in ENCODERS):
        made = "Its vectors: specllama embed -m FILE, or specllama serve --embeddings FILE."
        hint = made if architecture in ENCODERS else "Get another model."
        reason = f"{architecture!r} models do not generate text token by token"
        header.fail("general.architecture", reason, hint)


def is_projector(header: Header) -> bool:
    return header.text("general.type") == "mmproj" or header.architecture == "clip"


def check_sizes(header: Header) -> None:
    """Raises GGUFError for a number of layers, a width or a context that is not possible."""
    limits = {"block_count": MAX_LAYERS, "embedding_length": MAX_WIDTH, "context_length": 1 << 31}
    for suffix, most in limits.items():
        key = f"{header.architecture}.{suffix}"
        value = header.integer(key)
        if not 1 <= value <= most:
            why = f"{value} is not in 1 to {most}" if key in header.metadata else "the model needs it"
            header.fail(key, why)


def check_attention(header: Header) -> None:
    """Raises GGUFError for numbers of attention heads that are not possible."""
    prefix = header.architecture
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


def check_experts(header: Header) -> None:
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
        reason = "the file has no tokenizer"
        header.fail(key, reason, "Get or convert a file of the model with its tokenizer.")
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
    texts, seen = header.token_texts, dict[bytes, int]()
    for i, raw in enumerate(texts) if len(set(texts)) < len(texts) else ():  # llama.cpp aborts the process
        if raw in seen:
            text = raw.decode(errors="replace")
            header.fail("tokenizer.ggml.tokens", f"tokens {seen[raw]} and {i} have the same text {text!r}")
        seen[raw] = i


def check_embeddings(header: Header) -> None:
    """Raises GGUFError for embeddings that are missing or of another shape."""
    embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    if embedding is None:
        reason = "token_embd.weight is not among them"
        raise GGUFError(f"{header.path}: {len(header.tensors)} tensors: {reason}", "Get the whole model.")
    expected = (header.n_embd, header.n_vocab)
    shape = (*embedding.shape, 1)[:2]
    if shape != expected:
        where = f"{header.path}: tensor {embedding.name!r} dimensions, data at byte {embedding.offset}"
        reason = f"{dims(shape)}, but embedding_length × vocabulary is {dims(expected)}"
        raise GGUFError(f"{where}: {reason}", "Get another file of the model.")


def check_types(header: Header) -> None:
    """Raises GGUFError for a tensor of a type that llama.cpp does not compute with."""
    for t in header.tensors:
        reason = ""
        if t.type in NOT_MULTIPLIED and not any(name in t.name for name in _ID_TABLES):
            reason = "not a type of weights"
        elif len(t.shape) == 1 and t.type != "F32" and t.name.endswith(("norm.weight", ".bias")):
            reason = "norms and biases are F32"
        if reason:
            message = f"{header.path}: tensor {t.name!r} type {t.type}, data at byte {t.offset}: {reason}"
            raise GGUFError(message, "Get another file of the model.")


def check_numbers(header: Header) -> None:
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


def check_projector(header: Header) -> None:
    """Raises UsageError for what is no projector (mmproj), and for one without an encoder of images."""
    if header.architecture != "clip":
        what = f"its architecture is {header.architecture!r}" if header.architecture else "it names none"
        raise UsageError(
            f"{header.path} is not a projector (mmproj): {what}",
            "name the file mmproj-*.gguf that was published with the model",
        )
    if header.metadata.get("clip.has_vision_encoder") is not True:
        raise UsageError(f"{header.path} has no encoder of images", "name a projector for images")
