"""How long the shortest value of a JSON schema is.

A text that a schema forces is worked out whole, in memory and in time: a hundred bytes of schema, such as a
constant in a list of a million items, can ask for gigabytes.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MAX_LENGTH = 256 * 1024  # characters
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_DATA = frozenset(("const", "enum", "required", "default", "examples"))


def forces_too_much(schema: Mapping[str, Any]) -> bool:
    """Whether a part of a schema, or the whole, has no value shorter than MAX_LENGTH. An estimate from above:
    of keywords that say the same, each counts.
    """
    lengths = _Lengths(schema)
    lengths.of(schema)
    return lengths.longest > MAX_LENGTH


class _Lengths:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}  # by id of a part; 0 while it is worked out
        self.longest = 0

    def of(self, schema: Any) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) not in self._known:
            self._known[id(schema)] = 0
            for part in _parts(schema):
                self.of(part)
            self._known[id(schema)] = length = self._sum(schema)
            self.longest = max(self.longest, length)
        return self._known[id(schema)]

    def _sum(self, schema: Mapping[str, Any]) -> int:
        length = 1
        if "const" in schema:
            length += len(json.dumps(schema["const"]))
        length += _least(len(json.dumps(value)) for value in _list(schema, "enum"))
        if isinstance(pattern := schema.get("pattern"), str):
            length += max(_width(pattern), _number(schema, "minLength"))
        prefix = [self.of(item) + 2 for item in _list(schema, "prefixItems")]
        n_items = _number(schema, "minItems")
        length += sum(prefix[:n_items]) + max(0, n_items - len(prefix)) * (self.of(schema.get("items")) + 2)
        properties = schema.get("properties")
        for name in filter(lambda name: isinstance(name, str), _list(schema, "required")):
            value = properties.get(name) if isinstance(properties, Mapping) else None
            length += len(name) + 6 + self.of(value)
        length += sum(self.of(part) for part in _list(schema, "allOf"))
        for keyword in ("anyOf", "oneOf"):
            length += _least(self.of(part) for part in _list(schema, keyword))
        if isinstance(reference := schema.get("$ref"), str):
            length += self.of(self._at(reference))
        return length

    def _at(self, reference: str) -> Any:
        """The part of the schema with this JSON pointer (RFC 6901); None if there is none."""
        node: Any = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, Mapping) else None
        return node


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas directly below."""
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            yield from value.values()
        elif keyword not in _DATA:
            yield from value if isinstance(value, list) else [value]


def _least(lengths: Iterable[int]) -> int:
    return min(lengths, default=0)


def _list(schema: Mapping[str, Any], keyword: str) -> Sequence[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else ()


def _number(schema: Mapping[str, Any], keyword: str) -> int:
    value = schema.get(keyword)
    return int(value) if isinstance(value, int | float) and 0 < value < 1e18 else 0


def _width(pattern: str) -> int:
    """The characters of the shortest match; those of the pattern where Python cannot read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(re._parser.parse(pattern).getwidth()[0])  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError):
        return len(pattern)
