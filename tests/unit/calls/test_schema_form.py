"""What is no JSON schema is found, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.calls.history import tool
from specllama.calls.schema import answer_schema, arguments
from specllama.calls.tools import Tools
from specllama.errors import UsageError
from specllama.text.json_schema import fault, without_nulls

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
