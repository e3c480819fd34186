"""The schemas of tools' arguments, as far as grammars can use them. Knows no call format.

A schema that cannot be used, or that makes the grammar too large, is replaced by that of any object, unless
its tool is strict.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.calls.tools import Tool, Tools
from specllama.errors import Note, UsageError, warning

MAX_BYTES, MAX_DEPTH, MAX_PARTS = 64 * 1024, 32, 1_500  # of one schema
MAX_ALL_BYTES, MAX_ALL_PARTS = 40 * 1024, 2_500  # of the schemas of a request together
ANY_OBJECT: dict[str, Any] = {"type": "object"}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
JSON_STYLE: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""The style of JSON that models were trained to write; whitespace is fixed, so it cannot go on for ever."""
# Keywords that say nothing about what is allowed, and those whose values hold schemas.
_NO_CONSTRAINT = frozenset(
    (
        "description", "title", "default", "examples", "$schema", "$comment", "deprecated", "readOnly",
        "writeOnly",
    )
)  # fmt: skip
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_DATA = frozenset(("enum", "const", "required", "dependentRequired"))


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
    found, n_bytes, n_parts = list[Arguments](), 0, 0
    for tool in tools.allowed:
        one = _arguments(tool)
        if one.schema is not ANY_OBJECT:
            text = json.dumps(one.schema)
            _, parts = shape(one.schema)
            if n_bytes + len(text) > MAX_ALL_BYTES or n_parts + parts > MAX_ALL_PARTS:
                one = _without_schema(tool, "the schemas of all tools together are too large")
            else:
                n_bytes, n_parts = n_bytes + len(text), n_parts + parts
        found.append(one)
    return found


def notes(tools: Tools) -> list[Note]:
    """What of the tools' schemas is not enforced. Raises UsageError as `arguments` does."""
    return [
        warning(f"the arguments of the tool {one.tool.name} are not held to its whole schema: {one.problem}")
        for one in arguments(tools)
        if one.problem
    ]


def json_text(schema: Mapping[str, Any], lenient: bool = True) -> str:
    """A schema as an item of a grammar. lenient: keywords that are not supported are left out; otherwise the
    grammar does not compile.
    """
    return "%json " + json.dumps({**schema, "x-guidance": JSON_STYLE | {"lenient": lenient}})


def answer_text(schema: str | Mapping[str, Any] | bool) -> str:
    """The schema of an answer without calls (JSON text or an object) as an item of a grammar, with the limits
    of `text.grammar`. Raises UsageError.
    """
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {error}") from None
    if found is True:
        found = {}
    if not isinstance(found, Mapping):
        raise UsageError("the JSON schema must be an object", 'as {"type": "object", "properties": {…}}')
    deepest, n_parts = shape(found)
    if deepest > MAX_DEPTH or n_parts > MAX_PARTS:
        raise UsageError(f"the JSON schema has more than {MAX_DEPTH} levels or {MAX_PARTS} objects and lists")
    return json_text(found, lenient=False)


def _arguments(tool: Tool) -> Arguments:
    if not tool.parameters:
        return Arguments(tool, NO_ARGUMENTS)
    deepest, n_parts = shape(tool.parameters)
    if deepest > MAX_DEPTH:
        return _without_schema(tool, f"it is nested deeper than {MAX_DEPTH} levels")
    if n_parts > MAX_PARTS:
        return _without_schema(tool, f"it has more than {MAX_PARTS} objects and lists")
    schema = constraints(tool.parameters)
    if tool.strict and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    text = json.dumps(schema)
    if len(text) > MAX_BYTES:
        return _without_schema(tool, f"it has more than {MAX_BYTES} bytes")
    problem, usable = _checked(text)
    if problem and (tool.strict or not usable):
        return _without_schema(tool, problem)
    return Arguments(tool, schema, problem)


def _without_schema(tool: Tool, problem: str) -> Arguments:
    if tool.strict:
        message = f"the schema of the tool {tool.name!r} cannot be used: {problem}"
        raise UsageError(message, details={"param": "tools"})
    return Arguments(tool, ANY_OBJECT, problem)


@functools.lru_cache(maxsize=512)
def _checked(text: str) -> tuple[str, bool]:
    """(What llguidance does not support in a schema, "" if it supports it all; whether the rest can be
    used).
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_grammar_size=10_000)
    grammar = LLMatcher.grammar_from_lark("start: " + json_text(json.loads(text)))
    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust: no Exception, and without another name
            raise
        return "llguidance fails on it", False
    problem = " ".join("; ".join(messages).partition("\n")[0].split())
    return problem.rpartition("failed to compile JSON schema: ")[2][:300], not failed


def shape(value: Any) -> tuple[int, int]:
    """(levels of nesting, objects and lists), computed without recursion: the value may be nested deeply."""
    deepest, n, todo = 0, 0, [(value, 1)]
    while todo:
        item, level = todo.pop()
        deepest, n = max(deepest, level), n + 1
        children = item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ()
        todo += [(child, level + 1) for child in children if isinstance(child, (Mapping, list))]
    return deepest, n


def constraints(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a schema without what constrains nothing, such as descriptions."""
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _NO_CONSTRAINT:
            continue
        if keyword in _NAMED and isinstance(value, Mapping):
            found[keyword] = {k: constraints(v) if isinstance(v, Mapping) else v for k, v in value.items()}
        elif keyword in _DATA:
            found[keyword] = value
        elif isinstance(value, Mapping):
            found[keyword] = constraints(value)
        elif isinstance(value, list):
            found[keyword] = [constraints(v) if isinstance(v, Mapping) else v for v in value]
        else:
            found[keyword] = value
    return found


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
                found = [self.of(option, depth + 1) for option in options]
                return None if None in found else frozenset[str]().union(*[f for f in found if f])
        if isinstance(schema.get("properties"), Mapping):
            return frozenset(("object",))
        return None

    def _at(self, ref: str) -> Any:
        if not ref.startswith("#"):
            return {}
        found: Any = self._root
        for name in ref[1:].split("/")[1:]:
            if not isinstance(found, Mapping):
                return {}
            found = found.get(name.replace("~1", "/").replace("~0", "~"))
        return found


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
    unknown: dict[str, Any] = {name: {} for name in sorted(names - set(properties))}
    return Parameters({**properties, **unknown}, names, more)


def embedded(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema as one of its own, with the definitions it may refer to."""
    found = dict(schema) if isinstance(schema, Mapping) else {}
    if "$ref" in json.dumps(found):
        found |= {k: root[k] for k in ("$defs", "definitions") if k in root}
    return found


def of_type(types: frozenset[str] | None, *names: str) -> bool:
    """Whether values may have one of these types."""
    return types is None or bool(types & set(names))


def bodies(arguments: Sequence[Arguments]) -> list[tuple[Mapping[str, Any], list[str]]]:
    """(schema, names of the tools with it), so that tools with the same share their rules."""
    found: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for one in arguments:
        found.setdefault(json.dumps(one.schema), (one.schema, []))[1].append(one.tool.name)
    return list(found.values())
