"""The registry of kinds of heads: one entry each, and the head that a header has.

A new kind needs a file in this package and an entry here; see `kind.py`. All other code, from the memory plan
to the context, uses the attributes of the entry. Reads headers only.
"""

from __future__ import annotations

from specllama.gguf.header import Header
from specllama.heads.dflash import DFLASH, DSPARK
from specllama.heads.eagle3 import EAGLE3
from specllama.heads.gemma4_assistant import GEMMA4_ASSISTANT
from specllama.heads.kind import HeadInfo, HeadKind
from specllama.heads.mtp import MTP

# Those with architectures of their own first.
KINDS: tuple[HeadKind, ...] = (GEMMA4_ASSISTANT, EAGLE3, DFLASH, DSPARK, MTP)

# Of files that hold a head without a model: they need a target.
HEAD_ARCHITECTURES = frozenset(kind.architecture for kind in KINDS if kind.architecture)


def is_head_file(header: Header) -> bool:
    """Whether the file holds a head and no model: alone it cannot be run."""
    kind = kind_of(header)
    return kind is not None and kind.alone(header)


def kind_of(header: Header) -> HeadKind | None:
    """The kind of the head that a header promises, None if it promises none."""
    return next((kind for kind in KINDS if kind.recognises(header)), None)


def read_head(header: Header) -> HeadInfo | None:
    """The head that a file carries or is, read once for each header; None for a model without a usable one
    (see `unusable_head`).

    Raises GGUFError for a file that holds nothing but a head, and not all of it.
    """
    return header.once(_read)


def file_head(header: Header) -> HeadInfo | None:
    """The head that a file is, None for a model, with a head or without. Raises GGUFError as `read_head`."""
    return read_head(header) if is_head_file(header) else None


def unusable_head(header: Header) -> str:
    """Why the head that a model's header promises cannot be used, "" if it promises none or it can."""
    kind = kind_of(header)
    return kind.unusable(header) if kind is not None else ""


def damaged_head(header: Header) -> str:
    """Why llama.cpp does not load a model whose head is missing or incomplete, "" if it loads it."""
    kind = kind_of(header)
    return kind.damaged(header) if kind is not None else ""


def _read(header: Header) -> HeadInfo | None:
    kind = kind_of(header)
    return kind.read(header) if kind is not None else None
