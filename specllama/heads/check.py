"""Checks that llama.cpp could load a model or a head without an exception or abort. Reads no file."""

from __future__ import annotations

from specllama.errors import GGUFError, UsageError, option
from specllama.gguf import check
from specllama.gguf.architectures import ARCHITECTURES, file_pooling, is_embedder, may_rank
from specllama.gguf.header import Header, tensor_names
from specllama.gguf.trimmed import read_trim
from specllama.heads import HEAD_ARCHITECTURES, damaged_head, is_head_file, read_head

_NAME_TARGET = (
    f"Name the model itself with {option('model')}, and this file as its draft with {option('draft_model')}."
)


def check_model(header: Header) -> None:
    """Raises GGUFError naming the key at fault for a header from which no model can be run, UsageError for a
    file that is intact and only drafts: a head, a trimmed draft.

    The messages name vocabulary-only files, projectors and adapters as such.
    """
    if (trim := read_trim(header)) is not None:
        what = "head" if is_head_file(header) else "draft"
        raise UsageError(
            f"{header.path} is a trimmed {what}, with {trim.n_kept} of {trim.n_vocab} tokens: "
            "it drafts for a target",
            _NAME_TARGET,
        )
    _check_model(header)


def check_embedder(header: Header, pooling: str = "auto") -> None:
    """As `check_model`, for a model that makes vectors or scores of texts. pooling: as asked for; "auto" for
    the file's own, without which the file is of another kind of model, and refused with UsageError.
    """
    if pooling == "auto" and header.architecture in ARCHITECTURES and not is_embedder(header):
        raise UsageError(
            f"{header.path} is no embedding model: its header names no pooling, so it writes texts",
            f"name an embedding model (specllama models); {option('pooling', 'last')} or "
            f"{option('pooling', 'mean')} makes vectors with this one all the same",
        )
    wanted = file_pooling(header) if pooling == "auto" else pooling
    if wanted == "rank" and not may_rank(header):
        raise UsageError(
            f": {header.path} has no part that ranks, and is no reranker", "name a reranker", option="pooling"
        )
    _check_model(header, embeds=True)


def _check_model(header: Header, embeds: bool = False) -> None:
    check.check_architecture(header, embeds)
    if is_head_file(header):
        hint = "name an embedding model (specllama models)" if embeds else _NAME_TARGET
        raise UsageError(f"{header.path} is a head without a model: it drafts for a target", hint)
    if not header.tensors:
        what = "a vocabulary-only file" if len(header.tokens) else "a file without weights"
        message = f"{header.path}: tensor_count at byte 8: 0: {what}"
        raise GGUFError(message, "Get a file of the model that has weights.")
    _check_shape(header)
    check.check_tokenizer(header)
    check.check_embeddings(header)
    check.check_types(header)
    check.check_numbers(header)
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
    check.check_architecture(header)
    _check_shape(header)
    check.check_tokenizer(header)
    read_head(header)
    if "token_embd.weight" in tensor_names(header):
        check.check_embeddings(header)
    check.check_types(header)
    check.check_numbers(header)


def _check_shape(header: Header) -> None:
    check.check_sizes(header)
    key, n_layer = f"{header.architecture}.nextn_predict_layers", header.n_layer
    if header.architecture not in HEAD_ARCHITECTURES and header.integer(key) >= n_layer:
        header.fail(key, f"not below the {n_layer} layers")
    check.check_experts(header)
    check.check_attention(header)
