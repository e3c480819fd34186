"""Values as literals that are not JSON: their syntax, and the rules of a grammar for them. literals.py reads
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specllama.calls.lark import Lark
from specllama.calls.schema_check import json_text
from specllama.calls.schema_types import MAX_DEPTH, Types, parameters

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


@dataclass(frozen=True, slots=True)
class Syntax:
    """equals: between the key and the value of an argument. comma, colon: in lists and objects. words: for
    true, false and null. quote: around strings without escapes; "" for Python's strings. sorts: whether keys
    are in alphabetical order, otherwise in the schema's.
    """

    equals: str
    comma: str
    colon: str
    words: tuple[str, str, str]
    quote: str = ""
    sorts: bool = False


PYTHON = Syntax("=", ", ", ": ", ("True", "False", "None"))


def write(value: Any, syntax: Syntax) -> str:
    """A value as a literal."""
    if isinstance(value, str):
        return (
            f"{syntax.quote}{value}{syntax.quote}" if syntax.quote else json.dumps(value, ensure_ascii=False)
        )
    if value is None or isinstance(value, bool):
        return syntax.words[2 if value is None else int(not value)]
    if isinstance(value, Mapping):
        return "{" + pairs_text(value, syntax, syntax.colon, quoted=not syntax.quote) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + syntax.comma.join(write(v, syntax) for v in value) + "]"
    return json.dumps(value)


def pairs_text(values: Mapping[str, Any], syntax: Syntax, equals: str, quoted: bool) -> str:
    """Keys and values, separated by commas."""
    keys = sorted(values, key=str.lower) if syntax.sorts else list(values)
    shown = {key: json.dumps(key, ensure_ascii=False) if quoted else key for key in keys}
    return syntax.comma.join(f"{shown[key]}{equals}{write(values[key], syntax)}" for key in keys)


class LiteralRules:
    """The rules of values. root: the schema in which references are looked up."""

    def __init__(self, lark: Lark, syntax: Syntax, root: Mapping[str, Any]) -> None:
        self._lark, self._syntax, self._types = lark, syntax, Types(root)
        self._root = json.dumps(root)

    def pairs(self, schema: Mapping[str, Any], equals: str, quoted: bool) -> str:
        """Keys and values of an object, separated by commas, as items."""
        known, comma = parameters(schema), self._lark.text(self._syntax.comma)
        names = sorted(known.schemas, key=str.lower) if self._syntax.sorts else list(known.schemas)
        if known.more:
            key = self._lark.terminal(r'/"[^"\\\n]{0,64}"/' if quoted else r'/[^\s"=:{}\[\](),<>]{1,64}/')
            pair = self._lark.rule(f"{key} {self._lark.text(equals)} {self.value({}, 0)}")
            return f"({pair} ({comma} {pair})*)?"
        rest = first = ""
        for name in reversed(names):
            key = json.dumps(name, ensure_ascii=False) if quoted else name
            pair = self._lark.rule(f"{self._lark.text(key + equals)} {self.value(known.schemas[name], 0)}")
            required = name in known.required
            begins = f"{pair} {rest}".strip()
            if first and not required:
                begins += f" | {first}"
            elif not required:
                begins = f"({begins})?"
            first = self._lark.rule(begins)
            rest = self._lark.rule(f"{comma} {pair} {rest}" if required else f"({comma} {pair})? {rest}")
        return first

    def value(self, schema: Any, depth: int) -> str:
        """A value, as one item."""
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if isinstance(ref, str):
            name, new = self._lark.recursive(f"{self._root} {ref}")
            if new:
                self._lark.define(name, self._body(self._types.resolved(schema), depth + 1))
            return name
        return self._lark.rule(self._body(schema if isinstance(schema, Mapping) else {}, depth + 1))

    def _body(self, schema: Mapping[str, Any], depth: int) -> str:
        if isinstance(values := schema.get("enum"), list) and values:
            return " | ".join(self._lark.text(write(v, self._syntax)) for v in values)
        if "const" in schema:
            return self._lark.text(write(schema["const"], self._syntax))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(keyword), list) and options:
                return " | ".join(self.value(option, depth) for option in options)
        kinds = self._types.of(schema)
        if kinds is None or depth > MAX_DEPTH:
            return self._any()
        return " | ".join(self._one(kind, schema, depth) for kind in sorted(kinds)) or self._any()

    def _one(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        lark, comma = self._lark, self._lark.text(self._syntax.comma)
        if kind == "string":
            return self._string()
        if kind in ("integer", "number"):
            bounds = {k: schema[k] for k in _BOUNDS if k in schema}
            return lark.rule(json_text({"type": kind, **bounds}))
        if kind == "boolean":
            return '"true" | "false" | "True" | "False"'
        if kind == "null":
            return '"null" | "None"'
        if kind == "array":
            item = self.value(schema.get("items", {}), depth)
            some = f"{item} ({comma} {item})*"
            return f'"[" {some if schema.get("minItems") else f"({some})?"} "]"'
        if kind == "object":
            inside = self.pairs(schema, self._syntax.colon, quoted=not self._syntax.quote)
            return f'"{{" {inside} "}}"'
        return self._any()

    def _string(self) -> str:
        if quote := self._syntax.quote:
            return f"{self._lark.text(quote)} {self._lark.until(quote)}"
        inside = r"\\[^uUxN]|\\u[0-9a-fA-F]{4}"
        return self._lark.terminal(rf"""/"([^"\\]|{inside})*"|'([^'\\]|{inside})*'/""")

    def _any(self) -> str:
        name, new = self._lark.recursive("any value")
        if new:
            kinds = ("string", "number", "boolean", "null", "array", "object")
            self._lark.define(name, " | ".join(self._one(kind, {"items": {}}, 0) for kind in kinds))
        return name
