"""JSON schemas: their subschemas, their form, and how large they and the texts are that they ask for.

Fronts import it: it knows no grammar, only llguidance's keyword for the style of JSON and its messages.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.errors import UsageError
from specllama.json_types import JsonObject, why_not_json

Path = tuple[str | int, ...]
"""To a subschema: its keyword, and below that its name or position."""

STYLE = "x-guidance"  # llguidance's keyword for it in a schema
JSON_STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""The style of JSON that models were trained to write. Flexible whitespace could be endless, and is never
forced. llguidance has no oneOf, which is treated as anyOf.
"""
MAX_DEPTH, MAX_PARTS = 32, 1_500  # levels of a schema, its objects and lists
MAX_LENGTH = 256 * 1024  # characters of the shortest text
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")

_OF_ITEMS = ("items", "additionalItems", "contains")
_ONE = frozenset((*_OF_ITEMS, "additionalProperties", "propertyNames", "not", "if", "then", "else"))
_LISTED = frozenset(("anyOf", "oneOf", "allOf", "prefixItems", "items"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_DATA = frozenset(("const", "enum", "required", "dependentRequired", "default", "examples"))
_LONGEST, _DEEPEST = 200, 64  # characters of a path; levels that are rewritten


def with_parts(
    schema: Mapping[str, Any], change: Callable[[Path, Any], Any], more: bool = False
) -> JsonObject:
    """A copy of a schema with its subschemas, those directly below, changed. change: from a subschema's path
    and itself. more: the values of unknown keywords are subschemas too, since references may lead there.
    """
    copy = dict(schema)
    for keyword, value in schema.items():
        unknown = more and keyword not in _NAMED and keyword not in _DATA
        if keyword in _NAMED and isinstance(value, Mapping):
            copy[keyword] = {name: change((keyword, name), one) for name, one in value.items()}
        elif (keyword in _LISTED or unknown) and isinstance(value, list):
            copy[keyword] = [change((keyword, i), one) for i, one in enumerate(value)]
        elif keyword in _ONE or unknown:
            copy[keyword] = change((keyword,), value)
    return copy


def parts(schema: Mapping[str, Any], more: bool = False) -> list[tuple[Path, Any]]:
    """The subschemas directly below a schema, with their paths. more: see `with_parts`."""
    below: list[tuple[Path, Any]] = []
    with_parts(schema, lambda path, part: below.append((path, part)), more)
    return below


def rewritten(
    schema: Any, change: Callable[[Mapping[str, Any]], JsonObject], more: bool = False, depth: int = 0
) -> Any:
    """A copy of a schema with each part changed, the outermost first. more: see `with_parts`."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return schema
    return with_parts(change(schema), lambda _, part: rewritten(part, change, more, depth + 1), more)


def without_nulls(schema: Any) -> Any:
    """A copy of a schema without keywords that are null, at every level: serialisers write them for what is
    not set. Values that are data, such as those of `default` and `const`, stay.
    """
    return rewritten(
        schema, lambda one: {k: v for k, v in one.items() if v is not None or k in ("const", "default")}
    )


def target(root: Any, reference: Any) -> Any:
    """The part of a schema to which a reference leads, a JSON pointer (RFC 6901); None if there is none."""
    begin, *names = reference.split("/") if isinstance(reference, str) else [""]
    node = root if begin == "#" else None
    for name in names:
        if isinstance(node, Mapping):
            node = node.get(name.replace("~1", "/").replace("~0", "~"))
        elif isinstance(node, list) and name.isdecimal() and len(name) < 6 and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


# Whether something has the form of a schema. What it says may be unsupported, or impossible; here is looked
# for what no validator could read.


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and value in TYPES


def _are(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def is_text(value: Any) -> bool:
    return isinstance(value, str)


_FORMS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "type": (
        f"one of {', '.join(TYPES)}, or a list of them",
        lambda value: _is_type(value) or _are(_is_type)(value),
    ),
    "required": ("a list of names", _are(is_text)),
    **dict.fromkeys(("$ref", "pattern"), ("a text", is_text)),
    **dict.fromkeys(sorted(_NAMED), ("an object", lambda value: isinstance(value, Mapping))),
    **dict.fromkeys(("enum", *sorted(_LISTED - _ONE)), ("a list", lambda value: isinstance(value, list))),
}


def fault(schema: Mapping[str, Any], path: str) -> tuple[str, str] | None:
    """(Path of what is no schema, what it must be), None if all is well. Keywords that are null count as
    absent. path: of the schema.
    """
    todo: list[tuple[Any, str]] = [(schema, path)]
    while todo:
        one, at = todo.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, Mapping):
            return at[:_LONGEST], "must be a schema: an object, true or false"
        for keyword, (form, fits) in _FORMS.items():
            if one.get(keyword) is not None and not fits(one[keyword]):
                return f"{at}.{keyword}"[:_LONGEST], f"must be {form}"
        for names, part in parts(one):
            shown = "".join(f"[{n}]" if isinstance(n, int) else f".{str(n)[:40]}" for n in names)
            if part is not None or len(names) > 1:
                todo.append((part, at + shown))
    return None


# How large a schema is. A text that a schema forces is worked out whole, in memory and in time: a hundred
# bytes of schema, such as a constant in a list of a million items, can ask for gigabytes.


def parsed(schema: Any) -> JsonObject:
    """A schema (JSON text, an object or a bool), checked for its size. Raises UsageError."""
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {why_not_json(error)}") from None
    schema = {} if schema is True else schema
    if not isinstance(schema, Mapping):
        raise UsageError("the JSON schema must be an object", 'as {"type": "object", "properties": {…}}')
    if problem := excess(schema):
        raise UsageError(f"the JSON schema {problem}")
    return dict(schema)


def excess(schema: Mapping[str, Any]) -> str:
    """In what a schema is too large for a grammar, in words that follow "the schema"; "" if it is not."""
    deepest, n_parts = shape(schema)
    if deepest > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if n_parts > MAX_PARTS:
        return f"has more than {MAX_PARTS} objects and lists"
    return f"asks for a text of more than {MAX_LENGTH} characters" if forces_too_much(schema) else ""


def shape(value: Any) -> tuple[int, int]:
    """(levels, objects and lists) of a JSON value, without recursion: it may be nested deeply."""
    deepest, n, todo = 0, 0, [(value, 1)]
    while todo:
        item, level = todo.pop()
        deepest, n = max(deepest, level), n + 1
        children = item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ()
        todo += [(child, level + 1) for child in children if isinstance(child, (Mapping, list))]
    return deepest, n


def forces_too_much(schema: Mapping[str, Any]) -> bool:
    """Whether a part of a schema, or the whole, has no value shorter than MAX_LENGTH. An estimate from above:
    of keywords that say the same, each counts.
    """
    lengths = _Lengths(schema)
    lengths.of(schema)
    return lengths.longest > MAX_LENGTH


class _Lengths:
    """Of the shortest values of a schema's parts."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}  # by id of a part; 0 while it is worked out
        self.longest = 0

    def of(self, schema: Any) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) not in self._known:
            self._known[id(schema)] = 0
            for _, part in parts(schema, more=True):
                self.of(part)
            self._known[id(schema)] = length = self._sum(schema)
            self.longest = max(self.longest, length)
        return self._known[id(schema)]

    def _sum(self, schema: Mapping[str, Any]) -> int:
        length = 1
        if "const" in schema:
            length += len(json.dumps(schema["const"]))
        length += min((len(json.dumps(value)) for value in _list(schema, "enum")), default=0)
        if isinstance(pattern := schema.get("pattern"), str):
            length += max(_width(pattern), _number(schema, "minLength"))
        prefix = [self.of(item) + 2 for item in _list(schema, "prefixItems")]
        n_items = _number(schema, "minItems")
        length += sum(prefix[:n_items]) + max(0, n_items - len(prefix)) * (self.of(schema.get("items")) + 2)
        properties = schema.get("properties")
        for name in filter(is_text, _list(schema, "required")):
            value = properties.get(name) if isinstance(properties, Mapping) else None
            length += len(name) + 6 + self.of(value)
        length += sum(self.of(part) for part in _list(schema, "allOf"))
        for keyword in ("anyOf", "oneOf"):
            length += min((self.of(part) for part in _list(schema, keyword)), default=0)
        if isinstance(reference := schema.get("$ref"), str):
            length += self.of(target(self._root, reference))
        return length


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


NOTHING = "no text satisfies it"
_REASONS = {
    "NoExtension": NOTHING,
    "NoExtensionBias": NOTHING,
    "LexerTooComplex": "it is too complex",
    "ParserTooComplex": "it is too complex",
    "InternalError": "llguidance fails on it",
}
"""Reasons to stop, which llguidance reports by their names where it has no message."""


def in_words(error: str) -> str:
    """A message of llguidance without the parser state after it, on one line."""
    if "ff_tokens)" in error:  # of the text that is the only one possible
        return "it asks for a text without end"
    line = " ".join(error.partition("<state>")[0].split())
    return _REASONS.get(line, line[:300])
