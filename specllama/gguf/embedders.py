"""What a header says of a model that makes vectors of texts: its pooling, whether it attends to later tokens,
and whether its vectors may be shortened. Knows no settings.
"""

from __future__ import annotations

import re

from specllama.gguf.architectures import ENCODERS, NOT_CAUSAL
from specllama.gguf.header import Header, tensor_names

POOLING_TYPES = ("none", "mean", "cls", "last", "rank")
"""By the number that files have: how the rows of a text become one vector, or with "rank" a score."""

# Models that were trained so that the first numbers of a vector are a vector too (Matryoshka). No key of a
# file says so. By their model cards; words are compared without dashes, dots and blanks.
_SHORTENED = (
    "nomic-embed-text-v1.5", "nomic-embed-text-v2", "qwen3-embedding", "embeddinggemma", "embedding-gemma",
    "jina-embeddings-v3", "jina-embeddings-v4", "mxbai-embed-large", "mxbai-embed-2d",
    "arctic-embed-m-v1.5", "arctic-embed-m-v2", "arctic-embed-l-v2", "granite-embedding-r2",
)  # fmt: skip


def file_pooling(header: Header) -> str:
    """The pooling that the file names, "" if it names none; that of rerankers often follows from their part
    that ranks alone. Raises GGUFError for an unknown one.
    """
    key = f"{header.architecture}.pooling_type"
    if key not in header.metadata:
        return "rank" if may_rank(header) else ""
    number = header.integer(key, -1)
    if not 0 <= number < len(POOLING_TYPES):
        header.fail(key, f"{number} is no pooling, not in 0 to {len(POOLING_TYPES) - 1}")
    return POOLING_TYPES[number]


def may_rank(header: Header) -> bool:
    """Whether the model has a part that ranks."""
    return any(name.startswith("cls.") for name in tensor_names(header))


def is_embedder(header: Header) -> bool:
    """Whether the file is of a model that makes vectors or scores of texts, and not of one that chats."""
    return header.architecture in ENCODERS or file_pooling(header) not in ("", "none")


def pooling_of(header: Header, wanted: str | None) -> str:
    """The pooling of a load, one of POOLING_TYPES. wanted: "auto" or None for the file's own. Raises
    GGUFError.
    """
    return wanted if wanted in POOLING_TYPES else file_pooling(header) or "none"


def computed_at_once(header: Header, pooling: str) -> bool:
    """Whether a text has to be computed in one decode: its tokens attend to later ones, or all of its rows
    are pooled.
    """
    causal = header.flag(f"{header.architecture}.attention.causal")
    both_ways = header.architecture in NOT_CAUSAL | ENCODERS or causal is False
    return both_ways or pooling not in ("last", "rank")


def may_shorten(header: Header) -> bool:
    """Whether the first numbers of a vector are a vector too."""
    names = (header.path, *(header.text(f"general.{key}") for key in ("name", "basename")))
    words = [re.sub(r"[\W_]", "", name.lower()) for name in names]
    return any(re.sub(r"[\W_]", "", known) in word for known in _SHORTENED for word in words)
