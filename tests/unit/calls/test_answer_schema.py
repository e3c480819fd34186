"""What grammars use of the schema of an answer, and what of it is said not to be enforced."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from specllama.calls.schema import answer_schema, json_text, reduced
from tests.support.tool_calls import ByteVocabulary, Grammar

VOCABULARY = ByteVocabulary()
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
LOOKING = "^(?=.*[0-9]).+$"


def used(schema: Any, strict: bool = False, is_open: bool = False) -> tuple[Grammar, str]:
    text, problem = answer_schema(json.dumps(schema), strict, is_open)
    return Grammar("start: " + json_text(json.loads(text), lenient=not strict), VOCABULARY), problem


@pytest.mark.parametrize(
    ("schema", "named", "text"),
    [
        ({"type": "object", "propertyNames": {"type": "string"}}, "propertyNames", '{"a": 1}'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems", "[1, 1]"),
        ({"type": "string", "format": "password"}, "password", '"x"'),
        ({"type": "string", "pattern": LOOKING, "maxLength": 3}, LOOKING, '"a1"'),
        ({"properties": {"a": {"type": "string", "pattern": "(a)\\1"}}}, "(a)", '{"a": "x"}'),
        ({"type": "object", "patternProperties": {"(?=x)": {"type": "string"}}}, "(?=x)", '{"x": 1}'),
        ({"if": {"type": "string"}, "then": {"maxLength": 1}, "type": "string"}, "if", '"xx"'),
    ],
)
def test_what_cannot_be_enforced_is_left_out_and_named(schema, named: str, text: str) -> None:
    grammar, problem = used(schema)
    assert named in problem
    assert grammar.accepts(text)
    strict, none = answer_schema(json.dumps(schema), True, False)
    assert none == ""
    source = "start: " + json_text(json.loads(strict), lenient=False)
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(source))


def test_the_rest_of_such_a_schema_holds() -> None:
    schema = {**PERSON, "propertyNames": {"type": "string"}, "required": ["name"]}
    schema["properties"] = {
        **PERSON["properties"],
        "name": {"type": "string", "pattern": LOOKING, "maxLength": 2},
    }
    grammar, problem = used(schema)
    assert problem.count(";") == 1
    assert grammar.accepts('{"name": "ab", "age": 5}')
    for text in ('{"name": "abc"}', '{"age": 5}', '{"name": "a", "x": 1}', '{"name": "a", "age": "b"}'):
        assert not grammar.accepts(text), text


def test_objects_are_closed_unless_the_schema_or_the_server_opens_them() -> None:
    text = '{"name": "a", "more": 1}'
    assert not used(PERSON)[0].accepts(text)
    assert not used(PERSON, strict=True)[0].accepts(text)
    assert used(PERSON, is_open=True)[0].accepts(text)
    assert used({**PERSON, "additionalProperties": True})[0].accepts(text)
    assert used(PERSON)[1] == ""


@pytest.mark.parametrize("text", ["nonsense", "[1]", "true", "5", json.dumps({"a": [[]] * 2000})])
def test_what_is_no_usable_schema_stays_for_the_grammar_to_refuse(text: str) -> None:
    assert answer_schema(text, False, False) == (text, "")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"type": "nonsense"},
        {"$ref": "#/$defs/x"},
        {**PERSON, "required": ["x"], "additionalProperties": False},
    ],
)
def test_schemas_that_contradict_themselves_stay_wrong(schema) -> None:
    text, _ = answer_schema(json.dumps(schema), False, False)
    source = LLMatcher.grammar_from_lark("start: " + json_text(json.loads(text)))
    assert LLMatcher.validate_grammar(source)


def test_values_that_look_like_keywords_stay() -> None:
    schema = {"enum": [{"pattern": "(?=x)"}], "default": {"format": "x"}}
    assert reduced(schema) == (schema, [])
