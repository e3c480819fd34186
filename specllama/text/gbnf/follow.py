"""What may follow the lexemes of a grammar: the FIRST and FOLLOW sets of parsers (Aho, Sethi and Ullman
1986, section 4.4), of first bytes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from specllama.text.gbnf.automaton import Work
from specllama.text.gbnf.nodes import Alternatives, Lexeme, Node, Repeat, RuleRef, Rules, Sequence, users

_EMPTY = 1 << 0xFE  # in a FIRST set: the empty text; no byte of UTF-8
_TOKEN = 1 << 0xFF  # a token that is matched by its id


class Follow:
    """of_lexemes: by regular expression, the first bytes of what may follow, as bits."""

    def __init__(self, rules: Rules, work: Work) -> None:
        self.of_lexemes: dict[str, int] = defaultdict(int)
        self._rules, self._work = rules, work
        self._first = dict.fromkeys(rules, 0)
        self._of_rules = dict.fromkeys(rules, 0)
        used_by = users(rules)
        self._settle(lambda name: used_by[name] if self._update_first(name) else ())
        self._settle(self._visit)

    def _settle(self, update: Callable[[str], set[str] | tuple[()]]) -> None:
        """Update rules until nothing changes. update: returns the rules to update again."""
        todo = deque(self._rules)
        waiting = set(todo)
        while todo:
            name = todo.popleft()
            waiting.discard(name)
            for other in update(name):
                if other not in waiting:
                    waiting.add(other)
                    todo.append(other)

    def _update_first(self, name: str) -> bool:
        before, self._first[name] = self._first[name], self._first_of(self._rules[name])
        return self._first[name] != before

    def _first_of(self, node: Node) -> int:
        self._work.add(1)
        if isinstance(node, Lexeme):
            return node.first_bytes | _EMPTY * node.optional
        if isinstance(node, RuleRef):
            return self._first[node.name]
        if isinstance(node, Alternatives):
            first = 0
            for option in node.options:
                first |= self._first_of(option)
            return first
        if isinstance(node, Repeat):
            return self._first_of(node.item) | _EMPTY * (not node.least)
        if isinstance(node, Sequence):
            first = _EMPTY
            for item in node.items:
                if first & _EMPTY:
                    first = first & ~_EMPTY | self._first_of(item)
            return first
        return _TOKEN

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
            again = first & ~_EMPTY if node.most != 1 else 0
            self._walk(node.item, after | again, changed)
        elif isinstance(node, Sequence):
            begin = after
            for item in reversed(node.items):
                begin = self._walk(item, begin, changed)
        return first & ~_EMPTY | after if first & _EMPTY else first
