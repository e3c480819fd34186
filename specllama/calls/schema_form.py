"""Whether what is given as a JSON schema has the form of one. Knows no tools.

What a schema says may be unsupported, or impossible; here is looked for what no validator could read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specllama.calls.tools import Schema

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_ONE = ("additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")  # a schema
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")  # a list of schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # schemas by name
_NULL_IS_DATA = ("const", "default")
_LONGEST, _DEEPEST = 200, 64  # characters of a path; levels


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
        todo += _inner(one, at)
    return None


def without_nulls(schema: Any, depth: int = 0) -> Any:
    """A copy of a schema without keywords that are null, at every level: serialisers write them for what is
    not set. Values that are data, such as those of `default` and `const`, stay.
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return schema
    kept: Schema = {}
    for keyword, value in schema.items():
        if value is None and keyword not in _NULL_IS_DATA:
            continue
        if keyword in _NAMED and isinstance(value, Mapping):
            value = {name: without_nulls(one, depth + 1) for name, one in value.items()}
        elif keyword in (*_LISTED, "items") and isinstance(value, list):
            value = [without_nulls(one, depth + 1) for one in value]
        elif keyword in (*_ONE, "items"):
            value = without_nulls(value, depth + 1)
        kept[keyword] = value
    return kept


def _inner(schema: Mapping[str, Any], at: str) -> Iterator[tuple[Any, str]]:
    """The schemas in a schema, with their paths."""
    for keyword in _ONE:
        if schema.get(keyword) is not None:
            yield schema[keyword], f"{at}.{keyword}"
    for keyword in _NAMED:
        for name, value in (schema.get(keyword) or {}).items():
            yield value, f"{at}.{keyword}.{str(name)[:40]}"
    items = schema.get("items")
    for keyword in _LISTED:
        for i, value in enumerate(schema.get(keyword) or ()):
            yield value, f"{at}.{keyword}[{i}]"
    for i, value in enumerate(items if isinstance(items, list) else [items] * (items is not None)):
        yield value, f"{at}.items" + (f"[{i}]" if isinstance(items, list) else "")


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and value in _TYPES


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


_FORMS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "type": (
        f"one of {', '.join(_TYPES)}, or a list of them",
        lambda value: _is_type(value) or (isinstance(value, list) and all(map(_is_type, value))),
    ),
    "required": (
        "a list of names",
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    ),
    "enum": ("a list", _is_list),
    "$ref": ("a text", lambda value: isinstance(value, str)),
    "pattern": ("a text", lambda value: isinstance(value, str)),
    **dict.fromkeys(_NAMED, ("an object", _is_object)),
    **dict.fromkeys(_LISTED, ("a list", _is_list)),
}
