"""The schemas of tools' arguments, as far as grammars can use them. Knows no call format.

A schema that cannot be used, or that makes the grammar too large, is replaced by that of any object, unless
its tool is strict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.calls.schema_check import checked, constraints, is_plain, reduced
from specllama.calls.schema_types import MAX_DEPTH
from specllama.calls.tools import Schema, Tool, Tools
from specllama.errors import Note, UsageError, warning
from specllama.text.json_shape import json_shape
from specllama.text.schema_length import MAX_LENGTH, forces_too_much

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
