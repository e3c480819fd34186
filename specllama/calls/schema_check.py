"""What llguidance supports of JSON schemas, and a schema as an item of a grammar. Knows no tools."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specllama.calls.tools import Schema
from specllama.text.grammar_errors import NOTHING, in_words

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

JSON_STYLE: dict[str, bool | str] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""The style of JSON that models were trained to write; whitespace is fixed, so it cannot go on for ever."""
STYLE = "x-guidance"  # llguidance's keyword for it in a schema
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


def json_text(schema: Mapping[str, Any], lenient: bool = True) -> str:
    """A schema as an item of a grammar. lenient: keywords that are not supported are left out, where the
    schema itself does not say; otherwise the grammar does not compile.
    """
    own = schema.get(STYLE) if isinstance(schema.get(STYLE), Mapping) else {}
    return "%json " + json.dumps({**schema, STYLE: JSON_STYLE | {"lenient": lenient} | dict(own or {})})


def constraints(schema: Mapping[str, Any]) -> Schema:
    """A copy of a schema without what constrains nothing, such as descriptions."""
    kept: Schema = {}
    for keyword, value in schema.items():
        if keyword in _NO_CONSTRAINT:
            continue
        if keyword in _NAMED and isinstance(value, Mapping):
            kept[keyword] = {k: constraints(v) if isinstance(v, Mapping) else v for k, v in value.items()}
        elif keyword in _DATA:
            kept[keyword] = value
        elif isinstance(value, Mapping):
            kept[keyword] = constraints(value)
        elif isinstance(value, list):
            kept[keyword] = [constraints(v) if isinstance(v, Mapping) else v for v in value]
        else:
            kept[keyword] = value
    return kept


def reduced(schema: Mapping[str, Any]) -> tuple[Schema, list[str]]:
    """(A copy of a schema without patterns and formats that llguidance does not support, what they are)."""
    problems: dict[str, None] = {}

    def usable(keyword: str, value: Any) -> bool:
        if not isinstance(value, str) or not checked(json.dumps({"type": "string", keyword: value}))[0]:
            return True
        problems[f"the {keyword} {value[:60]!r} is not supported"] = None
        return False

    def copy(value: Any) -> Any:
        if isinstance(value, list):
            return [copy(one) for one in value]
        if not isinstance(value, Mapping):
            return value
        result_schema: Schema = {}
        for keyword, inner in value.items():
            if keyword in ("format", "pattern") and not usable(keyword, inner):
                continue
            if keyword in _NAMED and isinstance(inner, Mapping):
                inner = {name: copy(one) for name, one in inner.items()}
            elif keyword not in _DATA and keyword not in _NO_CONSTRAINT:
                inner = copy(inner)
            result_schema[keyword] = inner
        patterns = result_schema.get("patternProperties")
        if isinstance(patterns, Mapping):
            kept = {name: one for name, one in patterns.items() if usable("pattern", name)}
            if len(kept) < len(patterns):  # what only matched these is allowed now
                result_schema |= {"patternProperties": kept, "additionalProperties": True}
        return result_schema

    return copy(schema), list(problems)


def is_plain(schema: Any) -> bool:
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
            known = isinstance(value, Mapping) and all(map(is_plain, value.values()))
        elif keyword in ("items", "additionalProperties"):
            known = isinstance(value, bool) if keyword == "additionalProperties" else is_plain(value)
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
def checked(text: str) -> tuple[str, bool]:
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
    """Why a grammar that compiles fails with its first forced tokens, or after them, "" if it does not. A
    required property with the schema that it is in is forced without end; a $ref to itself allows nothing.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=limits)
    matcher.consume_tokens(matcher.compute_ff_tokens())
    if not matcher.is_error() and not matcher.is_stopped() and not any(matcher.compute_bitmask()):
        return "" if matcher.is_accepting() else NOTHING
    if not matcher.is_error():
        return ""
    error = in_words(matcher.get_error())
    return "no value is short enough for it" if "Too many items" in matcher.get_error() else error


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    """With a token for each byte: what is forced does not depend on the model."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
