"""What a text changed of the source that it follows, to be changed again. Knows ids only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Change(NamedTuple):
    """The source says `old` where the text said `new`; each 1 to 5 tokens."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Edits:
    """The changes that the text made to its source, to be made again."""

    __slots__ = ("_by_first",)

    def __init__(self) -> None:
        self._by_first: dict[int, list[Change]] = {}

    def at(self, tokens: Sequence[int], position: int) -> Change | None:
        """The change to make where the source goes on at `position`; of several the longest."""
        if position >= len(tokens):
            return None
        for change in self._by_first.get(tokens[position], ()):
            old = change.old
            if all(position + i < len(tokens) and tokens[position + i] == old[i] for i in range(1, len(old))):
                return change
        return None

    def learn(self, change: Change) -> None:
        """Remember; what else was made of the same `old` is forgotten."""
        same = self._by_first.setdefault(change.old[0], [])
        same[:] = sorted(
            [change, *(c for c in same if c.old != change.old)], key=lambda c: len(c.old), reverse=True
        )

    def unlearn(self, change: Change) -> None:
        """The text kept what the source says: the change was for one place only."""
        self._by_first[change.old[0]].remove(change)
