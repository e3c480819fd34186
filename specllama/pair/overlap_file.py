"""Comparisons of large vocabularies on disk: comparing 128,000 to 260,000 tokens takes a second or more.

A file is named by the tokenizers of both models, and holds a digest of its name and contents: one that is
damaged, of another version, or of other tokenizers counts as missing. Knows nothing of how they are compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import specllama
from specllama.config.places import close_to_others
from specllama.config.store import cache_dir
from specllama.config.whole_file import write_whole
from specllama.gguf.header import Header
from specllama.gguf.strings import StringArray
from specllama.pair.shared_tokens import Overlap
from specllama.regular_file import read_regular

LEAST_TOKENS = 1 << 16  # of both vocabularies, from which a comparison takes longer than reading its file
MAX_FILES = 16
_VERSION = 1
_COUNTS = struct.Struct("<5q")
_DIGEST = hashlib.sha256().digest_size


def read(target: Header, draft: Header) -> Overlap | None:
    """What was stored for the tokenizers of two models, None where nothing was, or nothing that is whole."""
    if (path := _path(target, draft)) is None:
        return None
    most = _DIGEST + _COUNTS.size + 8 * draft.n_vocab + -(-target.n_vocab // 8)  # bytes
    try:
        data = read_regular(path, most + 1)
    except OSError:
        return None
    body = data[_DIGEST:]
    if len(data) > most or len(body) < _COUNTS.size or _digest(path, body) != data[:_DIGEST]:
        return None
    return _parsed(body, draft.n_vocab, target.n_vocab)


def write(target: Header, draft: Header, shared: Overlap) -> None:
    """Store it for the tokenizers of two models, if they are large; a cache that cannot be written is not an
    error. Only the newest MAX_FILES files are kept.
    """
    if (path := _path(target, draft)) is None:
        return
    counts = (
        len(shared.to_target),
        shared.n_target,
        len(shared.never_drafted),
        shared.n_shared,
        shared.n_ordinary,
    )
    arrays = (
        shared.to_target.astype("<i4"),
        shared.never_drafted.astype("<i4"),
        np.packbits(shared.may_grow),
    )
    body = _COUNTS.pack(*counts) + b"".join(array.tobytes() for array in arrays)
    with contextlib.suppress(OSError):
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        close_to_others(path.parent)
        write_whole(path, _digest(path, body) + body, 0o600)
        _remove_oldest(list(path.parent.glob("*.overlap")))


def _path(target: Header, draft: Header) -> Path | None:
    """The file for the tokenizers of two models, None for small ones."""
    if target.n_vocab + draft.n_vocab < LEAST_TOKENS:
        return None
    key = f"{_VERSION} {specllama.__version__} {_tokenizer(target)} {_tokenizer(draft)}"
    return cache_dir() / "vocabularies" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.overlap"


def _tokenizer(header: Header) -> str:
    """A hash of all that a header says about its tokenizer."""
    digest = hashlib.sha256()
    for key in sorted(header.metadata):
        if key.startswith("tokenizer.ggml."):
            value = header.metadata[key]
            if isinstance(value, StringArray):
                data, kind = value.encoded, "strings"
            elif isinstance(value, np.ndarray):
                data, kind = value.tobytes(), str(value.dtype)
            else:
                data, kind = repr(value).encode(), ""
            digest.update(f"{key} {kind} {len(data)} ".encode())
            digest.update(data)
    return digest.hexdigest()


def _digest(path: Path, body: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + body).digest()


def _parsed(body: bytes, n_draft: int, n_target: int) -> Overlap | None:
    """The contents of a file for vocabularies of so many tokens, None for those of others."""
    n_ids, n, n_never_drafted, n_shared, n_ordinary = _COUNTS.unpack_from(body)
    if (n_ids, n) != (n_draft, n_target) or not 0 <= n_never_drafted <= n_ids:
        return None
    sizes = (4 * n_ids, 4 * n_never_drafted, -(-n // 8))
    if len(body) != _COUNTS.size + sum(sizes):
        return None
    at = _COUNTS.size
    ids = np.frombuffer(body, "<i4", n_ids, at).astype(np.int64)
    never_drafted = np.frombuffer(body, "<i4", n_never_drafted, at + sizes[0]).astype(np.int64)
    bits = np.frombuffer(body, np.uint8, sizes[2], at + sizes[0] + sizes[1])
    return Overlap(ids, n, np.unpackbits(bits, count=n).astype(np.bool_), never_drafted, n_shared, n_ordinary)


def _remove_oldest(files: Sequence[Path]) -> None:
    """Keep the newest MAX_FILES. Raises OSError."""
    for path in sorted(files, key=lambda file: -file.stat().st_mtime)[MAX_FILES:]:
        path.unlink(missing_ok=True)
