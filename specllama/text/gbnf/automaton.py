"""Finite automata of the parts of a grammar, and where a reader that takes the longest match reads too
far.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from specllama.errors import UsageError
from specllama.text.gbnf.parser import (
    EMPTY_TEXT,
    Alternatives,
    Chars,
    Lexeme,
    Literal,
    Node,
    Ranges,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    TokenRef,
    char,
    children,
    first_bytes,
    first_of,
    settle,
    users,
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


# What may follow the lexemes of a grammar: the FIRST and FOLLOW sets of parsers (Aho, Sethi and Ullman 1986,
# section 4.4), of first bytes.


_TOKEN = 1 << 0xFF  # a token that is matched by its id


class Follow:
    """of_lexemes: by regular expression, the first bytes of what may follow, as bits."""

    def __init__(self, rules: Rules, work: Work) -> None:
        self.of_lexemes: dict[str, int] = defaultdict(int)
        self._rules, self._work = rules, work
        self._first = dict.fromkeys(rules, 0)
        self._of_rules = dict.fromkeys(rules, 0)
        used_by = users(rules)
        settle(rules, lambda name: used_by[name] if self._update_first(name) else ())
        settle(rules, self._visit)

    def _update_first(self, name: str) -> bool:
        before, self._first[name] = self._first[name], self._first_of(self._rules[name])
        return self._first[name] != before

    def _first_of(self, node: Node) -> int:
        self._work.add(1)
        if isinstance(node, Lexeme):
            return node.first
        if isinstance(node, RuleRef):
            return self._first[node.name]
        return _TOKEN if isinstance(node, TokenRef) else first_of(node, self._first_of)

    def _visit(self, name: str) -> set[str]:
        changed: set[str] = set()
        self._walk(self._rules[name], self._of_rules[name], changed)
        return changed

    def _walk(self, node: Node, after: int, changed: set[str]) -> int:
        """Note what follows in a node that `after` may follow. Returns what the two begin with."""
        first = self._first_of(node)
        if isinstance(node, Lexeme):
            self.of_lexemes[node.regex] |= after
        elif isinstance(node, RuleRef):
            before = self._of_rules[node.name]
            self._of_rules[node.name] |= after
            if self._of_rules[node.name] != before:
                changed.add(node.name)
        elif isinstance(node, Alternatives):
            for option in node.options:
                self._walk(option, after, changed)
        elif isinstance(node, Repeat):
            again = first & ~EMPTY_TEXT if node.most != 1 else 0
            self._walk(node.item, after | again, changed)
        elif isinstance(node, Sequence):
            begin = after
            for item in reversed(node.items):
                begin = self._walk(item, begin, changed)
        return first & ~EMPTY_TEXT | after if first & EMPTY_TEXT else first


# The parts of a grammar that are regular, and their regular expressions.


_MAX_POSITIONS = 5_000  # characters of a part, repetitions and rules written out
_MAX_LEVELS = 100  # of nodes in each other, those of its rules included


class _Shape(NamedTuple):
    """Of a regular part: its size and levels, its first bytes as bits and EMPTY_TEXT if it has that."""

    n_positions: int
    n_levels: int
    first: int


class RegularParts:
    """Regular parts of a grammar, as far as they are small enough for an automaton."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._shapes: dict[int, _Shape | None] = {}  # by id of a node, which the rules keep alive
        self._by_rule: dict[str, _Shape | None] = {}
        for name in _innermost_first(rules):
            self._by_rule[name] = self._shape(rules[name])

    def lexeme(self, node: Node) -> Lexeme | None:
        """A node as a lexeme; None if it is not regular, too large, or the empty text alone."""
        shape = self._shape(node)
        if shape is None or not shape.n_positions:
            return None
        return Lexeme(self._regex(node), shape.first)

    def _shape(self, node: Node) -> _Shape | None:
        if id(node) not in self._shapes:
            self._shapes[id(node)] = self._measured(node)
        return self._shapes[id(node)]

    def _measured(self, node: Node) -> _Shape | None:
        if isinstance(node, Chars):
            return _Shape(1, 1, first_bytes(node.ranges))
        if isinstance(node, Literal):
            return _Shape(len(node.text), 1, first_bytes(char(ord(node.text[0])).ranges))
        if isinstance(node, RuleRef):
            parts = [self._by_rule.get(node.name)]
        else:
            parts = [self._shape(part) for part in children(node)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not (known or isinstance(node, Sequence)):
            return None
        n_positions = sum(part.n_positions for part in known)
        if isinstance(node, Repeat):
            n_positions *= node.most or max(node.least, 1)
        firsts = iter([part.first for part in known])
        first = next(firsts) if isinstance(node, RuleRef) else first_of(node, lambda _: next(firsts))
        n_levels = 1 + max((part.n_levels for part in known), default=0)
        fits = n_positions <= _MAX_POSITIONS and n_levels <= _MAX_LEVELS
        return _Shape(n_positions, n_levels, first) if fits else None

    def _regex(self, node: Node) -> str:
        if isinstance(node, Chars):
            return _char_class(node.ranges)
        if isinstance(node, Literal):
            return "".join(map(_char, node.text))
        if isinstance(node, RuleRef):
            return self._regex(self._rules[node.name])
        parts = [self._regex(part) for part in children(node)]
        if isinstance(node, Alternatives):
            return f"(?:{'|'.join(parts)})" if len(parts) > 1 else parts[0]
        if isinstance(node, Repeat):
            return f"(?:{parts[0]}){operator(node)}"
        return "".join(parts)


def operator(node: Repeat) -> str:
    """As regular expressions and Lark have it."""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.least, node.most))
    return short or f"{{{node.least},{'' if node.most is None else node.most}}}"


def _char_class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(chr(ranges[0][0]))
    pairs = ((_char(chr(a)), _char(chr(b))) for a, b in ranges)
    return f"[{''.join(a if a == b else f'{a}-{b}' for a, b in pairs)}]"


def _char(c: str) -> str:
    return c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}"


def _innermost_first(rules: Rules) -> list[str]:
    """Rules after those that they refer to, without recursive ones and their users."""
    used_by = users(rules)
    n_missing = Counter(name for names in used_by.values() for name in names)
    order = [name for name in rules if not n_missing[name]]
    for name in order:
        for user in used_by[name]:
            n_missing[user] -= 1
            if not n_missing[user]:
                order.append(user)
    return order


# How long the shortest texts of a grammar's rules are.
#
# A text that a grammar forces is worked out whole, in memory and in time; forty rules that each double the
# next one make one of a terabyte.


MAX_LENGTH = 100_000  # characters; no context holds many such texts, and the grammar's text has 64 KiB


def check_lengths(rules: Rules) -> bool:
    """Whether each rule has a text that ends. Raises UsageError if the shortest of a rule is too long."""
    lengths, used_by = dict.fromkeys(rules, math.inf), users(rules)

    def update(name: str) -> Iterable[str]:
        before, lengths[name] = lengths[name], _length(rules[name], lengths)
        return used_by[name] if lengths[name] < before else ()

    settle(rules, update)
    long = next((name for name, length in lengths.items() if MAX_LENGTH < length < math.inf), None)
    if long is not None:
        why = f"the shortest text of rule {long!r:.80} has more than {MAX_LENGTH} characters"
        raise UsageError(f"the grammar cannot be used: {why}")
    return all(length < math.inf for length in lengths.values())


def _length(node: Node, lengths: dict[str, float]) -> float:
    if isinstance(node, Chars | TokenRef):
        return 1
    if isinstance(node, Literal):
        return len(node.text)
    if isinstance(node, RuleRef):
        return lengths[node.name]
    parts = [_length(part, lengths) for part in children(node)]
    if isinstance(node, Alternatives):
        return min(parts)
    if isinstance(node, Repeat):
        return parts[0] * node.least if node.least else 0
    return sum(parts)
