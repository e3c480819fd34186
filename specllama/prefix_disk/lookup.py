"""Which states fit a request: found by hashes of what two texts have in common, then compared id by id.

States are entered under a hash of their first BLOCK ids, of their first two blocks, and so on. A
look-up follows the blocks of the request as far as any state goes, so that its time does not depend on
how many states there are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specllama.prefix_disk.directory import StateDirectory
from specllama.prefix_disk.eviction import EvictionCandidate, StateLedger, to_remove, worth
from specllama.prefix_disk.state_file import StateHeader, StateMeta

BLOCK_TOKENS = 128  # what a whole state has in common with a request is at least so much, or no candidate
_BLOCK = 4 * BLOCK_TOKENS  # bytes
_MAX_COMPARED = 64  # states that have equally many blocks in common with a request
_MAX_FOUND = 8


@dataclass(frozen=True, slots=True, eq=False)
class StoredState:
    """A state on disk, for this model. ids: int32 in bytes. file_bytes: with its header."""

    name: str
    meta: StateMeta
    ids: bytes = field(repr=False)
    file_bytes: int

    @property
    def n_tokens(self) -> int:
        return len(self.ids) // 4

    @property
    def whole(self) -> bool:
        """Whether it can be cut at any length."""
        return self.meta.kind == "whole"


@dataclass(slots=True)
class _Bucket:
    """The states that begin with the same blocks. whole: those that can be cut. ending: partial ones that end
    before the next block does. n: all of them.
    """

    whole: dict[str, StoredState] = field(default_factory=dict)
    ending: dict[str, StoredState] = field(default_factory=dict)
    n: int = 0
    smallest: StoredState | None = None


class PrefixLookup:
    """The states of one model, by their ids."""

    def __init__(self) -> None:
        self._states: dict[str, StoredState] = {}
        self._buckets: dict[int, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def get(self, name: str) -> StoredState | None:
        """The state of this name."""
        return self._states.get(name)

    def names(self) -> set[str]:
        return set(self._states)

    def add(self, state: StoredState) -> None:
        """Enter a state, in place of one with its name."""
        self.remove(state.name)
        self._states[state.name] = state
        last = state.n_tokens // BLOCK_TOKENS
        for level, key in enumerate(_keys(state.meta.scope, state.ids)):
            bucket = self._buckets.setdefault(key, _Bucket())
            bucket.n += 1
            if state.whole and level:
                bucket.whole[state.name] = state
                if bucket.smallest is None or state.meta.n_bytes < bucket.smallest.meta.n_bytes:
                    bucket.smallest = state
            elif not state.whole and level == last:
                bucket.ending[state.name] = state

    def remove(self, name: str) -> None:
        """Take a state out, if it is there."""
        state = self._states.pop(name, None)
        if state is None:
            return
        for key in _keys(state.meta.scope, state.ids):
            bucket = self._buckets[key]
            bucket.n -= 1
            if not bucket.n:
                del self._buckets[key]
                continue
            bucket.ending.pop(name, None)
            if bucket.whole.pop(name, None) is bucket.smallest is not None:
                bucket.smallest = min(bucket.whole.values(), key=lambda s: s.meta.n_bytes, default=None)

    def find(self, scope: str, ids: bytes) -> list[tuple[StoredState, int]]:
        """The states that serve a request, each with the tokens that it has in common with it, most first. Of
        two the one with fewer tokens is only there if it has fewer bytes, too. ids: int32 in bytes.
        """
        path = list[_Bucket]()
        for key in _keys(scope, ids):
            bucket = self._buckets.get(key)
            if bucket is None:
                break
            path.append(bucket)
        matches = dict[str, tuple[StoredState, int]]()
        request = np.frombuffer(ids, np.int32)
        for bucket in reversed(path):
            for state in bucket.ending.values():
                if ids.startswith(state.ids):
                    matches[state.name] = (state, state.n_tokens)
            deepest = not any(state.whole for state, _ in matches.values())
            nearest = list(bucket.whole.values())[-_MAX_COMPARED:] if deepest else []
            for one in (*nearest, bucket.smallest):
                if one is not None and one.name not in matches:
                    matches[one.name] = (one, _n_common(one.ids, request))
        return list(_worthwhile(list(matches.values())))

    def covered_by(self, scope: str, ids: bytes) -> list[StoredState]:
        """The whole states of which these ids are a continuation, or which they are."""
        return [s for s, n in self.find_all(scope, ids) if n == s.n_tokens]

    def covering(self, scope: str, ids: bytes) -> list[StoredState]:
        """The whole states that begin with these ids."""
        return [s for s, n in self.find_all(scope, ids) if 4 * n == len(ids)]

    def find_all(self, scope: str, ids: bytes) -> list[tuple[StoredState, int]]:
        """All whole states with a block in common with these ids, each with the tokens in common."""
        first = list(_keys(scope, ids[:_BLOCK]))[-1]
        bucket = self._buckets.get(first) if len(ids) >= _BLOCK else None
        request = np.frombuffer(ids, np.int32)
        return [(s, _n_common(s.ids, request)) for s in bucket.whole.values()] if bucket is not None else []


def _keys(scope: str, ids: bytes) -> Iterator[int]:
    """Hashes of nothing, of the first block, of the first two …; equal ones are compared later on."""
    key = hash(scope)
    yield key
    for begin in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        key = hash((key, ids[begin : begin + _BLOCK]))
        yield key


def _n_common(ids: bytes, request: NDArray[np.int32]) -> int:
    own = np.frombuffer(ids, np.int32)
    n = min(len(own), len(request))
    differ = own[:n] != request[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def _worthwhile(matches: list[tuple[StoredState, int]]) -> Iterator[tuple[StoredState, int]]:
    smallest, n = None, 0
    for state, common in sorted(matches, key=lambda one: (-one[1], one[0].meta.n_bytes)):
        if n < _MAX_FOUND and (smallest is None or state.meta.n_bytes < smallest):
            smallest, n = state.meta.n_bytes, n + 1
            yield state, common


# What is in the directory, as far as this process has read it: the states of its model, the sizes of others.
#
# Read from the headers at the start and when files have come or gone.


@dataclass(frozen=True, slots=True)
class _Known:
    """A file. seconds, n_bytes: of its state."""

    file_bytes: int
    seconds: float
    n_bytes: int


class DirectoryContents:
    """key: of the states that are looked up. read_at: see StateDirectory.changed_at, at the last reading."""

    def __init__(self, directory: StateDirectory, key: str) -> None:
        self._directory, self._key = directory, key
        self._known: dict[str, _Known] = {}
        self._newer_bytes: dict[str, int] = {}
        self.lookup, self.read_at = PrefixLookup(), -1

    @property
    def n_bytes(self) -> int:
        """Bytes of all states, those of newer versions included."""
        return sum(k.file_bytes for k in list(self._known.values())) + sum(self._newer_bytes.values())

    @property
    def largest(self) -> str:
        """The name of the largest state; "" without any."""
        return max(self._known, key=lambda name: self._known[name].file_bytes, default="")

    def refresh(self, lock: threading.Condition | None = None) -> None:
        """Read what has changed. lock: for those who look up meanwhile. Raises OSError."""
        lock_: AbstractContextManager[object] = lock if lock is not None else contextlib.nullcontext()
        read_at = self._directory.changed_at()
        try:
            sizes = self._directory.sizes() if self._directory.is_own() else {}
        except FileNotFoundError:
            sizes = {}  # somebody has removed it all
        self._directory.new_round()
        for name in set(self._known) - set(sizes):
            with lock_:
                self.forget(name)
        newer = self._directory.newer
        for name, n_bytes in sizes.items():
            known = self._known.get(name)
            if known is not None and known.file_bytes == n_bytes:
                continue
            header = self._directory.header(name) if name not in newer else None
            with lock_:
                self.forget(name)
                if header is not None:
                    self._enter(name, header)
        self._newer_bytes = {name: n for name, n in sizes.items() if name in newer}
        with lock_:
            self.read_at = read_at

    def _enter(self, name: str, header: StateHeader) -> None:
        meta = header.meta
        self._known[name] = _Known(header.file_bytes, meta.seconds, meta.n_bytes)
        if meta.key == self._key:
            self.lookup.add(StoredState(name, meta, header.ids, header.file_bytes))

    def forget(self, name: str) -> None:
        """A state is gone."""
        self._known.pop(name, None)
        self.lookup.remove(name)

    def same(self, name: str, meta: StateMeta, ids: bytes, redundant: int) -> StoredState | None:
        """A state that does what this one would do: the same one, or for one that can be cut one that goes
        on, with at most `redundant` times its bytes. None where there is none with all its parts.
        """
        near = [state] if (state := self.lookup.get(name)) is not None else []
        if meta.kind == "whole":
            longer = self.lookup.covering(meta.scope, ids)
            near += [state for state in longer if state.meta.n_bytes <= redundant * meta.n_bytes]
        return next((state for state in near if meta.part_names <= state.meta.part_names), None)

    def to_remove(
        self, ledger: StateLedger, n_bytes: int, priority: float, load_rate: float
    ) -> list[EvictionCandidate] | None:
        """See eviction.to_remove. Those of newer versions go first: nobody here knows their worth."""
        states = [EvictionCandidate(name, n, 0.0) for name, n in self._newer_bytes.items()]
        for name, known in list(self._known.items()):
            value = worth(known.seconds, known.n_bytes, load_rate) if known.n_bytes else 0.0
            states.append(EvictionCandidate(name, known.file_bytes, ledger.priority(name, value), value))
        return to_remove(states, n_bytes, priority)
