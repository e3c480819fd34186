"""Which objects of a schema allow no other properties than those that it names."""

from __future__ import annotations

import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.calls.closed_schema import closed, with_closed_schemas
from specllama.calls.tools import Tool, Tools
from tests.support.examples import examples


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
