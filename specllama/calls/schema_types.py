"""What values a schema allows: their types, and the parameters of a tool one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specllama.calls.tools import Schema

MAX_DEPTH = 32  # levels of a schema


class Types:
    """Which types the values of a schema have. root: the schema in which references are looked up."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def resolved(self, schema: Any) -> Mapping[str, Any]:
        """A schema with its reference followed; {} for one that cannot be followed."""
        for _ in range(8):
            if not isinstance(schema, Mapping):
                return {}
            ref = schema.get("$ref")
            if not isinstance(ref, str):
                return schema
            schema = self._at(ref)
        return {}

    def of(self, schema: Any, depth: int = 0) -> frozenset[str] | None:
        """Names of types; "number" includes integers. None: not known."""
        schema = self.resolved(schema)
        if depth > MAX_DEPTH:
            return None
        kind = schema.get("type")
        if isinstance(kind, str):
            return frozenset((kind,))
        if isinstance(kind, list):
            return frozenset(map(str, kind))
        if isinstance(values := schema.get("enum"), list) and values:
            return frozenset(map(type_name, values))
        if "const" in schema:
            return frozenset((type_name(schema["const"]),))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(keyword), list) and options:
                types = [self.of(option, depth + 1) for option in options]
                return None if None in types else frozenset[str]().union(*[f for f in types if f])
        if isinstance(schema.get("properties"), Mapping):
            return frozenset(("object",))
        return None

    def _at(self, ref: str) -> Any:
        if not ref.startswith("#"):
            return {}
        node: Any = self._root
        for name in ref[1:].split("/")[1:]:
            if not isinstance(node, Mapping):
                return {}
            node = node.get(name.replace("~1", "/").replace("~0", "~"))
        return node


def type_name(value: Any) -> str:
    """The name of a value's type in schemas."""
    if value is None:
        return "null"
    names = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "string")


@dataclass(frozen=True, slots=True)
class Parameters:
    """A tool's arguments one by one. required: names. more: whether there may be others too."""

    schemas: Mapping[str, Any]
    required: frozenset[str]
    more: bool


def parameters(schema: Mapping[str, Any]) -> Parameters:
    """The parameters of an object's schema; any for one that is not made of properties."""
    schema = Types(schema).resolved(schema)
    properties = schema.get("properties")
    required = schema.get("required")
    names = frozenset(map(str, required)) if isinstance(required, list) else frozenset[str]()
    if not isinstance(properties, Mapping):
        open_ended = schema.get("additionalProperties") is not False
        return Parameters({name: {} for name in sorted(names)}, names, open_ended)
    more = not properties and schema.get("additionalProperties") is not False
    unknown: dict[str, Schema] = {name: {} for name in sorted(names - set(properties))}
    return Parameters({**properties, **unknown}, names, more)


def embedded(schema: Any, root: Mapping[str, Any]) -> Schema:
    """A part of a schema as one of its own, with the definitions it may refer to."""
    node = dict(schema) if isinstance(schema, Mapping) else {}
    if "$ref" in json.dumps(node):
        node |= {k: root[k] for k in ("$defs", "definitions") if k in root}
    return node


def of_type(types: frozenset[str] | None, *names: str) -> bool:
    """Whether values may have one of these types."""
    return types is None or bool(types & set(names))
