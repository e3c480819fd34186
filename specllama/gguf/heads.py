"""Finds the head that a GGUF file carries or is, from its header alone.

pair/heads.py compares it with a target. Sources: the loaders and the `graph_mtp` of llama.cpp's src/models.
"""

from __future__ import annotations

from collections.abc import Iterable

from specllama.errors import GGUFError
from specllama.gguf.architectures import HEAD_FILES, MTP, MTP_ASSERTED, MTP_CHAINED, MTP_REQUIRED
from specllama.gguf.head import (
    GET_ANOTHER,
    HeadInfo,
    HeadKind,
    dims,
    first_missing,
    tensor_names,
    tensor_shape,
)
from specllama.gguf.head_files import block_drafter, eagle3, gemma4_assistant
from specllama.gguf.header import Header
from specllama.gguf.trimmed import read_trim
from specllama.wording import counted

MAX_CHAINED = 8  # blocks of multi-token prediction that are used; models have up to three
_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm")  # of every MTP block


def is_head_file(header: Header) -> bool:
    """Whether the file holds a head and no model: alone it cannot be run."""
    return header.architecture in HEAD_FILES or (_n_mtp(header) > 0 and _is_sidecar(header))


def read_head(header: Header) -> HeadInfo | None:
    """The head that a file carries or is; None for a model without a usable one (see `unusable_head`).

    Raises GGUFError for a file that holds nothing but a head, and not all of it.
    """
    if header.architecture == "eagle3":
        return eagle3(header)
    if header.architecture == "dflash":
        return block_drafter(header)
    if header.architecture == "gemma4-assistant":
        return gemma4_assistant(header)
    if not _n_mtp(header):
        return None
    reason = unusable_head(header)
    if reason and _is_sidecar(header):
        raise GGUFError(f"{header.path}: {reason}", GET_ANOTHER)
    return None if reason else _mtp(header)


def unusable_head(header: Header) -> str:
    """Why the MTP blocks that a header promises cannot be used, "" if it promises none or they can."""
    n_mtp, architecture = _n_mtp(header), header.architecture
    if not n_mtp or architecture in HEAD_FILES:
        return ""
    if not _has_mtp(header):
        return f"the header promises {_layers(n_mtp)}, which the file does not have"
    if architecture not in MTP:
        return f"llama.cpp here does not run the MTP layers of {architecture!r} models"
    if n_mtp > 1 and architecture not in MTP_CHAINED:
        return f"llama.cpp here runs one MTP layer of {architecture!r} models, the file has {n_mtp}"
    if reason := _damage(header, MTP_ASSERTED.get(architecture, ())):
        return reason
    names = tensor_names(header)
    if _is_sidecar(header) and (missing := first_missing(names, ("token_embd", "output_norm"))):
        return f"the file of the MTP layer lacks {missing}"
    return ""


def damaged_head(header: Header) -> str:
    """Why llama.cpp does not load a model whose MTP blocks are missing or incomplete, "" if it loads it."""
    if not _n_mtp(header) or header.architecture not in MTP | MTP_REQUIRED:
        return ""
    if f"blk.{header.n_layer_trunk}.nextn.eh_proj.weight" in tensor_names(header):
        return _damage(header)
    return unusable_head(header) if header.architecture in MTP_REQUIRED else ""


def _damage(header: Header, more: Iterable[str] = ()) -> str:
    """The first tensor of the MTP blocks that is missing, or of another shape; "" if there is none."""
    blocks = range(header.n_layer_trunk, header.n_layer)
    needed = [f"blk.{i}.{name}" for i in blocks for name in (*_NEEDED, *more)]
    if missing := first_missing(tensor_names(header), needed):
        return f"the MTP layer lacks {missing}"
    expected = (2 * header.n_embd, header.n_embd)
    for i in blocks:
        name = f"blk.{i}.nextn.eh_proj.weight"
        if (shape := tensor_shape(header, name)) != expected:
            return f"{name} is {dims(shape)}, not {dims(expected)}"
    return ""


def _mtp(header: Header) -> HeadInfo:
    names, n_trunk, n_mtp = tensor_names(header), header.n_layer_trunk, _n_mtp(header)
    first = f"blk.{n_trunk}.nextn."
    width = header.n_embd * max(header.arch_integer("hyper_connection.count"), 1)
    own_file, trim = _is_sidecar(header), read_trim(header)
    return HeadInfo(
        kind=HeadKind.MTP,
        header=header,
        own_file=own_file,
        n_layer=n_mtp,
        n_embd=header.n_embd,
        n_embd_target=width,
        n_vocab=trim.n_vocab if trim else header.n_vocab,
        n_proposed=header.n_vocab,
        n_layer_target=n_trunk,
        own_embeddings=own_file or f"{first}embed_tokens.weight" in names,
        own_output=own_file or f"{first}shared_head_head.weight" in names,
        n_chained=min(n_mtp, MAX_CHAINED),
    )


def _n_mtp(header: Header) -> int:
    return header.integer(f"{header.architecture}.nextn_predict_layers")


def _is_sidecar(header: Header) -> bool:
    """Whether blocks of the trunk are missing, as in mtp-*.gguf: llama.cpp looks for the first one's norm."""
    return "blk.0.attn_norm.weight" not in tensor_names(header) and _has_mtp(header)


def _has_mtp(header: Header) -> bool:
    first = f"blk.{header.n_layer_trunk}.nextn."
    return any(name.startswith(first) for name in tensor_names(header))


def _layers(n: int) -> str:
    return counted(n, "MTP layer")
