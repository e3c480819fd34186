"""How large a JSON value is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def json_shape(value: Any) -> tuple[int, int]:
    """(levels of nesting, objects and lists), computed without recursion: the value may be nested deeply."""
    deepest, n, todo = 0, 0, [(value, 1)]
    while todo:
        item, level = todo.pop()
        deepest, n = max(deepest, level), n + 1
        children = item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ()
        todo += [(child, level + 1) for child in children if isinstance(child, (Mapping, list))]
    return deepest, n
