"""Finds the rules of a grammar that begin with themselves, as llama.cpp finds them.

llama.cpp looks at the rules that it makes of groups and repetitions too, and takes for possibly empty only
what has an alternative without any item (llama_grammar_detect_left_recursion).
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from specllama.text.gbnf.nodes import (
    Alternatives,
    Node,
    Repeat,
    RuleRef,
    Rules,
    Sequence,
    children,
)

_Key: TypeAlias = str | int  # a rule's name, or the id of a group's or repetition's node


def left_recursive(rules: Rules, nodes: Iterable[Node]) -> str | None:
    """What begins with itself, in words; None if nothing does. nodes: all of the grammar."""
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
            return f"rule {names[0]!r} begins with itself (left recursion)"
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
