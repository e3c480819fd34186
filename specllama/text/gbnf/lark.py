"""Writes a GBNF grammar as Lark of llguidance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable

from specllama.errors import UsageError
from specllama.text.gbnf.automaton import (
    Automata,
    Follow,
    RegularParts,
    TooLargeError,
    Work,
    check_lengths,
    operator,
)
from specllama.text.gbnf.parser import (
    EMPTY_TEXT,
    Alternatives,
    Chars,
    Lexeme,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    TokenRef,
    char,
    children,
    descendants,
    parse,
    settle,
    users,
)

# Splits a grammar into lexemes, the parts that llguidance reads with automata instead of its Earley parser.
#
# llguidance ends a lexeme where none can go on. So a part is made a lexeme only where that makes no
# difference: where one may end, none goes on with a character that may follow. Single characters always
# qualify, so that every grammar can be split, and the texts stay the same.


_MAX_WORK = 200_000  # some 0.3 s


def split_lexemes(rules: Rules, characters_only: bool) -> Rules:
    """The rules that `root` needs, in lexemes.

    characters_only: each a single character, so that llguidance's limit on steps soon ends a forced text that
    has no end.
    """
    splitter, work = _Splitter(rules, characters_only), Work(_MAX_WORK)
    if characters_only:
        return splitter.split()
    try:
        while True:
            lexemes = splitter.split()
            overruns = _overruns(lexemes, splitter, work)
            if not overruns:
                return lexemes
            splitter.refused |= overruns
    except TooLargeError:
        splitter.characters_only = True
        return splitter.split()


def _overruns(lexemes: Rules, splitter: _Splitter, work: Work) -> set[str]:
    follow = Follow(lexemes, work).of_lexemes
    if not any(follow.values()):
        return set()
    automata = Automata(splitter.rules, work)
    for regex, node in splitter.sources.items():
        automata.add(regex, node)
    return automata.overruns(follow)


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
        if isinstance(node, Sequence):
            return Sequence(tuple(self._split(item) for item in node.items))
        if isinstance(node, Alternatives):
            return Alternatives(tuple(self._split(option) for option in node.options))
        if isinstance(node, Repeat):
            return Repeat(self._split(node.item), node.least, node.most)
        return node


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

    def kept_ones(nodes: Iterable[Node]) -> list[Node]:
        all_ = (_pruned(n, rules, matches) for n in nodes)
        return [n for n in all_ if n is not None]

    if isinstance(node, Chars | TokenRef | Literal):
        return None if _is_impossible(node, matches) else node
    if isinstance(node, RuleRef):
        return node if node.name in rules else None
    if isinstance(node, Repeat):
        kept = kept_ones([node.item])
        if kept:
            return Repeat(kept[0], node.least, node.most)
        return None if node.least else Sequence(())
    if isinstance(node, Alternatives):
        kept = kept_ones(node.options)
        return Alternatives(tuple(kept)) if kept else None
    kept = kept_ones(children(node))
    return Sequence(tuple(kept)) if len(kept) == len(children(node)) else None


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
