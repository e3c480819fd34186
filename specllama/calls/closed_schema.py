"""Schemas as people write them: objects whose properties are named have no others, unless the schema says so.

JSON Schema leaves such objects open, and a model then invents properties. llama.cpp's grammars close them.
What combines schemas is merged or left open where closing a part would contradict another. Knows no grammar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from specllama.calls.tools import Schema, Tools
from specllama.text.json_schema import Path, is_text, parts, target, with_parts

_LISTED = ("anyOf", "oneOf", "allOf")  # schemas for the same value
_SAME_VALUE = frozenset((*_LISTED, "if", "then", "else", "not", "dependentSchemas"))
_SAYS_ITSELF = ("additionalProperties", "unevaluatedProperties")
_MERGED = frozenset(("allOf", "type", "properties", "required"))
_WORDS = frozenset(
    ("title", "description", "$comment", "default", "examples", "deprecated", "$defs", "definitions")
)
_MAX_DEPTH = 64


def closed(schema: Any) -> Any:
    """A copy of a schema in which objects with `properties`, and nothing about others, allow no others."""
    return _Closer(schema).closed(schema) if isinstance(schema, Mapping) else schema


def with_closed_schemas(tools: Tools) -> Tools:
    """Tools whose arguments are closed."""
    return replace(tools, tools=[replace(t, parameters=closed(t.parameters)) for t in tools.tools])


class _Closer:
    """Closes one schema. root: where references lead."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[int, bool] = {}  # by id of a schema: see `_names_some`
        self._open = set(self._shared(root))  # pointers

    def closed(self, schema: Any, stays_open: bool = False, at: str = "#", depth: int = 0) -> Any:
        """A copy. stays_open: whether another schema names its properties. at: pointer to it, "" for none."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return schema
        if not stays_open and (merged := self._merged(schema)) is not None:
            schema = merged
        stays_open = stays_open or at in self._open
        elsewhere = {
            keyword: stays_open or self._is_named_elsewhere(schema, keyword)
            for keyword in _LISTED
            if isinstance(schema.get(keyword), list)
        }

        def change(path: Path, part: Any) -> Any:
            keyword, pointer = path[0], ""
            if keyword in _SAME_VALUE and keyword not in elsewhere:
                return part
            if at and keyword not in elsewhere:
                names = (str(name).replace("~", "~0").replace("/", "~1") for name in path)
                pointer = "/".join([at, *names])
            return self.closed(part, elsewhere.get(str(keyword), False), pointer, depth + 1)

        node = with_parts(schema, change)
        says_itself = any(schema.get(keyword) is not None for keyword in _SAYS_ITSELF)
        if _names_own(schema) and not stays_open and not says_itself and not self._has_parts(schema):
            required, known = node.get("required"), node["properties"]
            names = filter(is_text, required if isinstance(required, list) else ())
            missing: Schema = {name: {} for name in names if name not in known}  # required and not described
            node |= {"properties": {**known, **missing}, "additionalProperties": False}
        return node

    def _has_parts(self, schema: Mapping[str, Any]) -> bool:
        """Whether schemas for the same value, besides this one itself, name properties."""
        return any(map(self._names_some, [*_parts(schema), target(self._root, schema.get("$ref"))]))

    def _is_named_elsewhere(self, schema: Mapping[str, Any], keyword: str) -> bool:
        """Whether properties of a schema's value are named outside of one of the schemas under a keyword."""
        several = keyword == "allOf" and sum(map(self._names_some, schema[keyword])) > 1
        rest = {name: value for name, value in schema.items() if name != keyword}
        return several or _names_own(schema) or self._has_parts(rest)

    def _names_some(self, schema: Any) -> bool:
        """Whether a schema, or one that it consists of, names properties of its value."""
        if not isinstance(schema, Mapping):
            return False
        if id(schema) not in self._names:
            self._names[id(schema)] = False  # while it is found out: references may lead back
            self._names[id(schema)] = _names_own(schema) or self._has_parts(schema)
        return self._names[id(schema)]

    def _shared(self, schema: Any, depth: int = 0) -> Iterator[str]:
        """Pointers to definitions that must stay open: other schemas name properties of the same values."""
        if depth > _MAX_DEPTH or not isinstance(schema, (list, Mapping)):
            return
        if isinstance(schema, Mapping):
            if isinstance(ref := schema.get("$ref"), str) and _names_own(schema):
                yield ref
            for keyword in _LISTED:
                if not isinstance(inner := schema.get(keyword), list):
                    continue
                if self._is_named_elsewhere(schema, keyword) and self._merged(schema) is None:
                    yield from self._references(inner)
        for value in schema.values() if isinstance(schema, Mapping) else schema:
            yield from self._shared(value, depth + 1)

    def _references(self, schemas: Sequence[Any]) -> Iterator[str]:
        """The references of which schemas for a value consist."""
        todo, seen = list(schemas), set[int]()
        while todo:
            schema = todo.pop()
            if isinstance(schema, Mapping) and id(schema) not in seen:
                seen.add(id(schema))
                if isinstance(ref := schema.get("$ref"), str):
                    yield ref
                todo += [*_parts(schema), target(self._root, schema.get("$ref"))]

    def _merged(self, schema: Mapping[str, Any], depth: int = 0) -> Schema | None:
        """An object that is described by `allOf` alone as one schema; None for others."""
        named = target(self._root, schema.get("$ref"))
        if isinstance(named, Mapping) and set(schema) <= {"$ref"} | _WORDS and depth:
            return self._merged(named, depth + 1) if depth < 8 else None
        if not set(schema) <= _MERGED | _WORDS or schema.get("type", "object") != "object":
            return None
        if "allOf" not in schema:
            return dict(schema) if _names_own(schema) and depth else None
        inner = schema["allOf"] if isinstance(schema["allOf"], list) and depth < 8 else []
        parts = [self._merged(one, depth + 1) if isinstance(one, Mapping) else None for one in inner]
        own = {name: value for name, value in schema.items() if name != "allOf"}
        return _joined([part for part in parts if part is not None], own) if all(parts) and parts else None


def _names_own(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("properties"), Mapping)


def _joined(parts: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> Schema | None:
    """One object with the properties of all; None where they contradict each other."""
    properties: dict[str, Schema] = {}
    required: list[Any] = []
    for part in (*parts, own):
        for name, schema in (part.get("properties") or {}).items():
            if properties.setdefault(name, schema) != schema:
                return None
        required += [name for name in part.get("required") or () if name not in required]
    joined = {**own, "type": "object", "properties": properties}
    return joined | ({"required": required} if required else {})


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas that apply to the same value, without references."""
    return [part for path, part in parts(schema) if path[0] in _SAME_VALUE]
