"""The states of a directory as far as this process has read them: those of its model by their ids, the sizes
of others. Read from the headers at the start and when files have come or gone.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import numpy as np

from specllama.prefix_disk.directory import StateDirectory
from specllama.prefix_disk.state_file import WHOLE, State, StateMeta

LEAST_TOKENS = 128  # that a state has in common with a request, or it is no candidate
_MAX_FOUND = 8
_ids = attrgetter("ids")


class StateIndex:
    """key: of the states that are looked up. lock: for those who look up while another thread reads the
    directory. states: of all models, by name, ids only of this one. read_at: see StateDirectory.changed_at,
    at the last reading.
    """

    def __init__(self, directory: StateDirectory, key: str, lock: threading.Condition) -> None:
        self._directory, self._key, self._lock = directory, key, lock
        self.states: dict[str, State] = {}
        self.newer: dict[str, int] = {}  # bytes of states of newer versions
        self.read_at = -1
        self._sorted: dict[str, list[State]] = {}  # this model's, by scope, in the order of their ids' bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of all states, those of newer versions included."""
        return sum(state.file_bytes for state in list(self.states.values())) + sum(self.newer.values())

    @property
    def largest(self) -> str:
        """The name of the largest state; "" without any."""
        return max(self.states, key=lambda name: self.states[name].file_bytes, default="")

    def refresh(self) -> None:
        """Read what has changed. Raises OSError."""
        directory, read_at = self._directory, self._directory.changed_at()
        try:
            sizes = directory.sizes() if directory.is_own() else {}
        except FileNotFoundError:
            sizes = {}  # somebody has removed it all
        directory.new_round()
        with self._lock:
            for name in self.states.keys() - sizes.keys():
                self.remove(name)
        for name, n_bytes in sizes.items():
            known = self.states.get(name)
            if known is None or known.file_bytes != n_bytes:
                state = directory.state(name) if name not in directory.newer else None
                with self._lock:
                    self.remove(name)
                    if state is not None:
                        self.add(state)
        self.newer = {name: n for name, n in sizes.items() if name in directory.newer}
        with self._lock:
            self.read_at = read_at

    def add(self, state: State) -> None:
        if (state.meta.key, state.meta.kind) == (self._key, WHOLE):
            insort(self._sorted.setdefault(state.meta.scope, []), state, key=_ids)
        else:
            state = replace(state, ids=b"", checksums=())
        self.states[state.name] = state

    def remove(self, name: str) -> None:
        state = self.states.pop(name, None)
        if state is not None and state.ids:
            self._sorted[state.meta.scope].remove(state)

    def find(self, scope: str, ids: bytes) -> list[tuple[State, int]]:
        """The states that serve a request, each with the tokens that it has in common with it, most first. Of
        two the one with fewer tokens is only there if it has fewer bytes, too. ids: int32 in bytes.
        """
        near = ((state, n) for state, n in self._near(scope, ids) if n >= LEAST_TOKENS)
        matches = [(-n, state.meta.n_bytes, state.name) for state, n in near]
        front = list[tuple[State, int]]()
        for n, n_bytes, name in sorted(matches):
            if not front or n_bytes < front[-1][0].meta.n_bytes:
                front.append((self.states[name], -n))
        return front[:_MAX_FOUND]

    def same(self, name: str, meta: StateMeta, ids: bytes, redundant: int) -> State | None:
        """A state that does what this one would do: the same one, or one that goes on, with at most
        `redundant` times its bytes. None where there is none with all its parts.
        """
        near = [state] if (state := self.states.get(name)) is not None else []
        longer = [s for s, n in self._near(meta.scope, ids) if 4 * n == len(ids)]
        near += [s for s in longer if s.meta.n_bytes <= redundant * meta.n_bytes]
        return next((s for s in near if meta.part_names <= s.meta.part_names), None)

    def covered_by(self, scope: str, ids: bytes) -> list[State]:
        """The states of which these ids are a continuation, or which they are."""
        return [s for s, n in self._near(scope, ids) if n == s.n_tokens]

    def _near(self, scope: str, ids: bytes) -> Iterator[tuple[State, int]]:
        """The states that begin as a text does, each with the tokens in common: they are next to where it
        would be, and have fewer the farther away.
        """
        states = self._sorted.get(scope, [])
        at = bisect_left(states, ids, key=_ids)
        for neighbours in (states[at:], states[:at][::-1]):
            common = ids
            for state in neighbours:
                if not state.ids.startswith(common):
                    common = ids[: 4 * n_common(ids, state.ids)]
                if not common:
                    break
                yield state, len(common) // 4


def n_common(a: bytes, b: bytes) -> int:
    """Tokens that two texts begin with alike. a, b: int32 in bytes."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n // 4
    first, second = (np.frombuffer(ids, np.int32, n // 4) for ids in (a, b))
    return int((first != second).argmax())
