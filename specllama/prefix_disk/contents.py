"""What is in the directory, as far as this process has read it: the states of its model, the sizes of others.

Read from the headers at the start and when files have come or gone. Knows what may be evicted, not when.
"""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

from specllama.prefix_disk.directory import StateDirectory
from specllama.prefix_disk.eviction import EvictionCandidate, StateLedger, to_remove, worth
from specllama.prefix_disk.lookup import PrefixLookup, StoredState
from specllama.prefix_disk.state_file import StateHeader, StateMeta


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
