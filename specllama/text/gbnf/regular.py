"""The parts of a grammar that are regular, and their regular expressions. Knows no lexer."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from specllama.text.gbnf.nodes import (
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
    children,
    first_bytes,
    users,
)

_MAX_POSITIONS = 5_000  # characters of a part, repetitions and rules written out
_MAX_LEVELS = 100  # of nodes in each other, those of its rules included


class _Shape(NamedTuple):
    """Of a regular part: its size and levels, whether it may be empty, its first bytes as bits."""

    n_positions: int
    n_levels: int
    empty: bool
    first_bytes: int


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
        return Lexeme(self._regex(node), shape.empty, shape.first_bytes)

    def _shape(self, node: Node) -> _Shape | None:
        if id(node) not in self._shapes:
            self._shapes[id(node)] = self._measured(node)
        return self._shapes[id(node)]

    def _measured(self, node: Node) -> _Shape | None:
        if isinstance(node, Chars):
            return _Shape(1, 1, False, first_bytes(node.ranges))
        if isinstance(node, Literal):
            code = ord(node.text[0])
            return _Shape(len(node.text), 1, False, first_bytes(((code, code),)))
        if isinstance(node, RuleRef):
            parts = [self._by_rule.get(node.name)]
        else:
            parts = [self._shape(part) for part in children(node)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not (known or isinstance(node, Sequence)):
            return None
        n_positions = sum(part.n_positions for part in known)
        empty = [part.empty for part in known]
        may_be_empty = any(empty) if isinstance(node, Alternatives) else all(empty)
        if isinstance(node, Repeat):
            n_positions *= node.most or max(node.least, 1)
            may_be_empty = may_be_empty or not node.least
        n_first = len(known)
        if isinstance(node, Sequence) and not may_be_empty:
            n_first = empty.index(False) + 1
        first = 0
        for part in known[:n_first]:
            first |= part.first_bytes
        n_levels = 1 + max((part.n_levels for part in known), default=0)
        fits = n_positions <= _MAX_POSITIONS and n_levels <= _MAX_LEVELS
        return _Shape(n_positions, n_levels, may_be_empty, first) if fits else None

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
