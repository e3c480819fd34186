"""Edits that a text makes to the source it copies, remembered so that they are repeated. Knows ids only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Edit(NamedTuple):
    """The source has `old` where the text has `new`; each 1 to 5 tokens."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Edits:
    """The edits that a text has made to its source so far."""

    __slots__ = ("_by_first",)

    def __init__(self) -> None:
        self._by_first: dict[int, list[Edit]] = {}

    def at(self, tokens: Sequence[int], position: int) -> Edit | None:
        """The edit whose `old` is at `position` of the source `tokens`; the longest of several, None without
        one.
        """
        if position >= len(tokens):
            return None
        for edit in self._by_first.get(tokens[position], ()):
            old = edit.old
            if all(position + i < len(tokens) and tokens[position + i] == old[i] for i in range(1, len(old))):
                return edit
        return None

    def learn(self, edit: Edit) -> None:
        """Remember an edit; it replaces one with the same `old`."""
        same = self._by_first.setdefault(edit.old[0], [])
        same[:] = sorted(
            [edit, *(c for c in same if c.old != edit.old)], key=lambda c: len(c.old), reverse=True
        )

    def unlearn(self, edit: Edit) -> None:
        """Forget an edit, because the text has kept `old` elsewhere."""
        self._by_first[edit.old[0]].remove(edit)
