"""Tools, and the choice among them, as all APIs' requests give them. For the forms of each API in all of them
see test_leniencies.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from specllama.calls.tools import Tool, Tools
from specllama.server.dialects.shared.fields import FieldError, checked
from specllama.server.dialects.shared.tools import RequestTools, ToolFields

F, G = ({"name": name} for name in "fg")


def read(*tools: Any, **fields: Any) -> RequestTools:
    return checked(ToolFields, {"tools": list(tools), **fields}).request_tools


def only(tool: Any) -> Tool:
    allowed = read(tool).allowed
    assert allowed is not None
    (one,) = allowed.tools
    return one


@pytest.mark.parametrize("parameters", [None, {}])
def test_an_empty_schema_means_no_parameters(parameters) -> None:
    assert only({"name": "f", "parameters": parameters}) == Tool("f", "", {}, strict=False)


def test_a_schema_gets_the_type_object() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    for kind in ({}, {"type": "object"}, {"type": ["object", "null"]}):
        tool = only({"name": "f", "description": "what", "parameters": schema | kind, "strict": True})
        assert tool == Tool("f", "what", {"type": "object", **schema}, strict=True)


@pytest.mark.parametrize(
    ("name", "parameters", "param"),
    [
        ("", {}, "tools[1].name"),
        ("a b", {}, "tools[1].name"),
        ("a>", {}, "tools[1].name"),
        ("a" * 129, {}, "tools[1].name"),
        ("f", {"type": "string"}, "tools[1].input_schema"),
        ("f", {"type": ["array"]}, "tools[1].input_schema"),
        ("g", {}, "tools[1]"),
    ],
)
def test_a_tool_that_cannot_be_used(name, parameters, param) -> None:
    with pytest.raises(FieldError) as error:
        read(G, {"name": name, "input_schema": parameters})
    assert error.value.details == {"param": param}
    assert error.value.message.startswith(param)


def test_a_choice() -> None:
    assert read().allowed is None
    assert read(tool_choice="none").allowed is None
    assert read(F, G).allowed == Tools([Tool("f"), Tool("g")])
    twice = {"type": "allowed_tools", "mode": "required", "tools": [G, G]}
    allowed = read(F, G, tool_choice=twice, parallel_tool_calls=False).allowed
    assert allowed == Tools([Tool("f"), Tool("g")], "required", ("g",), parallel=False)


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([], "required", "tool_choice needs tools"),
        ([], {"type": "function", "name": "f"}, "tool_choice needs tools"),
        ([F, G], {"type": "tool", "name": "h"}, "tool_choice: there is no tool 'h'; the tools are f, g"),
        (
            [F, G],
            "h",
            'tool_choice must be "auto", "none", "required", the name of a tool, or an object that names '
            "one, not 'h'; the tools are f, g",
        ),
        ([F], {"type": "tool"}, "tool_choice.name is missing"),
        ([F], {"type": "any", "name": "f"}, 'tool_choice.name is for the type "function" or "tool"'),
    ],
)
def test_a_choice_that_cannot_be_used(tools, choice, message) -> None:
    with pytest.raises(FieldError) as error:
        read(*tools, tool_choice=choice)
    assert error.value.message == message


def test_the_error_of_an_unknown_tool_among_many_is_short() -> None:
    many = [{"name": f"tool{i}"} for i in range(1000)]
    for choice in ("x" * 500, {"name": "x" * 500}):
        with pytest.raises(FieldError) as error:
            read(*many, tool_choice=choice)
        assert len(error.value.message) < 400


def test_tools_that_run_elsewhere() -> None:
    hosted = [{"type": kind, "name": "x", "max_uses": 5} for kind in ("web_search_20250305", "custom", "mcp")]
    tools = read(*hosted, F)
    assert tools.allowed == Tools([Tool("f")])
    assert tools.note == ("left out tools of types that do not run here: web_search_20250305, custom, mcp")
    assert read(*hosted, tool_choice="none").allowed is None
    with pytest.raises(FieldError, match="tools: those of the type web_search_20250305, custom, mcp do not"):
        read(*hosted)
    with pytest.raises(FieldError, match="there is no tool 'x'"):
        read(*hosted, F, tool_choice={"type": "custom", "name": "x"})
