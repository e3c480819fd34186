"""What is no JSON schema is found, whatever it is, and what asks for a text without a useful end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.calls.history import tool
from specllama.calls.schema import answer_schema, answer_text, arguments
from specllama.calls.tools import Tools
from specllama.errors import UsageError
from specllama.text.json_schema import fault, forces_too_much, without_nulls

LONG = {"const": "a" * 5000}
MANY = {"type": "array", "items": LONG, "minItems": 100}


@pytest.mark.parametrize(
    "schema",
    [
        MANY,
        {"anyOf": [{"const": 1}, MANY]},
        {"properties": {"const": MANY}},
        {"type": "array", "items": {"$ref": "#/$defs/x~1y"}, "minItems": 1e3, "$defs": {"x/y": LONG}},
        {"type": "array", "items": {"type": "string", "pattern": "^a{5000}$"}, "minItems": 100},
        {"type": "string", "pattern": "a*", "minLength": 10**9},
        {"allOf": [{"properties": {"a": LONG}, "required": ["a"]}], "minItems": 300_000},
        {"prefixItems": [LONG] * 100, "minItems": 100},
        {"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}, "minItems": 9}
                                         for i in range(20)}},
    ],
)  # fmt: skip
def test_long_texts_are_seen(schema) -> None:
    assert forces_too_much(schema)
    with pytest.raises(UsageError, match="more than 262144 characters"):
        answer_text(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        LONG,
        {"enum": ["x" * 1000] * 60},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1000},
        {"type": "array", "items": LONG, "maxItems": 10**9},
        {"type": "string", "maxLength": 10**9},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "https://example.com/x"},
        {"type": "string", "pattern": r"\p{L}+(?<x>"},
        {"minItems": "many", "required": 5, "prefixItems": {}, "enum": 3, "minLength": None},
    ],
)
def test_others_pass(schema) -> None:
    assert not forces_too_much(schema)


@pytest.mark.parametrize("name", [{"a": 1}, ["a"], None, 3, True])
def test_required_names_that_are_no_texts_force_nothing(name: object) -> None:
    """A campaign of random schemas found it; llguidance refuses such a schema by itself."""
    assert not forces_too_much({"properties": {"a": {}}, "required": [name, "a"]})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "object", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "anyOf", "required", "enum", "not", "$ref", "a"]),
            inner,
            max_size=4,
        )
    ),
)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": ["string", "null"], "enum": None, "items": None},
        {"properties": {"type": {"type": "string"}, "required": {"enum": []}}, "required": []},
        {"items": [{"type": "null"}, True], "additionalProperties": False},
        {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {}}}, "unknown": {"type": "x"}},
        {"const": {"type": 5}, "default": {"properties": 5}},
    ],
)
def test_schemas(schema: dict[str, Any]) -> None:
    assert fault(schema, "s") is None


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "nonsense"}, "s.type"),
        ({"type": ["string", 5]}, "s.type"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": {"type": "STRING"}}}, "s.properties.a.type"),
        ({"properties": {"a": "string"}}, "s.properties.a"),
        ({"required": "a"}, "s.required"),
        ({"required": [1]}, "s.required"),
        ({"properties": {"a": {"enum": "x"}}}, "s.properties.a.enum"),
        ({"items": {"anyOf": [{}, 5]}}, "s.items.anyOf[1]"),
        ({"items": [{}, {"$ref": 5}]}, "s.items[1].$ref"),
        ({"additionalProperties": "no"}, "s.additionalProperties"),
    ],
)
def test_what_is_none(schema: dict[str, Any], path: str) -> None:
    problem = fault(schema, "s")
    assert problem is not None
    assert problem[0] == path
    with pytest.raises(UsageError) as error:
        tool("f", None, {"properties": {"x": schema}}, field="t")
    assert error.value.details == {"param": path.replace("s", "t.parameters.properties.x", 1)}
    assert tool("f", None, {"properties": {"x": schema}}, field="t", any_form=True).name == "f"


@given(st.dictionaries(st.sampled_from(["type", "properties", "items", "anyOf", "required"]), VALUES))
def test_it_never_raises(schema: dict[str, Any]) -> None:
    problem = fault(schema, "s")
    assert problem is None or problem[0].startswith("s")


NULLS: dict[str, Any] = {
    "type": None,
    "properties": {
        "a": {"type": None, "enum": ["x"], "description": None, "default": None},
        "b": {"anyOf": [{"type": "integer", "minimum": None}, {"const": None}], "title": None},
        "c": {"items": {"format": None, "type": "string"}, "maxItems": None},
        "default": {"type": "string", "pattern": None},
    },
    "required": ["a"],
    "additionalProperties": None,
    "$defs": None,
}
WITHOUT: dict[str, Any] = {
    "properties": {
        "a": {"enum": ["x"], "default": None},
        "b": {"anyOf": [{"type": "integer"}, {"const": None}]},
        "c": {"items": {"type": "string"}},
        "default": {"type": "string"},
    },
    "required": ["a"],
}


def test_keywords_that_are_null_are_absent_for_tools_and_answers() -> None:
    assert without_nulls(NULLS) == WITHOUT
    one = tool("f", None, NULLS, field="tools[0].function")
    assert one.parameters == {**WITHOUT, "type": "object"}
    assert arguments(Tools([one]))[0].problem == ""
    assert answer_schema(json.dumps(NULLS), True, False) == answer_schema(json.dumps(WITHOUT), True, False)


@given(VALUES)
def test_nothing_else_is_left_out(value: Any) -> None:
    kept = without_nulls(value)
    assert without_nulls(kept) == kept
    if "null" not in json.dumps(value):
        assert kept == value
