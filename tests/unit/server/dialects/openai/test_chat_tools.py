"""Tools and calls in the bodies of /v1/chat/completions: what the engine is asked, and what is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from specllama.calls.tools import Tool, Tools
from specllama.client import protocol
from specllama.errors import UsageError
from specllama.server.dialects.openai.routes import ChatRequest
from specllama.server.dialects.shared.fields import FieldError, checked
from specllama.server.http.body import parse

USER = {"role": "user", "content": "x"}
F: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def asked(**fields: Any) -> protocol.Generate:
    """The engine's request for a body with these fields."""
    return checked(ChatRequest, {"messages": [USER], **fields}).generations({}, {})[0]


def called(arguments: Any, id_: str = "c1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": arguments}}


def result(content: Any = "1", id_: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def test_tools() -> None:
    function = {"name": "f", "description": "what", "parameters": SCHEMA, "strict": True, "more": 1}
    bare = {"type": "function", "function": {"name": "g", "description": None, "parameters": None}}
    offered = asked(tools=[{"type": "function", "function": function, "cache_control": {}}, bare]).chat.tools
    assert offered == Tools([Tool("f", "what", SCHEMA, strict=True), Tool("g")])


def test_the_schema_of_a_text_goes_with_tools() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    generation = asked(tools=[F], response_format=form)
    assert (generation.params["json_schema"], generation.chat.tools) == (SCHEMA, Tools([Tool("f")]))
    assert "json_schema" not in asked(tools=[F], response_format={"type": "text"}).params


@pytest.mark.parametrize("content", [None, "", []])
def test_earlier_calls(content) -> None:
    calls = [called('{"a": [1, "é"]}'), called("", "c2") | {"index": 1}]
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [USER, {"role": "assistant", "content": content, "tool_calls": calls}]
    history = asked(messages=[*messages, result(parts), result(None, "c2")]).chat.messages
    assert history is not None
    assert history[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [called({"a": [1, "é"]}), called({}, "c2")]},
        {"role": "tool", "content": "one\ntwo", "tool_call_id": "c1", "name": "f"},
        {"role": "tool", "content": "", "tool_call_id": "c2", "name": "f"},
    ]
    absent = {"role": "assistant", "tool_calls": [called({"a": 1})]}
    assert asked(messages=[USER, absent, result()]).chat.messages[1]["content"] == ""  # type: ignore[index]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "1"}, "messages[1]"),
        (USER | {"tool_calls": [called("{}")]}, "messages[1].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [called("{}"), called("nonsense")]},
            "messages[1].tool_calls[1].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]},
            "messages[1].tool_calls[0].custom",
        ),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[1].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "magic"}]},
            "messages[1].tool_calls[0].type",
        ),
        (result(id_="c9"), "messages[1].tool_call_id"),
        ({"role": "assistant", "tool_calls": [called("{}")] * 1025}, "messages[1].tool_calls"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[1].function_call"),
        ({"role": "function", "name": "f", "content": "1"}, "messages[1].role"),
    ],
)
def test_messages_that_cannot_be_used(message, param) -> None:
    with pytest.raises(FieldError) as error:
        asked(messages=[USER, message, USER])
    assert error.value.details["param"] == param, error.value.message


def test_calls_without_results_cannot_be_continued() -> None:
    with pytest.raises(FieldError, match="no results"):
        asked(messages=[USER, {"role": "assistant", "tool_calls": [called("{}")]}])


def test_a_thousand_tools() -> None:
    properties = {f"p{i}": {"type": "string", "description": "what"} for i in range(6)}
    tools = [
        {
            "type": "function",
            "function": {"name": f"t{i}", "parameters": {**SCHEMA, "properties": properties}},
        }
        for i in range(1000)
    ]
    began = time.thread_time()
    body = parse(json.dumps({"messages": [USER], "tools": tools}).encode())
    offered = checked(ChatRequest, body).generations({}, {})[0].chat.tools
    assert offered is not None
    assert len(offered.allowed) == 1000
    assert time.thread_time() - began < 5


def test_arguments_hidden_in_texts_are_bounded() -> None:
    """The body has few lists, its texts have many."""
    many = json.dumps({"a": [[]] * 9000})
    calls = {"role": "assistant", "tool_calls": [called(many)] * 100}
    body = parse(json.dumps({"messages": [USER, calls, USER]}).encode())
    began = time.thread_time()
    with pytest.raises(UsageError, match="together"):
        checked(ChatRequest, body)
    assert time.thread_time() - began < 5
