"""DSpark: a block drafter with a Markov model of a token after the one before it."""

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
    return read_block_drafter(
        header,
        DSPARK,
        top_k=read_selector(header),  # which llama.cpp does not run in such a head
        unset_size=0,
        least_size=1,
        needed=("markov_w2",),
        anchored=header.flag("dflash.sample_from_anchor") is not False,
    )


DSPARK = HeadKind(
    "dspark",
    recognises=lambda header: header.architecture == ARCHITECTURE and MARKOV in tensor_names(header),
    read=_read,
    refusals=block_refusals,
    label=lambda head: f"DSpark, blocks of {head.block_size}",
    architecture=ARCHITECTURE,
    drafts_blocks=True,
)
