"""The header of a file that `specllama trim` wrote: which tokens it kept, and of which file.

A trimmed draft model, or head with a tokenizer of its own, has a shortened tokenizer: its token i is token
`ids[i]` of the source. After its last tensor are the embeddings of the other tokens, which are only looked
up: llama.cpp ignores them, `llama/draft_contexts.py` reads them. A file with a tensor `d2t`, which
holds the ids that a head can propose, has all of its source's tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.gguf.header import Header
from specllama.gguf.parse import MAX_TOKENS, NOT_MULTIPLIED, TYPE_NUMBERS, row_bytes

PREFIX = "specllama.trim."
VERSION = 1
TRIM_AGAIN = "Trim the draft again: specllama trim."
_LONGEST_NAME = 255  # characters of a file name that are shown


@dataclass(frozen=True, eq=False)
class TrimInfo:
    """A trimmed file. ids: int64, ascending, the source's ids of the tokens that it can propose. n_vocab: of
    the source. source: its file name, unescaped; source_sha256, source_bytes: of its contents. shortened:
    whether the tokenizer is shortened too, so that ids have to be mapped. rest_offset, rest_type, rest_bytes:
    where in the file the embeddings of the other tokens are, in ascending order of their ids, and what they
    are; rest_offset is 0 without them. scale: by which a row of them is multiplied before it is used.
    coverage: share, 0 to 1, of the texts given to `specllama trim` that its tokens make up; None without.
    """

    ids: NDArray[np.int64]
    n_vocab: int
    source: str
    source_sha256: str
    source_bytes: int
    shortened: bool
    rest_offset: int = 0
    rest_type: str = "F32"
    rest_bytes: int = 0
    scale: float = 1.0
    coverage: float | None = None

    @property
    def n_kept(self) -> int:
        return len(self.ids)

    @property
    def label(self) -> str:
        covers = ""
        if self.coverage is not None:
            covers = f", covers {100 * self.coverage:.1f} % of the texts that it was trimmed for"
        name = repr(self.source[:_LONGEST_NAME])[1:-1]  # without control characters
        return f"trimmed from {name}, {self.n_kept} of {self.n_vocab} tokens{covers}"


def is_trimmed(header: Header) -> bool:
    """Whether `specllama trim` wrote the file."""
    return f"{PREFIX}version" in header.metadata


def read_trim(header: Header) -> TrimInfo | None:
    """The trimming that a header describes, None for a file that was not trimmed. Raises GGUFError."""
    if not is_trimmed(header):
        return None
    if (version := header.integer(f"{PREFIX}version")) != VERSION:
        hint = "Update specllama, or trim the draft again: specllama trim."
        header.fail(f"{PREFIX}version", f"{version}: this version of specllama reads {VERSION}", hint)
    n_vocab, key = header.integer(f"{PREFIX}n_vocab"), f"{PREFIX}ids"
    values = header.metadata.get(key)
    if not isinstance(values, np.ndarray) or not len(values):
        header.fail(key, "the ids of the kept tokens are needed", TRIM_AGAIN)
    ids = values.astype(np.int64)
    if n_vocab > MAX_TOKENS or (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= n_vocab:
        header.fail(key, f"not ascending ids of {n_vocab} tokens", TRIM_AGAIN)
    shortened = all(t.name != "d2t" for t in header.tensors)
    if (n_tokens := header.n_vocab) != (expected := len(ids) if shortened else n_vocab):
        reason = f"{len(ids)} ids, for which {expected} tokens are needed, not {n_tokens}"
        header.fail(key, reason, TRIM_AGAIN)
    return TrimInfo(
        ids=ids,
        n_vocab=n_vocab,
        source=header.text(f"{PREFIX}source"),
        source_sha256=header.text(f"{PREFIX}source_sha256"),
        source_bytes=header.integer(f"{PREFIX}source_bytes"),
        shortened=shortened,
        coverage=_coverage(header),
        **_rest(header, n_vocab - len(ids)),
    )


def _coverage(header: Header) -> float | None:
    key = f"{PREFIX}coverage"
    value = header.metadata.get(key)
    if not isinstance(value, float):
        return None
    if not 0 <= value <= 1:
        header.fail(key, f"{value} is not in 0 to 1", TRIM_AGAIN)
    return value


def _rest(header: Header, n: int) -> dict[str, Any]:
    """Fields about the embeddings of the n other tokens, if any. Raises GGUFError unless they are whole."""
    key = f"{PREFIX}embeddings_offset"
    offset = header.integer(key)
    if not offset:
        return {}
    n_bytes, kind = header.integer(f"{PREFIX}embeddings_bytes"), header.text(f"{PREFIX}embeddings_type")
    scale = header.metadata.get(f"{PREFIX}embeddings_scale", 1.0)
    end = max((t.offset + t.n_bytes for t in header.tensors), default=0)
    if not isinstance(scale, float) or not math.isfinite(scale) or scale <= 0:
        header.fail(f"{PREFIX}embeddings_scale", "not a positive, finite number", TRIM_AGAIN)
    known = kind in TYPE_NUMBERS and kind not in NOT_MULTIPLIED
    whole = known and n_bytes == n * row_bytes(kind, header.n_embd)
    if len(header.parts) > 1:
        header.fail(key, "a trimmed file cannot be split: its end would be lost", TRIM_AGAIN)
    if not whole or not end <= offset <= header.file_bytes - n_bytes:
        reason = f"{n_bytes} bytes of {kind[:20]!r} embeddings at byte {offset} of {header.file_bytes}"
        header.fail(key, reason, TRIM_AGAIN)
    return {"rest_offset": offset, "rest_bytes": n_bytes, "rest_type": kind, "scale": scale}
