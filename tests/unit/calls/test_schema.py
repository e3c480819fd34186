"""Schemas of tools and answers: what is not supported, too large or endless is said or left out in time."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from specllama.calls.format import AnswerShape
from specllama.calls.formats import named
from specllama.calls.schema import (
    ANY_OBJECT,
    Types,
    answer_schema,
    answer_text,
    arguments,
    closed,
    constraints,
    json_text,
    notes,
    parameters,
    reduced,
    with_closed_schemas,
)
from specllama.calls.tools import Tool, Tools
from specllama.errors import UsageError
from tests.support.examples import examples
from tests.support.tool_calls import ByteVocabulary, Grammar, grammar, read

FORMATS = [named(name) for name in ("hermes", "qwen-xml", "gemma4", "pythonic", "gpt-oss", "llama3")]
formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


def tool(schema: dict[str, Any], strict: bool = False) -> Tool:
    return Tool("f", "", {"type": "object", **schema}, strict)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


TREE = {
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "more": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name"],
        }
    },
}
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "a keyword": {"properties": {"a": {"type": "array", "uniqueItems": True}}},
    "a format": {"properties": {"a": {"type": "string", "format": "nonsense"}}},
    "not": {"not": {"required": ["a"]}},
    "a pattern": {"properties": {"a": {"type": "string", "pattern": "(?=x)"}}},
}
UNUSABLE: dict[str, dict[str, Any]] = {
    "a type": {"properties": {"a": {"type": "text"}}},
    "a reference": {"properties": {"a": {"$ref": "http://example.com/x"}}},
    "depth": nested(40),
    "parts": {"properties": {f"p{i}": {"type": "string"} for i in range(1600)}},
    "bytes": {"properties": {"a": {"enum": ["x" * 70_000]}}},
    "no end": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "a bound": {
        "properties": {"a": {"type": "integer", "minimum": 10**300}},
        "required": ["a"],
    },
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_supported_is_left_out(case: str) -> None:
    one = tool(UNSUPPORTED[case])
    (left,) = arguments(Tools([one]))
    assert left.problem
    assert left.schema is not ANY_OBJECT
    (note,) = notes(Tools([one]))
    assert "the tool f " in note.message
    assert note.severity == "warning"


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_used_is_any_object(case: str) -> None:
    (left,) = arguments(Tools([tool(UNUSABLE[case])]))
    assert left.problem
    assert left.schema is ANY_OBJECT
    assert grammar(named("hermes"), Tools([tool(UNUSABLE[case])], "required")).accepts(
        '<tool_call>\n{"name": "f", "arguments": {"b": [1]}}\n</tool_call>'
    )


@pytest.mark.parametrize("case", {**UNSUPPORTED, **UNUSABLE})
@formats
def test_strict_tools_are_refused(form: Any, case: str) -> None:
    with pytest.raises(UsageError, match=r"^the schema of the tool 'f' cannot be used: ."):
        form.grammar(Tools([tool({**UNSUPPORTED, **UNUSABLE}[case], strict=True)]), AnswerShape())


def test_strict_takes_no_other_keys() -> None:
    schema = {"properties": {"a": {"type": "integer"}}}
    other = '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    assert grammar(named("hermes"), Tools([tool(schema)])).accepts(other)
    assert not grammar(named("hermes"), Tools([tool(schema, strict=True)])).accepts(other)


@formats
def test_recursive_schemas(form: Any) -> None:
    value = {"root": {"name": "a", "more": [{"name": "b", "more": [{"name": "c"}]}, {"name": "d"}]}}
    tools = Tools([tool(TREE)], "required")
    written = form.write([("f", value)])
    if form.name == "gemma4":  # keys in the order of the alphabet
        assert written.index("more:") < written.index("name:")
    assert grammar(form, tools).accepts(written)
    assert read(form, tools, written) == ("", [("f", value)])
    wrong = form.write([("f", {"root": {"more": []}})])
    assert not grammar(form, tools).accepts(wrong)


@formats
def test_a_thousand_tools(form: Any) -> None:
    """They compile within the limits of text/grammar.py; beyond those of all schemas any object goes."""
    schema = {"properties": {f"p{i}": {"type": "string", "description": "x" * 200} for i in range(8)}}
    tools = Tools(
        [Tool(f"tool_{i:04}", "", {"type": "object", **schema, "$id": str(i)}) for i in range(1000)]
    )
    problems = {one.problem for one in arguments(tools)}
    assert "the schemas of all tools together are too large" in problems
    began = time.thread_time()
    source = form.grammar(tools, AnswerShape())
    limits = LLParserLimits(max_items_in_row=8_000, max_grammar_size=60_000)
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(source), limits=limits) == ""
    assert time.thread_time() - began < 4
    written = form.write([("tool_0999", {"p1": "x"})])
    assert read(form, tools, written) == ("", [("tool_0999", {"p1": "x"})])


def test_descriptions_are_no_constraints() -> None:
    schema = {
        "description": "x",
        "properties": {
            "description": {"type": "string", "title": "t"},
            "default": {"enum": [{"title": "kept"}]},
        },
        "anyOf": [{"title": "x", "required": ["title"]}],
        "default": {},
    }
    assert constraints(schema) == {
        "properties": {"description": {"type": "string"}, "default": {"enum": [{"title": "kept"}]}},
        "anyOf": [{"required": ["title"]}],
    }


def test_types() -> None:
    types = Types({"$defs": {"a": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}, "a/b": {"const": 1}}})
    for schema, expected in [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"$ref": "#/$defs/a"}, {"string"}),
        ({"$ref": "#/$defs/a~1b"}, {"integer"}),
        ({"enum": ["a", None, 1.5, True]}, {"string", "null", "number", "boolean"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a~1b"}]}, {"string", "integer"}),
        ({"properties": {}}, {"object"}),
    ]:
        assert types.of(schema) == expected
    for unknown in (
        {},
        True,
        {"$ref": "#/$defs/loop"},
        {"$ref": "#/none"},
        {"anyOf": [{}, {"type": "null"}]},
    ):
        assert types.of(unknown) is None


def test_parameters_without_properties() -> None:
    assert parameters({"type": "object"}).more
    assert not parameters({"type": "object", "additionalProperties": False}).more
    parsed = parameters({"properties": {"a": {}}, "required": ["a", "b"]})
    assert (list(parsed.schemas), parsed.required, parsed.more) == (["a", "b"], {"a", "b"}, False)


@pytest.mark.parametrize("schema", ["{", "3", "[" * 100_000, nested(40), UNUSABLE["parts"]], ids=range(5))
def test_schemas_of_answers_that_cannot_be_used(schema: Any) -> None:
    with pytest.raises(UsageError, match="JSON schema"):
        answer_text(schema)


@formats
def test_any_arguments_of_a_tool_without_properties(form: Any) -> None:
    tools = Tools([Tool("f", "", {"type": "object"})], "required")
    value = {"a": 1, "b": "x y", "c": [True, None], "d": {"e": 1.5}}
    written = form.write([("f", value)])
    assert grammar(form, tools).accepts(written), written
    assert read(form, tools, written) == ("", [("f", value)])


# The text of an answer.


VOCABULARY = ByteVocabulary()
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
LOOKING = "^(?=.*[0-9]).+$"


def used(schema: Any, strict: bool = False, is_open: bool = False) -> tuple[Grammar, str]:
    text, problem = answer_schema(json.dumps(schema), strict, is_open)
    return Grammar("start: " + json_text(json.loads(text), lenient=not strict), VOCABULARY), problem


@pytest.mark.parametrize(
    ("schema", "problem", "text"),
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
def test_what_cannot_be_enforced_is_left_out_and_named(schema, problem: str, text: str) -> None:
    compiled, reported = used(schema)
    assert problem in reported
    assert compiled.accepts(text)
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
    compiled, problem = used(schema)
    assert problem.count(";") == 1
    assert compiled.accepts('{"name": "ab", "age": 5}')
    for text in ('{"name": "abc"}', '{"age": 5}', '{"name": "a", "x": 1}', '{"name": "a", "age": "b"}'):
        assert not compiled.accepts(text), text


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


# Which objects of a schema allow no other properties than those that it names.


def obj(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, **more}


def shut(*names: str, **more: Any) -> dict[str, Any]:
    return obj(*names, **more, additionalProperties=False)


B = {"$ref": "#/$defs/B"}
REQUIRED = {"required": ["c"]}
IF = {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (obj("a"), shut("a")),
        ({"properties": {"a": obj("b")}}, {"properties": {"a": shut("b")}, "additionalProperties": False}),
        (obj("a", additionalProperties=True), obj("a", additionalProperties=True)),
        (obj("a", additionalProperties=obj("b")), obj("a", additionalProperties=shut("b"))),
        (obj("a", additionalProperties=None), shut("a")),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "properties": None}, {"type": "object", "properties": None}),
        ({"items": obj("a")}, {"items": shut("a")}),
        ({"prefixItems": [obj("a")]}, {"prefixItems": [shut("a")]}),
        ({"anyOf": [obj("a"), obj("b")]}, {"anyOf": [shut("a"), shut("b")]}),
        (obj("c", anyOf=[REQUIRED]), shut("c", anyOf=[REQUIRED])),
        (obj("c", oneOf=[obj("a")]), obj("c", oneOf=[obj("a")])),
        ({"allOf": [obj("a"), obj("b", required=["b"])]}, shut("a", "b", required=["b"])),
        ({"allOf": [obj("a"), IF]}, {"allOf": [obj("a"), IF]}),
        ({"allOf": [B], "$defs": {"B": obj("a")}}, shut("a", **{"$defs": {"B": shut("a")}})),
        ({"allOf": [B, obj("b")], "$defs": {"B": obj("a")}}, shut("a", "b", **{"$defs": {"B": shut("a")}})),
        ({"allOf": [B, IF], "$defs": {"B": obj("a")}}, {"allOf": [B, IF], "$defs": {"B": obj("a")}}),
        ({**B, **obj("z"), "$defs": {"B": obj("a")}}, {**B, **obj("z"), "$defs": {"B": obj("a")}}),
        (
            {"properties": {"a": {"anyOf": [B, {"type": "null"}]}}, "$defs": {"B": obj("q")}},
            {
                "properties": {"a": {"anyOf": [B, {"type": "null"}]}},
                "$defs": {"B": shut("q")},
                "additionalProperties": False,
            },
        ),
        (
            {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
            {
                "properties": {"a": {"type": "string"}, "b": {}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        ),
        ({"enum": [{"properties": {}}]}, {"enum": [{"properties": {}}]}),
        ({"properties": [1], "anyOf": [1, None]}, {"properties": [1], "anyOf": [1, None]}),
        ({"allOf": 5, "items": [1]}, {"allOf": 5, "items": [1]}),
        (True, True),
    ],
)  # fmt: skip
def test_what_is_closed(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


def test_references_that_lead_back() -> None:
    tree = {"$ref": "#/$defs/N", "$defs": {"N": obj("c", required=["c"])}}
    tree["$defs"]["N"]["properties"]["more"] = {"items": {"$ref": "#/$defs/N"}}  # type: ignore[index]
    assert closed(tree)["$defs"]["N"]["additionalProperties"] is False
    assert closed({"allOf": [{"$ref": "#"}]}) == {"allOf": [{"$ref": "#"}]}


def test_schemas_full_of_references_take_no_time() -> None:
    names = range(60)
    schemas = {
        f"d{i}": {
            "anyOf": [{"$ref": f"#/$defs/d{(i + j) % 60}"} for j in range(20)],
            "allOf": [{"$ref": f"#/$defs/d{i * j % 60}"} for j in range(20)],
        }
        for i in names
    }
    began = time.thread_time()
    closed({"$ref": "#/$defs/d0", "$defs": schemas})
    assert time.thread_time() - began < 2


def test_tools() -> None:
    closed_tools = with_closed_schemas(Tools([Tool("f", "", obj("a")), Tool("g")], "required"))
    assert closed_tools == Tools([Tool("f", "", shut("a")), Tool("g")], "required")


LEAF = st.sampled_from([{"type": "string"}, {"type": "integer"}, {"const": 1}])
NAMES = st.sampled_from("abc")


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(NAMES, inner, max_size=3).map(lambda p: {"type": "object", "properties": p})
    lists = st.lists(inner, min_size=1, max_size=2)
    return (
        named
        | inner.map(lambda s: {"type": "array", "items": s})
        | st.tuples(st.sampled_from(["anyOf", "allOf", "oneOf"]), lists).map(lambda t: {t[0]: t[1]})
        | st.tuples(named, lists).map(lambda t: {**t[0], "allOf": t[1]})
    )


VALUES = st.recursive(
    st.sampled_from(["x", 1]), lambda v: st.dictionaries(NAMES, v, max_size=3) | st.lists(v, max_size=2)
)


@settings(max_examples=examples(150), deadline=None)
@given(st.recursive(LEAF, objects, max_leaves=8), VALUES)
def test_a_closed_schema_allows_nothing_new(schema: Any, value: Any) -> None:
    if jsonschema.Draft202012Validator(closed(schema)).is_valid(value) and "oneOf" not in str(schema):
        assert jsonschema.Draft202012Validator(schema).is_valid(value)
