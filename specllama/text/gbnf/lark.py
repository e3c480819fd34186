"""Writes a GBNF grammar as Lark of llguidance."""

from __future__ import annotations

from collections.abc import Callable, Collection

from specllama.errors import UsageError
from specllama.text.gbnf.lexemes import cut
from specllama.text.gbnf.nodes import (
    Alternatives,
    Lexeme,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    TokenRef,
    descendants,
)
from specllama.text.gbnf.parser import parse
from specllama.text.gbnf.possible import possible
from specllama.text.gbnf.regular import operator
from specllama.text.gbnf.shortest import check_lengths


def gbnf_to_lark(
    text: str, n_vocab: int, end_ids: Collection[int], token_id: Callable[[str], int | None]
) -> str:
    """A grammar of the same texts. token_id: see parser.parse. Raises UsageError."""

    def matches(token: TokenRef) -> bool:
        return token.negated or (token.id < n_vocab and token.id not in end_ids)

    rules = possible(parse(text, token_id), matches)
    if "root" not in rules:
        raise UsageError("the grammar cannot be used: no text satisfies it")
    return _Writer(cut(rules, characters_only=not check_lengths(rules)), n_vocab).text()


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
            some = " & /(?s:.+)/" if lexeme.optional else ""
            lines.append(f"{self._terminals[lexeme.regex]}: /{lexeme.regex}/{some}")
        return "\n".join(lines)

    def _written(self, node: Node) -> str:
        if isinstance(node, Lexeme):
            return self._terminals[node.regex] + "?" * node.optional
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
