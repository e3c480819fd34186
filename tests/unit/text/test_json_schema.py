"""Schemas that ask for texts without a useful end."""

from __future__ import annotations

import pytest

from specllama.calls.schema import answer_text
from specllama.errors import UsageError
from specllama.text.json_schema import forces_too_much

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
