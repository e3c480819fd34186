"""Multi-token prediction (MTP): blocks after those of a model, in its own file or in one without the others.

Sources: the loaders and the `graph_mtp` of llama.cpp's src/models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType

from specllama.errors import GGUFError
from specllama.gguf.architectures import MTP as ARCHITECTURES
from specllama.gguf.architectures import MTP_ASSERTED, MTP_CHAINED, MTP_REQUIRED, NEXTN_ROWS
from specllama.gguf.header import Header, dims, first_missing, tensor_names, tensor_shape
from specllama.gguf.parse import Value
from specllama.gguf.trimmed import read_trim
from specllama.heads.kind import GET_ANOTHER, HeadInfo, HeadKind, of_blocks, width_refusals
from specllama.wording import counted

MAX_CHAINED = 8  # blocks of multi-token prediction that are used; models have up to three
_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm")  # of every MTP block


def _read(header: Header) -> HeadInfo | None:
    reason = _unusable(header)
    if reason and _is_sidecar(header):
        raise GGUFError(f"{header.path}: {reason}", GET_ANOTHER)
    return None if reason else _info(header)


def _unusable(header: Header) -> str:
    """Why the MTP blocks that a header promises cannot be used, "" if they can."""
    n_mtp, architecture = _n_mtp(header), header.architecture
    if not _has_mtp(header):
        return f"the header promises {counted(n_mtp, 'MTP layer')}, which the file does not have"
    if architecture not in ARCHITECTURES:
        return f"llama.cpp here does not run the MTP layers of {architecture!r} models"
    if n_mtp > 1 and architecture not in MTP_CHAINED:
        return f"llama.cpp here runs one MTP layer of {architecture!r} models, the file has {n_mtp}"
    if reason := _damage(header, MTP_ASSERTED.get(architecture, ())):
        return reason
    names = tensor_names(header)
    if _is_sidecar(header) and (missing := first_missing(names, ("token_embd", "output_norm"))):
        return f"the file of the MTP layer lacks {missing}"
    return ""


def _damaged(header: Header) -> str:
    """Why llama.cpp does not load a model whose MTP blocks are missing or incomplete, "" if it loads it."""
    if header.architecture not in ARCHITECTURES | MTP_REQUIRED:
        return ""
    if f"blk.{header.n_layer_trunk}.nextn.eh_proj.weight" in tensor_names(header):
        return _damage(header)
    return _unusable(header) if header.architecture in MTP_REQUIRED else ""


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


def _info(header: Header) -> HeadInfo:
    names, n_trunk, n_mtp = tensor_names(header), header.n_layer_trunk, _n_mtp(header)
    first = f"blk.{n_trunk}.nextn."
    width = header.n_embd * max(header.arch_integer("hyper_connection.count"), 1)
    own_file, trim = _is_sidecar(header), read_trim(header)
    return HeadInfo(
        kind=MTP,
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


def _refusals(target: Header, head: HeadInfo) -> Iterator[str]:
    if not head.own_file:
        return
    if target.architecture != head.header.architecture:
        yield f"the head is of a {head.header.architecture!r} model, the target is {target.architecture!r}"
    yield from width_refusals(
        head.n_embd_target, target.n_embd * max(target.arch_integer("hyper_connection.count"), 1)
    )
    n_layer = target.n_layer_trunk
    if head.n_layer_target != n_layer:
        yield f"the head is of a model of {head.n_layer_target} layers, the target has {n_layer}"
    if target.architecture not in NEXTN_ROWS:
        yield f"llama.cpp here does not hand out the hidden states of {target.architecture!r} models"


def _memory_header(head: HeadInfo) -> Header:
    header = head.header
    name = "" if head.own_file else f"the head of {header.name}"
    blocks = of_blocks(header, range(head.n_layer_target, header.n_layer), head.tensors)
    more: dict[str, Value] = {f"{header.architecture}.full_attention_interval": 1}  # all of its blocks attend
    if name:
        more["general.name"] = name
    return replace(blocks, metadata=MappingProxyType({**blocks.metadata, **more}))


def _n_mtp(header: Header) -> int:
    return header.integer(f"{header.architecture}.nextn_predict_layers")


def _has_mtp(header: Header) -> bool:
    first = f"blk.{header.n_layer_trunk}.nextn."
    return any(name.startswith(first) for name in tensor_names(header))


def _is_sidecar(header: Header) -> bool:
    """Whether blocks of the trunk are missing, as in mtp-*.gguf: llama.cpp looks for the first one's norm."""
    return "blk.0.attn_norm.weight" not in tensor_names(header) and _has_mtp(header)


MTP = HeadKind(
    "mtp",
    recognises=lambda header: _n_mtp(header) > 0,
    read=_read,
    refusals=_refusals,
    label=lambda head: f"MTP, {counted(head.n_layer, 'layer')}",
    alone=_is_sidecar,
    unusable=_unusable,
    damaged=_damaged,
    memory_header=_memory_header,
    nextn_layers=True,
    one_block_a_step=True,
    keeps_tokenizer=False,
)
