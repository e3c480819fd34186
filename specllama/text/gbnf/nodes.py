"""The tree of a GBNF grammar. Knows neither its syntax nor llguidance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points as ranges, both ends included, ascending and apart."""

ANY: Ranges = ((0x1, 0xD7FF), (0xE000, 0x10FFFF))
"""What UTF-8 text has. No NUL: llama.cpp's matcher takes one for the end of a token."""


@dataclass(frozen=True)
class Chars:
    """One character of a set; none if the set is empty."""

    ranges: Ranges


@dataclass(frozen=True)
class Literal:
    """Several characters, as they are."""

    text: str


@dataclass(frozen=True)
class TokenRef:
    """One token, or any other one if `negated`."""

    id: int
    negated: bool = False


@dataclass(frozen=True)
class RuleRef:
    name: str


@dataclass(frozen=True)
class Sequence:
    """Its items one after another; without items the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alternatives:
    """One of its options, of which there is at least one."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`least` to `most` times the item; most None: without end."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Lexeme:
    """A part without recursion and tokens, as a regular expression in Rust's syntax that matches no empty
    text. optional: whether the part matches that too. first_bytes: with which its texts begin, as bits.
    """

    regex: str
    optional: bool
    first_bytes: int


Node: TypeAlias = Chars | Literal | TokenRef | RuleRef | Sequence | Alternatives | Repeat | Lexeme
Rules: TypeAlias = dict[str, Node]


def char_set(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Chars:
    """The characters of text among these ranges, or all others; a range that ends before it begins has
    none.
    """
    joined: list[tuple[int, int]] = []
    for low, high in sorted(r for r in ranges if r[0] <= r[1]):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    if negated:
        starts, ends = [0, *(high + 1 for _, high in joined)], [*(low - 1 for low, _ in joined), ANY[-1][1]]
        joined = list(zip(starts, ends, strict=True))
    both = ((max(a, c), min(b, d)) for a, b in joined for c, d in ANY)
    return Chars(tuple((low, high) for low, high in both if low <= high))


def char(code: int) -> Chars:
    """One character; of no text if UTF-8 text has none such."""
    return Chars(((code, code),) if is_text(code) else ())


def is_text(code: int) -> bool:
    return 0 < code < 0xD800 or 0xDFFF < code < 0x110000


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below this one; a reference or a literal has none."""
    if isinstance(node, Sequence):
        return node.items
    if isinstance(node, Alternatives):
        return node.options
    return (node.item,) if isinstance(node, Repeat) else ()


def descendants(node: Node) -> Iterable[Node]:
    """The node and all nodes below it."""
    todo = [node]
    while todo:
        todo.extend(children(below := todo.pop()))
        yield below


def users(rules: Rules) -> dict[str, set[str]]:
    """The rules that refer to each rule."""
    by_name: dict[str, set[str]] = {name: set() for name in rules}
    for name, body in rules.items():
        for node in descendants(body):
            if isinstance(node, RuleRef):
                by_name[node.name].add(name)
    return by_name


def first_bytes(ranges: Ranges) -> int:
    """The first bytes in UTF-8 of the characters in these ranges, as bits."""
    bits = 0
    for low, high in ranges:
        bits |= (2 << _first_byte(high)) - (1 << _first_byte(low))
    return bits


def _first_byte(code: int) -> int:
    return code if code < 0x80 else chr(code).encode()[0]
