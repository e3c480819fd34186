"""Reads GBNF as llama.cpp does (src/llama-grammar.cpp: the same syntax, limits and refusals)."""

from __future__ import annotations

import functools
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NoReturn, TypeAlias

from specllama.errors import UsageError

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points as ranges, both ends included, ascending and apart."""

ANY: Ranges = ((0x1, 0xD7FF), (0xE000, 0x10FFFF))
"""The characters of UTF-8 text. No NUL: llama.cpp's matcher takes one for the end of a token."""


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
    text. first: the first bytes of the part's texts, as bits, and EMPTY_TEXT if it has that.
    """

    regex: str
    first: int


Node: TypeAlias = Chars | Literal | TokenRef | RuleRef | Sequence | Alternatives | Repeat | Lexeme
Rules: TypeAlias = dict[str, Node]


def char_set(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Chars:
    """The characters of text among these ranges, or all others; a range that ends too early has none."""
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


def of_parts(node: Node, parts: Iterable[Node]) -> Node:
    """The same node with other ones directly below it."""
    if isinstance(node, Repeat):
        return Repeat(next(iter(parts)), node.least, node.most)
    return type(node)(tuple(parts)) if isinstance(node, Sequence | Alternatives) else node


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


def settle(rules: Iterable[str], update: Callable[[str], Iterable[str]]) -> None:
    """Update rules until nothing changes. update: returns the rules to update again."""
    todo = deque(rules)
    waiting = set(todo)
    while todo:
        name = todo.popleft()
        waiting.discard(name)
        new = [other for other in update(name) if other not in waiting]
        waiting.update(new)
        todo += new


EMPTY_TEXT = 1 << 0xFE  # in a set of first bytes: the empty text; no byte of UTF-8


def first_of(node: Node, of_part: Callable[[Node], int]) -> int:
    """The first bytes of a node's texts, as bits, and EMPTY_TEXT if it has that. of_part: of a child."""
    if isinstance(node, Sequence):
        first = EMPTY_TEXT
        for item in node.items:
            if first & EMPTY_TEXT:
                first = first & ~EMPTY_TEXT | of_part(item)
        return first
    optional = isinstance(node, Repeat) and not node.least
    return functools.reduce(operator.or_, map(of_part, children(node)), EMPTY_TEXT * optional)


def first_bytes(ranges: Ranges) -> int:
    """The first bytes in UTF-8 of the characters in these ranges, as bits."""
    bits = 0
    for low, high in ranges:
        bits |= (2 << _first_byte(high)) - (1 << _first_byte(low))
    return bits


def _first_byte(code: int) -> int:
    return code if code < 0x80 else chr(code).encode()[0]


# Finds the rules of a grammar that begin with themselves, as llama.cpp finds them.
#
# llama.cpp looks at the rules that it makes of groups and repetitions too, and takes for possibly empty only
# what has an alternative without any item (llama_grammar_detect_left_recursion).


_Key: TypeAlias = str | int  # a rule's name, or the id of a group's or repetition's node


def left_recursive(rules: Rules, nodes: Iterable[Node]) -> str | None:
    """The rule or repetition that begins with itself, in words; None without. nodes: all of the grammar."""
    sorter: TopologicalSorter[_Key] = TopologicalSorter()
    for name, body in rules.items():
        sorter.add(name, *_begins_with(body, rules))
    for node in nodes:
        if isinstance(node, Alternatives | Repeat):
            sorter.add(id(node), *_begins_with(node, rules))
    try:
        sorter.prepare()
    except CycleError as error:
        names = sorted({key for key in error.args[1] if isinstance(key, str)})
        if names:
            return f"rule {names[0]!r:.80} begins with itself (left recursion)"
        return "a repetition repeats what may be empty (left recursion)"
    return None


def _begins_with(node: Node, rules: Rules) -> list[_Key]:
    """The rules with which llama.cpp's rule for a group, or for the repetition's further items, may begin."""
    keys: list[_Key] = []
    for option in children(node):
        passed = all(_passed(item, rules, keys) for item in _items(option))
        if isinstance(node, Repeat) and passed and node.most is None:
            keys.append(id(node))
    return keys


def _passed(item: Node, rules: Rules, keys: list[_Key]) -> bool:
    """Note what stands first in an item; whether what follows may be first too."""
    if isinstance(item, RuleRef):
        keys.append(item.name)
        return _may_be_empty(rules[item.name])
    if isinstance(item, Alternatives):
        keys.append(id(item))
        return _may_be_empty(item)
    if isinstance(item, Repeat):
        if item.least and not all(_passed(part, rules, keys) for part in _items(item.item)):
            return False
        if item.most != item.least:
            keys.append(id(item))
        return True
    return False


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Sequence) else (node,)


def _may_be_empty(node: Node) -> bool:
    return Sequence(()) in children(node)


MAX_REPETITION = 2000
"""More repetitions at least are refused; more at most are without end. Nested ones are multiplied."""
MAX_DEPTH = 100  # of groups; llama.cpp has no limit but its stack
_DIGITS = re.compile("[0-9]*")
_WORD = re.compile("[0-9A-Za-z-]*")  # no "_", which llama.cpp keeps for names of its own
_PLAIN = re.compile(r'[^"\\]*')
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{c: c for c in '\\"[]-'}}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}


def parse(text: str, token_id: Callable[[str], int | None]) -> Rules:
    """The rules of a grammar by name, `root` among them: each a Alternatives of Sequences.

    token_id: the id of the token that a text such as `<think>` is as a whole, None if it is not one token.
    Raises UsageError where llama.cpp refuses the grammar, and for a repetition whose end is below its start,
    with which llama.cpp does not come back.
    """
    parser = _Parser(text, token_id)
    rules = parser.rules()
    nodes = [node for part in (*rules.values(), *parser.dropped) for node in descendants(part)]
    refs = (node.name for node in nodes if isinstance(node, RuleRef))
    missing = next((name for name in refs if name not in rules), None)
    if missing is not None:
        raise _refused(f"there is no rule {missing!r:.80}")
    if "root" not in rules:
        raise _refused("there is no rule 'root', with which llama.cpp begins")
    if (why := left_recursive(rules, nodes)) is not None:
        raise _refused(why)
    return rules


def _refused(why: str) -> UsageError:
    return UsageError(f"the grammar cannot be used: {why}")


class _Parser:
    """dropped: what is repeated zero times, of which llama.cpp checks the rules all the same."""

    def __init__(self, text: str, token_id: Callable[[str], int | None]) -> None:
        self._text, self._token_id = text, token_id
        self.dropped: list[Node] = []
        self._at, self._depth = 0, 0
        self._names: set[str] = set()
        self._n_made = 0  # rules that llama.cpp makes for groups and repetitions

    def rules(self) -> Rules:
        rules: Rules = {}
        self._space(newlines=True)
        while self._here():
            name = self._name()
            self._space(newlines=False)
            if not self._take("::="):
                self._expected("::=" + (" (a rule's name has letters, digits and -)" * (self._here() == "_")))
            self._space(newlines=True)
            rules[name] = self._choice(nested=False)
            if not (self._take("\r\n") or self._take("\r") or self._take("\n")) and self._here():
                self._expected("the end of the line")
            self._space(newlines=True)
        return rules

    def _choice(self, nested: bool) -> Alternatives:
        options = [self._sequence(nested)]
        while self._take("|"):
            self._space(newlines=True)
            options.append(self._sequence(nested))
        return Alternatives(tuple(options))

    def _sequence(self, nested: bool) -> Sequence:
        items: list[Node] = []
        n_rules, repeatable = 1, False  # of the last item
        while True:
            here = self._here()
            if here and here in "*+?{":
                least, most = self._times(nested)
                if not repeatable:
                    self._expected(f"something to repeat before {here}")
                n_rules = self._limited(n_rules, least, most)
                if most == 0:
                    self.dropped.append(items.pop())
                    repeatable = False
                else:
                    items[-1] = Repeat(items[-1], least, most)
                continue
            n_before = self._n_symbols
            item = self._item(here)
            if item is None:
                return Sequence(tuple(items))
            self._space(nested)
            n_rules = max(1, self._n_symbols - n_before) if isinstance(item, Alternatives) else 1
            repeatable = item != Sequence(())
            if repeatable:
                items.append(item)

    def _item(self, here: str) -> Node | None:
        """The next item; a literal without characters is an empty Sequence. None: no item begins here."""
        if here == '"':
            return self._literal()
        if here == "[":
            return self._char_class()
        if here == "<" or here == "!":
            return self._token()
        if here == "(":
            return self._group()
        if here == ".":
            self._at += 1
            return Chars(ANY)
        return RuleRef(self._name()) if _WORD.fullmatch(here or "!") else None

    def _literal(self) -> Node:
        self._at += 1
        codes = list[int]()
        while not self._take('"'):
            plain = self._run_of(_PLAIN)
            codes += map(ord, plain) if plain else [self._char()]
        if len(codes) > 1 and all(map(is_text, codes)):
            return Literal("".join(map(chr, codes)))
        return char(codes[0]) if len(codes) == 1 else Sequence(tuple(map(char, codes)))

    def _char_class(self) -> Node:
        self._at += 1
        negated = self._take("^")
        ranges = []
        while not self._take("]"):
            low = high = self._char()
            if self._here() == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._char()
            ranges.append((low, high))
        return char_set(ranges, negated) if ranges else Sequence(())  # [] and [^] match the empty text

    def _char(self) -> int:
        """The code point of a character or an escape."""
        here = self._here()
        if not here:
            self._expected("the end of a literal")
        self._at += 1
        if here != "\\":
            return ord(here)
        kind = self._here()
        if kind in _ESCAPES:
            self._at += 1
            return ord(_ESCAPES[kind])
        n = _HEX_ESCAPES.get(kind)
        if n is None:
            self._expected('one of the escapes \\x \\u \\U \\t \\r \\n \\\\ \\" \\[ \\] \\-')
        digits = self._text[self._at + 1 : self._at + 1 + n]
        if len(digits) < n or any(d not in "0123456789abcdefABCDEF" for d in digits):
            self._expected(f"{n} hexadecimal digits after \\{kind}")
        self._at += 1 + n
        return int(digits, 16)

    def _token(self) -> Node:
        negated, start = self._take("!"), self._at
        if not self._take("<"):
            self._expected("< of a token after !")
        if self._take("["):
            token = self._int()
            if token >= 1 << 32:
                self._expected("the id of a token, which has 32 bits")
            if not self._take("]>"):
                self._expected("]>")
            return TokenRef(token, negated)
        end = self._text.find(">", self._at)
        if end < 0:
            self._expected("> of a token")
        self._at = end + 1
        text = self._text[start : self._at]
        known = self._token_id(text)
        if known is None:
            message = f"{text[:60]} is not one token of this model's vocabulary ({self._position(start)})"
            raise _refused(message)
        return TokenRef(known, negated)

    def _group(self) -> Alternatives:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(f"groups are nested deeper than {MAX_DEPTH} levels ({self._position(self._at)})")
        self._at += 1
        self._n_made += 1
        self._space(newlines=True)
        body = self._choice(nested=True)
        if not self._take(")"):
            self._expected("a closing parenthesis")
        self._depth -= 1
        return body

    def _times(self, nested: bool) -> tuple[int, int | None]:
        """The least and the most repetitions that an operator asks for."""
        here, start = self._here(), self._at
        self._at += 1
        self._space(nested)
        if here != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[here]
        least = most = self._int()
        self._space(nested)
        unbounded = False
        if self._take(","):
            self._space(nested)
            unbounded = not _DIGITS.fullmatch(self._here() or "!")
            most = least if unbounded else self._int()
            self._space(nested)
        if not self._take("}"):
            self._expected("a comma or a closing brace")
        self._space(nested)
        if least > MAX_REPETITION:
            raise _refused(f"more than {MAX_REPETITION} repetitions ({self._position(start)})")
        if unbounded or most > MAX_REPETITION:
            return least, None
        if most < least:
            raise _refused(f"a repetition of at least {least} and at most {most} ({self._position(start)})")
        return least, most

    def _limited(self, n_rules: int, least: int, most: int | None) -> int:
        """The rules of the repeated item, which llama.cpp bounds."""
        n_rules *= most or least or 1
        if n_rules > MAX_REPETITION:
            message = f"nested repetitions make more than {MAX_REPETITION} rules ({self._position(self._at)})"
            raise _refused(message)
        self._n_made += 1 if most is None else most - least
        return n_rules

    @property
    def _n_symbols(self) -> int:
        return len(self._names) + self._n_made

    def _name(self) -> str:
        name = self._run_of(_WORD)
        if not name:
            self._expected("the name of a rule")
        self._names.add(name)
        return name

    def _int(self) -> int:
        digits = self._run_of(_DIGITS)
        significant = digits.lstrip("0")[:21]  # Python converts no number of thousands of digits
        if not digits or int(significant or "0") >= 1 << 64:
            self._expected("a number of at most 64 bits")
        return int(significant or "0")

    def _run_of(self, characters: re.Pattern[str]) -> str:
        match = characters.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return match[0]

    def _space(self, newlines: bool) -> None:
        self._run_of(_LINES if newlines else _SPACE)

    def _here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        matches = self._text.startswith(text, self._at)
        self._at += len(text) * matches
        return matches

    def _expected(self, what: str) -> NoReturn:
        raise _refused(f"expected {what} ({self._position(self._at)})")

    def _position(self, at: int) -> str:
        line = self._text.count("\n", 0, at) + 1
        return f"line {line}, column {at - self._text.rfind(chr(10), 0, at)}"
