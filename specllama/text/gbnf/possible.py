"""Leaves out of a grammar what no text satisfies, such as the class [z-a]. llama.cpp generates up to there,
and has no token left then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from specllama.text.gbnf.nodes import (
    Alternatives,
    Chars,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    TokenRef,
    children,
    descendants,
    users,
)


def possible(rules: Rules, matches: Callable[[TokenRef], bool]) -> Rules:
    """The rules without impossible alternatives; without `root` if no text satisfies it.

    matches: whether a token can match. A rule that has no end, but otherwise possible parts, stays.
    """
    leaves = (node for body in rules.values() for node in descendants(body))
    if not any(_is_impossible(node, matches) for node in leaves):
        return rules
    used_by = users(rules)
    kept = dict(rules)
    todo = list(rules)
    while todo:
        name = todo.pop()
        if name in kept and (body := _without_impossible(rules[name], kept, matches)) != kept[name]:
            if body is None:
                del kept[name]
            else:
                kept[name] = body
            todo += used_by[name]
    return kept


def _without_impossible(node: Node, rules: Rules, matches: Callable[[TokenRef], bool]) -> Node | None:
    """None: it is impossible as a whole."""

    def possible_ones(nodes: Iterable[Node]) -> list[Node]:
        all_ = (_without_impossible(n, rules, matches) for n in nodes)
        return [n for n in all_ if n is not None]

    if isinstance(node, Chars | TokenRef | Literal):
        return None if _is_impossible(node, matches) else node
    if isinstance(node, RuleRef):
        return node if node.name in rules else None
    if isinstance(node, Repeat):
        kept = possible_ones([node.item])
        if kept:
            return Repeat(kept[0], node.least, node.most)
        return None if node.least else Sequence(())
    if isinstance(node, Alternatives):
        kept = possible_ones(node.options)
        return Alternatives(tuple(kept)) if kept else None
    kept = possible_ones(children(node))
    return Sequence(tuple(kept)) if len(kept) == len(children(node)) else None


def _is_impossible(leaf: Node, matches: Callable[[TokenRef], bool]) -> bool:
    if isinstance(leaf, TokenRef):
        return not matches(leaf)
    return isinstance(leaf, Chars) and not leaf.ranges
