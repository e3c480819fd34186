"""The schemas of tools' arguments, as far as grammars can use them.

A schema that cannot be used, or that makes the grammar too large, is replaced by that of any object,
unless its tool is strict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.calls.schema_check import checked, constraints, is_plain, reduced
from specllama.calls.tools import Schema, Tool, Tools
from specllama.errors import Note, UsageError, warning
from specllama.text.json_shape import json_shape
from specllama.text.schema_length import MAX_LENGTH, forces_too_much

# What values a schema allows: their types, and the parameters of a tool one by one.


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


MAX_BYTES, MAX_PARTS = 64 * 1024, 1_500  # of one schema
MAX_ALL_BYTES, MAX_ALL_PARTS = 40 * 1024, 2_500  # of the schemas of a request together
ANY_OBJECT: Schema = {"type": "object"}
NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a grammar uses for a tool's arguments. problem: why that is any object and not the tool's own
    schema, or what is left out of it; "" if nothing is.
    """

    tool: Tool
    schema: Mapping[str, Any]
    problem: str = ""


def arguments(tools: Tools) -> list[Arguments]:
    """The arguments of the tools that may be called, in order. Raises UsageError for a schema of a strict
    tool that cannot be used.
    """
    bounded, sizes = list[Arguments](), dict[str, int]()  # of schemas by their texts
    for tool in tools.allowed:
        if not tool.parameters:
            bounded.append(Arguments(tool, NO_ARGUMENTS))
            continue
        schema, text, n_parts, problem = _bounded(tool)
        if not text:
            bounded.append(_without_schema(tool, problem))
        elif text not in sizes and (
            sum(map(len, sizes)) + len(text) > MAX_ALL_BYTES or sum(sizes.values()) + n_parts > MAX_ALL_PARTS
        ):
            bounded.append(_without_schema(tool, "the schemas of all tools together are too large"))
        else:
            sizes[text] = n_parts
            bounded.append(_usable(tool, schema, text))
    return bounded


def notes(tools: Tools) -> list[Note]:
    """What of the tools' schemas is not enforced. Raises UsageError as `arguments` does."""
    return [
        warning(f"the arguments of the tool {one.tool.name} are not held to its whole schema: {one.problem}")
        for one in arguments(tools)
        if one.problem
    ]


def _bounded(tool: Tool) -> tuple[Schema, str, int, str]:
    """(A tool's schema; as text; its objects and lists; "") or, where it is too large, nothing and why."""
    deepest, n_parts = json_shape(tool.parameters)
    if deepest > MAX_DEPTH:
        return {}, "", 0, f"it is nested deeper than {MAX_DEPTH} levels"
    if n_parts > MAX_PARTS:
        return {}, "", 0, f"it has more than {MAX_PARTS} objects and lists"
    schema = constraints(tool.parameters)
    if tool.strict and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    text = json.dumps(schema)
    if len(text) > MAX_BYTES:
        return {}, "", 0, f"it has more than {MAX_BYTES} bytes"
    if forces_too_much(schema):
        return {}, "", 0, f"it asks for a text of more than {MAX_LENGTH} characters"
    return schema, text, json_shape(schema)[1], ""


def _usable(tool: Tool, schema: Schema, text: str) -> Arguments:
    problem, usable = ("", True) if is_plain(schema) else checked(text)
    if not usable and not tool.strict:
        smaller, problems = reduced(schema)
        rest, usable = checked(json.dumps(smaller))
        if usable:
            return Arguments(tool, smaller, "; ".join(filter(None, (*problems, rest))))
    if problem and (tool.strict or not usable):
        return _without_schema(tool, problem)
    return Arguments(tool, schema, problem)


def _without_schema(tool: Tool, problem: str) -> Arguments:
    if tool.strict:
        message = f"the schema of the tool {tool.name!r} cannot be used: {problem}"
        raise UsageError(message, details={"param": "tools"})
    return Arguments(tool, ANY_OBJECT, problem)


def bodies(arguments: Sequence[Arguments]) -> list[tuple[Mapping[str, Any], list[str]]]:
    """(schema, names of the tools with it), so that tools with the same share their rules."""
    by_text: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for one in arguments:
        by_text.setdefault(json.dumps(one.schema), (one.schema, []))[1].append(one.tool.name)
    return list(by_text.values())


# Whether what is given as a JSON schema has the form of one.
#
# What a schema says may be unsupported, or impossible; here is looked for what no validator could read.


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
