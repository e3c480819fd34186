"""Cuts a grammar into lexemes, the parts that llguidance reads with automata instead of its Earley parser.

llguidance ends a lexeme where none can go on. So a part is made a lexeme only where that makes no difference:
where one may end, none goes on with a character that may follow. Single characters always qualify, so that
every grammar can be cut, and the texts stay the same.
"""

from __future__ import annotations

import functools

from specllama.text.gbnf.automaton import Automata, TooLargeError, Work
from specllama.text.gbnf.follow import Follow
from specllama.text.gbnf.nodes import (
    Alternatives,
    Chars,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    char,
    descendants,
)
from specllama.text.gbnf.regular import RegularParts

_MAX_WORK = 200_000  # some 0.3 s


def cut(rules: Rules, characters_only: bool) -> Rules:
    """The rules that `root` needs, in lexemes.

    characters_only: each a single character, so that llguidance's limit on steps soon ends a forced text that
    has no end.
    """
    cutter, work = _Cutter(rules, characters_only), Work(_MAX_WORK)
    if characters_only:
        return cutter.cut()
    try:
        while True:
            lexemes = cutter.cut()
            overruns = _overruns(lexemes, cutter, work)
            if not overruns:
                return lexemes
            cutter.refused |= overruns
    except TooLargeError:
        cutter.characters_only = True
        return cutter.cut()


def _overruns(cut_rules: Rules, cutter: _Cutter, work: Work) -> set[str]:
    follow = Follow(cut_rules, work).of_lexemes
    if not any(follow.values()):
        return set()
    automata = Automata(cutter.rules, work)
    for regex, node in cutter.sources.items():
        automata.add(regex, node)
    return automata.overruns(follow)


class _Cutter:
    """refused: regular expressions that may not become lexemes. sources: what the lexemes were made of."""

    def __init__(self, rules: Rules, characters_only: bool) -> None:
        self.rules = rules
        self.refused: set[str] = set()
        self.characters_only = characters_only
        self.sources: dict[str, Node] = {}
        self._parts = RegularParts(rules)
        self._char = functools.cache(lambda c: char(ord(c)))

    def cut(self) -> Rules:
        self.sources = {}
        lexemes: Rules = {}
        todo = ["root"]
        while todo:
            name = todo.pop()
            if name not in lexemes:
                lexemes[name] = self._cut(self.rules[name])
                todo += [node.name for node in descendants(lexemes[name]) if isinstance(node, RuleRef)]
        return lexemes

    def _cut(self, node: Node) -> Node:
        if isinstance(node, Chars) or not self.characters_only:
            lexeme = self._parts.lexeme(node)
            if lexeme is not None and lexeme.regex not in self.refused:
                self.sources.setdefault(lexeme.regex, node)
                return lexeme
        if isinstance(node, Literal):
            return Sequence(tuple(self._cut(self._char(c)) for c in node.text))
        if isinstance(node, Sequence):
            return Sequence(tuple(self._cut(item) for item in node.items))
        if isinstance(node, Alternatives):
            return Alternatives(tuple(self._cut(option) for option in node.options))
        if isinstance(node, Repeat):
            return Repeat(self._cut(node.item), node.least, node.most)
        return node
