"""A prefix state as the store takes it and gives it back, the answer to a look-up, figures of the store."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
