"""One state in a file that a client has named: llama-server's saved slots. The format is that of the
cache, but without the secret of a directory: such a file may be copied. It is for the same model, build
and settings alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specllama.config.store import temporary
from specllama.gguf.identity import FileIdentity
from specllama.prefix_disk.state_file import (
    BadStateFileError,
    StateMeta,
    read_header,
    read_parts,
    write_state,
)
from specllama.regular_file import open_regular

# A prefix state as the store takes it and gives it back, the answer to a look-up, figures of the store.


PrefixKind = Literal["whole", "partial"]
Buffer = bytes | bytearray | memoryview | mmap.mmap
MAX_TOKENS = 1 << 24
MAX_PARTS, MAX_PART_NAME = 16, 64


@dataclass(frozen=True, slots=True, eq=False)
class PrefixRecord:
    """The state after some token ids. Raises ValueError.

    scope: whose it is (scopes.py). ids: int32, shape (n_tokens,). kind: "whole" for attention caches, which
    can be cut at any length; "partial" for a state that exists at its full length alone (recurrent states,
    windowed layers). parts: bytes by name, such as "target" and "draft"; they may not change while the store
    has the record. seconds: that reading the text again would cost.

    Parts of a record that was read from disk are writable views of memory that belongs to the record alone,
    and is returned to the system with it.
    """

    scope: str
    ids: NDArray[np.int32]
    kind: PrefixKind
    parts: Mapping[str, Buffer] = field(repr=False)
    seconds: float

    def __post_init__(self) -> None:
        if self.ids.dtype != np.int32 or self.ids.ndim != 1 or not 0 < len(self.ids) <= MAX_TOKENS:
            raise ValueError(f"ids must be 1 to {MAX_TOKENS} int32 in one dimension")
        if self.kind not in ("whole", "partial"):
            raise ValueError(f"kind must be whole or partial, not {self.kind!r}")
        if not 0 < len(self.parts) <= MAX_PARTS:
            raise ValueError(f"a record has 1 to {MAX_PARTS} parts, not {len(self.parts)}")
        for name, part in self.parts.items():
            if not 0 < len(name) <= MAX_PART_NAME:
                raise ValueError(f"the name of a part has 1 to {MAX_PART_NAME} characters: {name[:80]!r}")
            if isinstance(part, memoryview) and (part.nbytes != len(part) or not part.c_contiguous):
                raise ValueError(f"part {name!r} is no view of bytes")
        if not 0 <= self.seconds < 1e9:
            raise ValueError(f"seconds must be from 0, not {self.seconds!r}")

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(len(part) for part in self.parts.values())

    def replaces(self, other: PrefixRecord) -> bool:
        """Whether this one does all that the other one, made before, would do."""
        if (other.scope, other.kind) != (
            self.scope,
            self.kind,
        ) or not other.parts.keys() <= self.parts.keys():
            return False
        n, longer = len(other.ids), len(self.ids) - len(other.ids)
        if longer < 0 or (longer and self.kind == "partial"):
            return False
        return bool(np.array_equal(other.ids, self.ids[:n]))


@dataclass(frozen=True, slots=True)
class PrefixCandidate:
    """A state on disk that serves a request.

    name: of its file. n_tokens: that it has in common with the request, the whole state if it is partial.
    n_state: tokens of the state. n_bytes: of all parts. parts: bytes by name. seconds: that loading the whole
    state is predicted to take, by the measured rate.
    """

    name: str
    kind: PrefixKind
    n_tokens: int
    n_state: int
    n_bytes: int
    parts: Mapping[str, int]
    seconds: float


def write_slot_file(path: Path, record: PrefixRecord, key: str, model: str = "") -> int:
    """Write a state, whole or not at all, for the user alone; returns its bytes. Whatever has this name is
    replaced, and the directory is made. Raises OSError.
    """
    sizes = tuple((name, len(part)) for name, part in record.parts.items())
    meta = StateMeta(key, model, record.scope, record.kind, record.seconds, sizes)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = temporary(path)
    number = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        ids = record.ids.astype(np.dtype("<i4")).tobytes()
        parts = [memoryview(part) for part in record.parts.values()]
        n_bytes = write_state(number, meta, ids, parts, b"", lambda _: None)
        new.replace(path)
    finally:
        os.close(number)
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
    return n_bytes


def read_slot_file(path: Path, key: str, scope: str, max_bytes: int) -> PrefixRecord:
    """The state in a file, for the model with this key and for this scope. max_bytes: of its parts in
    memory. Raises BadStateFileError, which says why it cannot be used, and OSError.
    """
    with open_regular(path) as file:
        number = file.fileno()
        header = read_header(number, b"")
        meta = header.meta
        if meta.scope != scope:
            raise BadStateFileError("it belongs to another key")
        if meta.key != key:
            raise BadStateFileError(
                "it was saved with another model, other settings of the context, or another llama.cpp"
            )
        if meta.n_bytes > max_bytes:
            raise BadStateFileError(f"it needs {meta.n_bytes} bytes of memory, and {max_bytes} are free")
        parts = read_parts(number, header)
    ids = np.frombuffer(header.ids, np.dtype("<i4")).astype(np.int32)
    try:
        return PrefixRecord(scope, ids, "partial" if meta.kind == "partial" else "whole", parts, meta.seconds)
    except ValueError as error:
        raise BadStateFileError(str(error)) from None


# The key of a model: a hash of everything that could change a state. Anything else than equal is a miss.
#
# Files are known by their `FileIdentity`. What else belongs to a key is known to those who load models, and
# given as facts.


VERSION = 1  # of the facts: another one is another key
_ENVIRONMENT = re.compile(r"(GGML|LLAMA)_(?!ARG_)\w+")  # what llama.cpp may read while it computes


def model_key(
    files: Iterable[FileIdentity], facts: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> str:
    """The key, 32 hexadecimal digits. files: of the model and its adapters, in order. facts: all settings and
    properties of the build and the machine that could change a state, as JSON can hold them.
    """
    variables = {name: value for name, value in environ.items() if _ENVIRONMENT.fullmatch(name)}
    known = [[file.content, file.whole] for file in files]
    plain = {"version": VERSION, "files": known, "facts": facts, "environment": variables}
    text = json.dumps(plain, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
