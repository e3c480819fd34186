"""Finite automata of the parts of a grammar, and where a reader that takes the longest match reads too far.

Knows no recursion: the parts are regular.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from specllama.text.gbnf.nodes import (
    Alternatives,
    Chars,
    Literal,
    Node,
    Ranges,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    char,
    first_bytes,
)


class TooLargeError(Exception):
    """The automata would take too long."""


class Work:
    """Counts transitions that are built or followed, some microseconds each."""

    def __init__(self, most: int) -> None:
        self._left = most

    def add(self, n: int) -> None:
        """Raises TooLargeError."""
        self._left -= n
        if self._left < 0:
            raise TooLargeError


class Part(NamedTuple):
    """Of an expression: whether it may be empty, the positions with which it may begin and end."""

    empty: bool
    first: frozenset[int]
    last: frozenset[int]


_EMPTY = Part(True, frozenset(), frozenset())


class Automata:
    """The automata of several named expressions side by side, by Glushkov's construction (The abstract theory
    of automata, 1961): a position for each occurrence of a character set, and no others.

    rules: of the references in the expressions. work: what all of this may cost; everything raises
    TooLargeError.
    """

    def __init__(self, rules: Rules, work: Work) -> None:
        self._rules, self._work = rules, work
        self._sets: list[Ranges] = []  # by position, as the next two
        self._owners: list[str] = []
        self._following: list[set[int]] = []
        self._first: set[int] = set()
        self._last: set[int] = set()

    def add(self, name: str, node: Node) -> None:
        _, first, last = self._build(name, node)
        self._first |= first
        self._last |= last

    def overruns(self, followed_by: Mapping[str, int]) -> set[str]:
        """The expressions that go on, where another or the same one may end, with what may follow that one: a
        reader that takes the longest match would not end it there.

        followed_by: the first bytes of what may follow each expression, as bits. Bytes and not characters,
        since the reader looks at bytes.
        """
        classes, begin = _character_classes(self._sets)
        owners: set[str] = set()
        todo = {frozenset(s) for s in self._next(self._first, classes).values()}
        seen = set(todo)
        while todo:
            state = todo.pop()
            ending = {self._owners[p] for p in state if p in self._last}
            after = 0
            for name in ending:
                after |= followed_by[name]
            for kind, positions in self._next(self._union(state), classes).items():
                if begin[kind] & after:
                    owners |= {self._owners[p] for p in positions}
                new = frozenset(positions)
                if new not in seen:
                    seen.add(new)
                    todo.add(new)
        return owners

    def _union(self, state: Iterable[int]) -> set[int]:
        return set().union(*(self._following[p] for p in state))

    def _next(self, positions: Iterable[int], classes: Mapping[Ranges, list[int]]) -> dict[int, list[int]]:
        """The positions at which each class of characters arrives."""
        by_kind: dict[int, list[int]] = defaultdict(list)
        for p in sorted(positions):
            among = classes[self._sets[p]]
            self._work.add(len(among))
            for kind in among:
                by_kind[kind].append(p)
        return by_kind

    def _build(self, name: str, node: Node) -> Part:
        if isinstance(node, RuleRef):
            return self._build(name, self._rules[node.name])
        if isinstance(node, Chars):
            return self._position(name, node)
        if isinstance(node, Literal):
            fragment = _EMPTY
            for c in node.text:
                fragment = self._joined(fragment, self._position(name, char(ord(c))))
            return fragment
        if isinstance(node, Alternatives):
            options = [self._build(name, option) for option in node.options]
            first = frozenset().union(*(o.first for o in options))
            return Part(any(o.empty for o in options), first, frozenset().union(*(o.last for o in options)))
        if isinstance(node, Repeat):
            return self._repeated(name, node)
        assert isinstance(node, Sequence)
        fragment = _EMPTY
        for item in node.items:
            fragment = self._joined(fragment, self._build(name, item))
        return fragment

    def _position(self, name: str, chars: Chars) -> Part:
        self._work.add(1)
        at = frozenset((len(self._sets),))
        self._sets.append(chars.ranges)
        self._owners.append(name)
        self._following.append(set())
        return Part(False, at, at)

    def _repeated(self, name: str, node: Repeat) -> Part:
        fragment = _EMPTY
        for i in range(node.most or max(node.least, 1)):
            self._work.add(1)
            part = self._build(name, node.item)
            fragment = self._joined(fragment, part._replace(empty=part.empty or i >= node.least))
        if node.most is None:
            self._connect(part.last, part.first)
        return fragment

    def _joined(self, a: Part, b: Part) -> Part:
        self._connect(a.last, b.first)
        return Part(
            a.empty and b.empty,
            a.first | b.first if a.empty else a.first,
            b.last | a.last if b.empty else b.last,
        )

    def _connect(self, last: Iterable[int], first: frozenset[int]) -> None:
        for p in last:
            self._work.add(len(first))
            self._following[p] |= first


def _character_classes(sets: list[Ranges]) -> tuple[dict[Ranges, list[int]], list[int]]:
    """(The classes of characters in each set, the first bytes of each class): no set divides a class."""
    changes: dict[int, int] = defaultdict(int)  # at a code point: sets that begin or end there, as bits
    distinct = list(dict.fromkeys(sets))
    for i, ranges in enumerate(distinct):
        for low, high in ranges:
            changes[low] ^= 1 << i
            changes[high + 1] ^= 1 << i
    cuts = sorted(changes)
    classes: dict[int, int] = {}  # by the sets that contain them
    among: dict[int, int] = {}
    within = 0
    for low, end in itertools.pairwise(cuts):
        within ^= changes[low]
        if within:
            number = classes.setdefault(within, len(classes))
            among[number] = among.get(number, 0) | first_bytes(((low, end - 1),))
    numbers: dict[Ranges, list[int]] = {ranges: [] for ranges in distinct}
    for members, number in classes.items():
        while members:
            lowest = members & -members
            numbers[distinct[lowest.bit_length() - 1]].append(number)
            members ^= lowest
    return numbers, [among[n] for n in range(len(classes))]
