"""What llama.cpp can do with an architecture, from architectures.toml; and what a header says of a model that
makes vectors of texts: its pooling, whether it attends to later tokens, and whether its vectors may be
shortened. Knows no settings.
"""

from __future__ import annotations

import re
from typing import Any

from specllama.gguf.header import Header, tensor_names
from specllama.regular_file import table_of

_TABLE: dict[str, Any] = table_of(__file__)


def _names(key: str) -> frozenset[str]:
    return frozenset(_TABLE[key].split())


ARCHITECTURES, RECURRENT, HYBRID = _names("architectures"), _names("recurrent"), _names("hybrid")
ROLLBACK, INTERVAL = _names("rollback"), _names("interval")
NOT_CAUSAL, ENCODERS, SHORTENED = _names("not_causal"), _names("encoders"), _names("shortened")
MTP, MTP_CHAINED, MTP_REQUIRED = _names("mtp"), _names("mtp_chained"), _names("mtp_required")
LAYER_INPUTS, LAST_LAYER_OUTPUT = _names("layer_inputs"), _names("last_layer_output")
NEXTN_ROWS = _names("nextn_rows")
SWA_PATTERNS: dict[str, tuple[int, bool]] = {
    k: (n, first) for k, (n, first) in _TABLE["swa_patterns"].items()
}
MTP_ASSERTED: dict[str, list[str]] = _TABLE["mtp_asserted"]
TOKENIZERS: dict[str, str] = _TABLE["tokenizers"]
POOLING_TYPES = ("none", "mean", "cls", "last", "rank")
"""By the number that files have: how the rows of a text become one vector, or with "rank" a score."""


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
    return any(name.startswith("cls.") for name in tensor_names(header))


def is_embedder(header: Header) -> bool:
    """Whether the file is of a model that makes vectors or scores of texts, and not of one that chats."""
    return header.architecture in ENCODERS or file_pooling(header) not in ("", "none")


def pooling_of(header: Header, wanted: str | None) -> str:
    """The pooling of a load, one of POOLING_TYPES. wanted: "auto" or None: the file's. Raises GGUFError."""
    return wanted if wanted in POOLING_TYPES else file_pooling(header) or "none"


def computed_at_once(header: Header, pooling: str) -> bool:
    """Whether a text needs one decode: tokens attend to later ones, or all of its rows are pooled."""
    causal = header.flag(f"{header.architecture}.attention.causal")
    both_ways = header.architecture in NOT_CAUSAL | ENCODERS or causal is False
    return both_ways or pooling not in ("last", "rank")


def may_shorten(header: Header) -> bool:
    """Whether the first numbers of a vector are a vector too."""
    names = (header.path, *(header.text(f"general.{key}") for key in ("name", "basename")))
    words = [re.sub(r"[\W_]", "", name.lower()) for name in names]
    return any(re.sub(r"[\W_]", "", known) in word for known in SHORTENED for word in words)
