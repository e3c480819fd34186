"""Tools, the choice among them, and the arguments of earlier calls, as all APIs' requests give them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specllama.calls.tools import Tool, Tools
from specllama.server.dialects.fields import FieldError
from specllama.server.dialects.tool_choice import (
    CallArguments,
    name_results,
    order_results,
    tool_of,
    tools_of,
)
from specllama.server.http.body import MAX_CONTAINERS, MAX_VALUES

F, G = (tool_of(name, None, None, field="tools[0]") for name in "fg")


@pytest.mark.parametrize("parameters", [None, {}])
def test_no_parameters_are_none(parameters) -> None:
    assert tool_of("f", None, parameters, field="tools[0]") == Tool("f", "", {}, strict=False)


def test_a_schema_is_that_of_an_object() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    for kind in ({}, {"type": "object"}, {"type": ["object", "null"]}):
        found = tool_of("f", "what", schema | kind, True, field="tools[0]")
        assert found == Tool("f", "what", {"type": "object", **schema}, strict=True)


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


def test_an_unknown_tool_among_many_makes_a_short_message() -> None:
    many = [tool_of(f"tool{i}", None, None, field="") for i in range(1000)]
    with pytest.raises(FieldError) as error:
        tools_of(many, "required", ["x" * 500])
    assert len(error.value.message) < 300


@pytest.mark.parametrize(
    ("text", "found"),
    [('{"a": [1]}', {"a": [1]}), ("", {}), (" ", {}), ("null", {}), (None, {}), ({"a": 1}, {"a": 1})],
)
def test_arguments(text, found) -> None:
    assert CallArguments().parse(text, "x") == found


@pytest.mark.parametrize(
    "text", ['{"a"', "[]", '"x"', "nonsense", '{"a": NaN}', '{"a":"\\ud800"}', '{"a":' * 70 + "1" + "}" * 70]
)
def test_arguments_that_are_no_object(text) -> None:
    field = "messages[1].tool_calls[0].function.arguments"
    with pytest.raises(FieldError) as error:
        CallArguments().parse(text, field)
    assert error.value.details == {"param": field}
    assert field in error.value.message
    assert len(error.value.message) < 200


@pytest.mark.parametrize("item", ["[]", "1"])
def test_the_arguments_of_all_calls_are_bounded_together(item: str) -> None:
    most = {"[]": MAX_CONTAINERS, "1": MAX_VALUES}[item]
    text = json.dumps({"a": [json.loads(item)] * 1000})
    arguments = CallArguments()
    for _ in range(most // 1002):
        arguments.parse(text, "x")
    with pytest.raises(FieldError, match="together"):
        arguments.parse(text, "x")


def test_results_get_the_names_of_their_tools() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c1", "content": "1", "name": "own"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
    ]
    name_results(messages)
    assert [message.get("name") for message in messages] == [None, "f", "own", None]


def test_results_get_the_order_of_their_calls() -> None:
    """As Claude Code sends them: the first one to end comes first."""

    def called(*ids: str) -> dict[str, Any]:
        function = {"name": "f", "arguments": {}}
        return {"role": "assistant", "tool_calls": [{"id": id_, "function": function} for id_ in ids]}

    def result(id_: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": id_, "content": id_}

    user = {"role": "user", "content": "x"}
    messages = [
        called("a", "b"),
        *map(result, "xba"),
        user,
        called("c"),
        called("d", "e"),
        *map(result, "ed"),
    ]
    order_results(messages)
    shown = "".join(m["tool_call_id"] if m["role"] == "tool" else "-" for m in messages)
    assert shown == "-abx---de"
    unrelated = [result("b"), result("a"), user]
    order_results(unrelated)
    assert [m["content"] for m in unrelated] == ["b", "a", "x"]
