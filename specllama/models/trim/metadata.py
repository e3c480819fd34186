"""The metadata of a trimmed file: that of its source with a shortened tokenizer, and what was kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specllama.errors import UsageError
from specllama.gguf.parse import MetadataEntry
from specllama.gguf.strings import StringArray
from specllama.gguf.trimmed import PREFIX, VERSION
from specllama.models.trim.tokens import names_token

_LEFT_OUT = ("general.architecture", "general.alignment", "tokenizer.huggingface.json")
_PER_TOKEN = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type"))
_MERGES = "tokenizer.ggml.merges"


class KeyValue(NamedTuple):
    """A metadata value as the parser names its type: "u32", "arr[str]"."""

    key: str
    value: Any
    kind: str


def copied(entries: Mapping[str, MetadataEntry]) -> Iterator[KeyValue]:
    """The metadata of the source without what depends on how its file is split."""
    for key, entry in entries.items():
        if key not in _LEFT_OUT and not key.startswith(("split.", PREFIX)):
            yield KeyValue(key, entry.value, entry.kind)


def shortened(
    entries: Mapping[str, MetadataEntry], ids: NDArray[np.int64], texts: list[bytes]
) -> Iterator[KeyValue]:
    """The metadata of the source with the tokens `ids` only. texts: of all of its tokens. Raises UsageError
    where no merge is left, which llama.cpp needs.
    """
    own = {int(token): i for i, token in enumerate(ids)}
    for key, value, kind in copied(entries):
        if key in _PER_TOKEN:
            raws = value.raws() if isinstance(value, StringArray) else value.tolist()
            yield KeyValue(key, [raws[token] for token in ids.tolist()], kind)
        elif key == _MERGES:
            yield KeyValue(key, _merges(value, {texts[token] for token in own}), kind)
        elif key == "tokenizer.ggml.suppress_tokens":
            if suppressed := [own[int(token)] for token in value if int(token) in own]:
                yield KeyValue(key, suppressed, kind)
        elif names_token(key):
            if value in own:
                yield KeyValue(key, own[value], kind)
        else:
            yield KeyValue(key, value, kind)


def _merges(merges: StringArray, kept: set[bytes]) -> list[bytes]:
    """The merges of kept tokens into a kept token, in their order."""
    merges_kept = []
    for raw in merges.raws():
        left, _, right = raw.partition(b" ")
        if left in kept and right in kept and left + right in kept:
            merges_kept.append(raw)
    if not merges_kept:
        raise UsageError(
            "no merge of the tokenizer is left, so that llama.cpp could not load it", "keep more"
        )
    return merges_kept


def about(
    ids: NDArray[np.int64], n_vocab: int, source: str, sha256: str, n_bytes: int, coverage: float | None
) -> Iterator[KeyValue]:
    """What gguf/trimmed.py reads. source, sha256, n_bytes: name and contents of the source."""
    yield KeyValue(f"{PREFIX}version", VERSION, "u32")
    yield KeyValue(f"{PREFIX}n_vocab", n_vocab, "u32")
    yield KeyValue(f"{PREFIX}ids", ids.tolist(), "arr[i32]")
    yield KeyValue(f"{PREFIX}source", source, "str")
    yield KeyValue(f"{PREFIX}source_sha256", sha256, "str")
    yield KeyValue(f"{PREFIX}source_bytes", n_bytes, "u64")
    if coverage is not None:
        yield KeyValue(f"{PREFIX}coverage", coverage, "f32")


def embeddings(n_bytes: int, kind: str) -> Iterator[KeyValue]:
    """The place of the other tokens' embeddings, which is known once the file is written."""
    yield KeyValue(f"{PREFIX}embeddings_offset", 0, "u64")
    yield KeyValue(f"{PREFIX}embeddings_bytes", n_bytes, "u64")
    yield KeyValue(f"{PREFIX}embeddings_type", kind, "str")
    yield KeyValue(f"{PREFIX}embeddings_scale", 1.0, "f32")
