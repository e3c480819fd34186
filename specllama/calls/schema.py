"""The schemas of tools' arguments, as far as grammars can use them. Knows no call format.

A schema that cannot be used, or that makes the grammar too large, is replaced by that of any object, unless
its tool is strict.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specllama.calls.schema_types import MAX_DEPTH
from specllama.calls.tools import Tool, Tools
from specllama.errors import Note, UsageError, warning
from specllama.text.json_shape import json_shape
from specllama.text.schema_length import MAX_LENGTH, forces_too_much

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

MAX_BYTES, MAX_PARTS = 64 * 1024, 1_500  # of one schema
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
_BOUNDS = frozenset(("minimum", "maximum"))
_MAX_PLAIN = 2**53
_TYPES = frozenset(("string", "integer", "number", "boolean", "array", "object", "null"))
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
    found, sizes = list[Arguments](), dict[str, int]()  # of schemas by their texts
    for tool in tools.allowed:
        if not tool.parameters:
            found.append(Arguments(tool, NO_ARGUMENTS))
            continue
        schema, text, n_parts, problem = _bounded(tool)
        if not text:
            found.append(_without_schema(tool, problem))
        elif text not in sizes and (
            sum(map(len, sizes)) + len(text) > MAX_ALL_BYTES or sum(sizes.values()) + n_parts > MAX_ALL_PARTS
        ):
            found.append(_without_schema(tool, "the schemas of all tools together are too large"))
        else:
            sizes[text] = n_parts
            found.append(_usable(tool, schema, text))
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
    deepest, n_parts = json_shape(found)
    if deepest > MAX_DEPTH or n_parts > MAX_PARTS:
        raise UsageError(f"the JSON schema has more than {MAX_DEPTH} levels or {MAX_PARTS} objects and lists")
    if forces_too_much(found):
        raise UsageError(f"the JSON schema asks for a text of more than {MAX_LENGTH} characters")
    return json_text(found, lenient=False)


def _bounded(tool: Tool) -> tuple[dict[str, Any], str, int, str]:
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


def _usable(tool: Tool, schema: dict[str, Any], text: str) -> Arguments:
    problem, usable = ("", True) if _is_plain(schema) else _checked(text)
    if problem and (tool.strict or not usable):
        return _without_schema(tool, problem)
    return Arguments(tool, schema, problem)


def _without_schema(tool: Tool, problem: str) -> Arguments:
    if tool.strict:
        message = f"the schema of the tool {tool.name!r} cannot be used: {problem}"
        raise UsageError(message, details={"param": "tools"})
    return Arguments(tool, ANY_OBJECT, problem)


def _is_plain(schema: Any) -> bool:
    """Whether a schema has nothing but what llguidance is known to support; it takes a millisecond to ask."""
    if not isinstance(schema, Mapping):
        return False
    for keyword, value in schema.items():
        if keyword == "type":
            kinds = value if isinstance(value, list) else [value]
            known = bool(kinds) and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)
        elif keyword in _BOUNDS:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            known = number and abs(value) <= _MAX_PLAIN
        elif keyword == "properties":
            known = isinstance(value, Mapping) and all(map(_is_plain, value.values()))
        elif keyword in ("items", "additionalProperties"):
            known = isinstance(value, bool) if keyword == "additionalProperties" else _is_plain(value)
        elif keyword == "enum":
            known = isinstance(value, list) and bool(value) and all(map(_is_text, value))
        else:
            known = keyword == "required" and isinstance(value, list) and all(map(_is_text, value))
        if not known:
            return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


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
    if not failed and (endless := _fails_at_start(grammar, limits)):
        return endless, False
    return problem.rpartition("failed to compile JSON schema: ")[2][:300], not failed


def _fails_at_start(grammar: str, limits: LLParserLimits) -> str:
    """Why a grammar that compiles fails with its first forced tokens, "" if it does not. A required property
    with the schema that it is in is forced without end.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=limits)
    matcher.consume_tokens(matcher.compute_ff_tokens())
    if not matcher.is_error():
        return ""
    error = " ".join(matcher.get_error().partition("<state>")[0].split())
    return "no value is short enough for it" if "Too many items" in error else error[:300]


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    """With a token for each byte: what is forced does not depend on the model."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


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


def bodies(arguments: Sequence[Arguments]) -> list[tuple[Mapping[str, Any], list[str]]]:
    """(schema, names of the tools with it), so that tools with the same share their rules."""
    found: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for one in arguments:
        found.setdefault(json.dumps(one.schema), (one.schema, []))[1].append(one.tool.name)
    return list(found.values())
