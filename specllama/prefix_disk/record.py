"""A prefix state in memory, as the store takes it and gives it back; and in a file that a client has
named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.config.store import temporary
from specllama.prefix_disk import state_file
from specllama.regular_file import open_regular

MAX_PARTS, MAX_PART_NAME = 16, 64


@dataclass(frozen=True, slots=True, eq=False)
class PrefixRecord:
    """The state after some token ids, in memory. Raises ValueError.

    scope: whose it is (scopes.py). ids: int32, shape (n_tokens,). kind: "whole" for attention caches, which
    can be cut at any length; "partial" for a state that exists at its full length alone (recurrent states,
    windowed layers). parts: bytes by name, such as "target" and "draft"; they may not change while the store
    has the record. seconds: that reading the text again would cost.

    Parts of a record that was read from disk are writable views of memory that belongs to the record alone,
    and is returned to the system with it.
    """

    scope: str
    ids: NDArray[np.int32]
    kind: state_file.PrefixKind
    parts: Mapping[str, state_file.Buffer] = field(repr=False)
    seconds: float

    def __post_init__(self) -> None:
        if self.ids.dtype != np.int32 or self.ids.ndim != 1 or not 0 < len(self.ids) <= state_file.MAX_TOKENS:
            raise ValueError(f"ids must be 1 to {state_file.MAX_TOKENS} int32 in one dimension")
        if self.kind not in ("whole", "partial"):
            raise ValueError(f"kind must be whole or partial, not {self.kind!r}")
        if not 0 < len(self.parts) <= MAX_PARTS:
            raise ValueError(f"a record has 1 to {MAX_PARTS} parts, not {len(self.parts)}")
        for name, part in self.parts.items():
            if not 0 < len(name) <= MAX_PART_NAME:
                raise ValueError(f"the name of a part has 1 to {MAX_PART_NAME} characters: {name[:80]!r}")
            if isinstance(part, memoryview) and (part.nbytes != len(part) or not part.c_contiguous):
                raise ValueError(f"part {name!r} is no view of bytes")
        if not 0 <= self.seconds < state_file.MAX_SECONDS:
            raise ValueError(f"seconds must be from 0, not {self.seconds!r}")

    @property
    def n_bytes(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def meta(self, key: str, model: str) -> state_file.StateMeta:
        """Its description as a state of a model."""
        sizes = tuple((name, len(part)) for name, part in self.parts.items())
        return state_file.StateMeta(key, model, self.scope, self.kind, self.seconds, sizes)

    def replaces(self, other: PrefixRecord) -> bool:
        """Whether this one does all that the other one, made before, would do."""
        n, same = len(other.ids), (other.scope, other.kind) == (self.scope, self.kind)
        if not same or not other.parts.keys() <= self.parts.keys():
            return False
        return (self.kind == "whole" or n == len(self.ids)) and np.array_equal(other.ids, self.ids[:n])


def raw(ids: NDArray[np.int32]) -> bytes:
    """Ids as they are in files."""
    return ids.astype(np.dtype("<i4"), copy=False).tobytes()


def as_record(state: state_file.State, parts: Mapping[str, state_file.Buffer]) -> PrefixRecord:
    """The record of a state with parts that were read. Raises BadStateFileError."""
    ids = np.frombuffer(state.ids, np.dtype("<i4")).astype(np.int32)
    try:
        return PrefixRecord(state.meta.scope, ids, state.meta.kind, parts, state.meta.seconds)
    except ValueError as error:
        raise state_file.BadStateFileError(str(error)) from None


# One state in a file that a client has named: llama-server's saved slots. The format is that of the cache,
# but without the secret of a directory: such a file may be copied. It is for the same model, build and
# settings alone.


def write_slot_file(path: Path, record: PrefixRecord, key: str, model: str = "") -> int:
    """Write a state, whole or not at all, for the user alone; returns its bytes. Whatever has this name is
    replaced, and the directory is made. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = temporary(path)
    number = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        n_bytes = state_file.write_state(
            number, record.meta(key, model), raw(record.ids), record.parts.values(), b"", lambda _: None
        )
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
        state = state_file.read_state(file.fileno(), b"")
        meta = state.meta
        if meta.scope != scope:
            raise state_file.BadStateFileError("it belongs to another key")
        if meta.key != key:
            message = "it was saved with another model, other settings of the context, or another llama.cpp"
            raise state_file.BadStateFileError(message)
        if meta.n_bytes > max_bytes:
            message = f"it needs {meta.n_bytes} bytes of memory, and {max_bytes} are free"
            raise state_file.BadStateFileError(message)
        return as_record(state, state_file.read_parts(file.fileno(), state))
