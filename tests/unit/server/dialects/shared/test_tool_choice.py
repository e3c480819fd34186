"""Tools, and the choice among them, as all APIs' requests give them."""

from __future__ import annotations

import pytest

from specllama.calls.tools import Tool, Tools
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.dialects.shared.tool_choice import tool_of, tools_of

F, G = (tool_of(name, None, None, field="tools[0]") for name in "fg")


@pytest.mark.parametrize("parameters", [None, {}])
def test_an_empty_schema_means_no_parameters(parameters) -> None:
    assert tool_of("f", None, parameters, field="tools[0]") == Tool("f", "", {}, strict=False)


def test_a_schema_gets_the_type_object() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    for kind in ({}, {"type": "object"}, {"type": ["object", "null"]}):
        tool = tool_of("f", "what", schema | kind, True, field="tools[0]")
        assert tool == Tool("f", "what", {"type": "object", **schema}, strict=True)


@pytest.mark.parametrize(
    ("name", "parameters", "param"),
    [
        ("", {}, "tools[3].name"),
        ("a b", {}, "tools[3].name"),
        ("a>", {}, "tools[3].name"),
        ("a" * 129, {}, "tools[3].name"),
        ("f", {"type": "string"}, "tools[3].input_schema"),
        ("f", {"type": ["array"]}, "tools[3].input_schema"),
    ],
)
def test_a_tool_that_cannot_be_used(name, parameters, param) -> None:
    with pytest.raises(FieldError) as error:
        tool_of(name, None, parameters, field="tools[3]", schema_field="input_schema")
    assert error.value.details == {"param": param}
    assert error.value.message.startswith(param)


def test_a_choice() -> None:
    assert tools_of([]) is None
    assert tools_of([], "none") is None
    assert tools_of([F, G]) == Tools([F, G])
    assert tools_of([F, G], "required", ["g", "g"], parallel=False) == Tools(
        [F, G], "required", ("g",), parallel=False
    )


@pytest.mark.parametrize(
    ("tools", "choice", "names", "needle"),
    [
        ([], "required", [], "tool_choice needs tools"),
        ([], "auto", ["f"], "tool_choice needs tools"),
        ([F, G], "required", ["h"], "tool_choice: there is no tool 'h'; the tools are f, g"),
        ([F, G, F], "auto", [], "tools[2]: there is a tool 'f' already"),
    ],
)
def test_a_choice_that_cannot_be_used(tools, choice, names, needle) -> None:
    with pytest.raises(FieldError) as error:
        tools_of(tools, choice, names)
    assert error.value.message == needle


def test_the_error_of_an_unknown_tool_among_many_is_short() -> None:
    many = [tool_of(f"tool{i}", None, None, field="") for i in range(1000)]
    with pytest.raises(FieldError) as error:
        tools_of(many, "required", ["x" * 500])
    assert len(error.value.message) < 300
