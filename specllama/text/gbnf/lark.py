"""Writes a GBNF grammar as Lark of llguidance: its lexemes, found with finite automata of its parts, where a
reader that takes the longest match reads too far; what it can match at all; how long its texts are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
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
    descendants,
    first_bytes,
    first_of,
    of_parts,
    parse,
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

    rules: of the references in the expressions. work: the most that this may cost; raises TooLargeError.
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
            following = set().union(*(self._following[p] for p in state))
            for kind, positions in self._next(following, classes).items():
                if begin[kind] & after:
                    owners |= {self._owners[p] for p in positions}
                new = frozenset(positions)
                if new not in seen:
                    seen.add(new)
                    todo.add(new)
        return owners

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

        def update(name: str) -> Iterable[str]:
            before, self._first[name] = self._first[name], self._first_of(rules[name])
            return used_by[name] if self._first[name] != before else ()

        settle(rules, update)
        settle(rules, self._visit)

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


# Splits a grammar into lexemes, the parts that llguidance reads with automata instead of its Earley parser.
#
# llguidance ends a lexeme where none can go on. So a part is made a lexeme only where that makes no
# difference: where one may end, none goes on with a character that may follow. Single characters always
# qualify, so that every grammar can be split, and the texts stay the same.


_MAX_WORK = 200_000  # some 0.3 s


def split_lexemes(rules: Rules, characters_only: bool) -> Rules:
    """The rules that `root` needs, in lexemes.

    characters_only: each a single character, so that a forced text without end soon meets llguidance's limit.
    """
    splitter, work = _Splitter(rules, characters_only), Work(_MAX_WORK)
    if characters_only:
        return splitter.split()
    try:
        while True:
            lexemes = splitter.split()
            follow, overruns = Follow(lexemes, work).of_lexemes, set[str]()
            if any(follow.values()):
                automata = Automata(splitter.rules, work)
                for regex, node in splitter.sources.items():
                    automata.add(regex, node)
                overruns = automata.overruns(follow)
            if not overruns:
                return lexemes
            splitter.refused |= overruns
    except TooLargeError:
        splitter.characters_only = True
        return splitter.split()


class _Splitter:
    """refused: regular expressions that may not become lexemes. sources: what the lexemes were made of."""

    def __init__(self, rules: Rules, characters_only: bool) -> None:
        self.rules = rules
        self.refused: set[str] = set()
        self.characters_only = characters_only
        self.sources: dict[str, Node] = {}
        self._parts = RegularParts(rules)
        self._char = functools.cache(lambda c: char(ord(c)))

    def split(self) -> Rules:
        self.sources = {}
        lexemes: Rules = {}
        todo = ["root"]
        while todo:
            name = todo.pop()
            if name not in lexemes:
                lexemes[name] = self._split(self.rules[name])
                todo += [node.name for node in descendants(lexemes[name]) if isinstance(node, RuleRef)]
        return lexemes

    def _split(self, node: Node) -> Node:
        if isinstance(node, Chars) or not self.characters_only:
            lexeme = self._parts.lexeme(node)
            if lexeme is not None and lexeme.regex not in self.refused:
                self.sources.setdefault(lexeme.regex, node)
                return lexeme
        if isinstance(node, Literal):
            return Sequence(tuple(self._split(self._char(c)) for c in node.text))
        return of_parts(node, map(self._split, children(node)))


# Leaves out of a grammar what no text satisfies, such as the class [z-a]. llama.cpp generates up to there,
# and has no token left then.


def prune(rules: Rules, matches: Callable[[TokenRef], bool]) -> Rules:
    """The rules without impossible alternatives; without `root` if no text satisfies it.

    matches: whether a token can match. A rule that has no end, but otherwise possible parts, stays.
    """
    leaves = (node for body in rules.values() for node in descendants(body))
    if not any(_is_impossible(node, matches) for node in leaves):
        return rules
    used_by, kept = users(rules), dict(rules)

    def update(name: str) -> Iterable[str]:
        if name not in kept or (body := _pruned(rules[name], kept, matches)) == kept[name]:
            return ()
        if body is None:
            del kept[name]
        else:
            kept[name] = body
        return used_by[name]

    settle(rules, update)
    return kept


def _pruned(node: Node, rules: Rules, matches: Callable[[TokenRef], bool]) -> Node | None:
    """None: it is impossible as a whole."""
    if isinstance(node, Chars | TokenRef | Literal):
        return None if _is_impossible(node, matches) else node
    if isinstance(node, RuleRef):
        return node if node.name in rules else None
    below = [_pruned(part, rules, matches) for part in children(node)]
    kept = [part for part in below if part is not None]
    if isinstance(node, Repeat) and not kept:
        return None if node.least else Sequence(())
    is_possible = bool(kept) if isinstance(node, Alternatives) else len(kept) == len(below)
    return of_parts(node, kept) if is_possible else None


def _is_impossible(leaf: Node, matches: Callable[[TokenRef], bool]) -> bool:
    if isinstance(leaf, TokenRef):
        return not matches(leaf)
    return isinstance(leaf, Chars) and not leaf.ranges


def gbnf_to_lark(
    text: str, n_vocab: int, end_ids: Collection[int], token_id: Callable[[str], int | None]
) -> str:
    """A grammar of the same texts. token_id: see parser.parse. Raises UsageError."""

    def matches(token: TokenRef) -> bool:
        return token.negated or (token.id < n_vocab and token.id not in end_ids)

    rules = prune(parse(text, token_id), matches)
    if "root" not in rules:
        raise UsageError("the grammar cannot be used: no text satisfies it")
    return _Writer(split_lexemes(rules, characters_only=not check_lengths(rules)), n_vocab).text()


class _Writer:
    def __init__(self, rules: Rules, n_vocab: int) -> None:
        self._rules, self._n_vocab = rules, n_vocab
        self._names = {name: f"r{i}" for i, name in enumerate(rules)}
        nodes = (node for body in rules.values() for node in descendants(body))
        lexemes = {node.regex: node for node in nodes if isinstance(node, Lexeme)}
        self._terminals = {regex: f"T{i}" for i, regex in enumerate(lexemes)}
        self._lexemes = lexemes.values()

    def text(self) -> str:
        lines = [f"start: {self._names['root']}"]
        lines += [f"{self._names[name]}: {self._written(body)}" for name, body in self._rules.items()]
        for lexeme in self._lexemes:
            some = " & /(?s:.+)/" if lexeme.first & EMPTY_TEXT else ""
            lines.append(f"{self._terminals[lexeme.regex]}: /{lexeme.regex}/{some}")
        return "\n".join(lines)

    def _written(self, node: Node) -> str:
        if isinstance(node, Lexeme):
            return self._terminals[node.regex] + "?" * bool(node.first & EMPTY_TEXT)
        if isinstance(node, RuleRef):
            return self._names[node.name]
        if isinstance(node, TokenRef):
            return self._token(node)
        if isinstance(node, Alternatives):
            return f"({' | '.join(self._written(option) for option in node.options)})"
        if isinstance(node, Repeat):
            return f"({self._written(node.item)}){operator(node)}"
        assert isinstance(node, Sequence)
        return " ".join(self._written(item) for item in node.items) or '""'

    def _token(self, token: TokenRef) -> str:
        if not token.negated:
            return f"<[{token.id}]>"
        return f"<[^{token.id}]>" if token.id < self._n_vocab else f"<[0-{self._n_vocab - 1}]>"
