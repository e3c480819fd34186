"""How long the shortest texts of a grammar's rules are.

A text that a grammar forces is worked out whole, in memory and in time; forty rules that each double the next
one make one of a terabyte.
"""

from __future__ import annotations

import math
from collections import deque

from specllama.errors import UsageError
from specllama.text.gbnf.nodes import (
    Alternatives,
    Chars,
    Literal,
    Node,
    Repeat,
    RuleRef,
    Rules,
    TokenRef,
    children,
    users,
)

MAX_LENGTH = 100_000  # characters; no context holds many such texts, and the grammar's text has 64 KiB


def check_lengths(rules: Rules) -> bool:
    """Whether each rule has a text that ends. Raises UsageError if the shortest of a rule is too long."""
    lengths = dict.fromkeys(rules, math.inf)
    used_by = users(rules)
    todo = deque(rules)
    while todo:
        name = todo.popleft()
        length = _length(rules[name], lengths)
        if length < lengths[name]:
            lengths[name] = length
            todo += used_by[name]
    long = next((name for name, length in lengths.items() if MAX_LENGTH < length < math.inf), None)
    if long is not None:
        why = f"the shortest text of rule {long!r} has more than {MAX_LENGTH} characters"
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
