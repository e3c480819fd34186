"""DFlash (arXiv 2602.06036) and DFlash 2, which has a selector among the candidates for each token."""

from __future__ import annotations

from specllama.gguf.header import Header, tensor_names
from specllama.heads.block_drafter import (
    ARCHITECTURE,
    MARKOV,
    block_refusals,
    read_block_drafter,
    read_selector,
)
from specllama.heads.kind import HeadInfo, HeadKind


def _read(header: Header) -> HeadInfo:
    top_k = read_selector(header)
    return read_block_drafter(header, DFLASH, top_k=top_k, unset_size=0 if top_k else 16, least_size=2)


def _label(head: HeadInfo) -> str:
    return f"{'DFlash 2' if head.selector_top_k else 'DFlash'}, blocks of {head.block_size}"


DFLASH = HeadKind(
    "dflash",
    recognises=lambda header: header.architecture == ARCHITECTURE and MARKOV not in tensor_names(header),
    read=_read,
    refusals=block_refusals,
    label=_label,
    architecture=ARCHITECTURE,
    drafts_blocks=True,
)
