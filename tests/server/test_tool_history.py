"""Earlier calls that are no calls, in every dialect: a refusal in its own form that names them, never an
error of the server; and what the server's log says of schemas that are not enforced.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.serving import Reply, Server

ARGUMENTS: dict[str, Any] = {
    "text": "Paris",
    "list": "[1, 2]",
    "number": "3",
    "nested": "[" * 100_000,
    "two": '{"a": 1}{"b": 2}',
    "python": "{'city': 'Paris'}",
}
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOL = {"type": "function", "function": FUNCTION}
ASK = {"role": "user", "content": "Is it raining?"}


def chat(server: Server, arguments: Any) -> Reply:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    turns = [ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "no"}
    return server.chat([*turns, result], tools=[TOOL], max_tokens=2)


def responses(server: Server, arguments: Any) -> Reply:
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": arguments}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "no"}
    body = {
        "input": [ASK, call, result],
        "tools": [{"type": "function", **FUNCTION}],
        "max_output_tokens": 16,
    }
    return server.post("/v1/responses", body)


def messages(server: Server, arguments: Any) -> Reply:
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no"}
    turns = [ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    tool = {"name": "weather", "input_schema": FUNCTION["parameters"]}
    return server.post("/v1/messages", {"messages": turns, "tools": [tool], "max_tokens": 2})


def ollama(server: Server, arguments: Any) -> Reply:
    call = {"function": {"name": "weather", "arguments": arguments}}
    turns = [ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_name": "weather", "content": "no"}
    body = {"model": "pydoc-target", "messages": [*turns, result], "tools": [TOOL], "stream": False}
    return server.post("/api/chat", {**body, "options": {"num_predict": 2}})


@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.parametrize("ask", [chat, responses, messages, ollama])
def test_arguments_that_are_not_an_object(server: Server, ask: Any, case: str) -> None:
    reply = ask(server, ARGUMENTS[case])
    assert reply.status == 400, reply.json
    if ask is messages:
        assert reply.json["type"] == "error"
        assert reply.json["error"]["type"] == "invalid_request_error"
        message = reply.json["error"]["message"]
        assert "input" in message
    elif ask is ollama:
        message = reply.json["error"]
        assert isinstance(message, str)
        assert "arguments" in message
    else:
        assert reply.json["error"]["type"] == "invalid_request_error"
        message = reply.json["error"]["message"]
        assert "arguments" in message
    named = {chat: "messages[1].tool_calls[0]", responses: "input[1]", messages: "messages[1].content[0]"}
    assert named.get(ask, "messages[1].tool_calls[0]") in message
    assert len(message) < 500


@pytest.mark.parametrize("text", ['{"city": "Par', "{", '{"a": "\\ud800', '{"city": "a", "days": 1'])
@pytest.mark.parametrize("ask", [chat, responses, messages, ollama])
def test_calls_that_were_cut_off_are_completed(server: Server, ask: Any, text: str) -> None:
    assert ask(server, text).status == 200


@pytest.mark.parametrize("arguments", [{}, {"city": "Rome"}, {"other": [None, {"a": "\ud7ff"}]}])
@pytest.mark.parametrize("ask", [chat, responses, messages, ollama])
def test_arguments_of_any_form_are_shown(server: Server, ask: Any, arguments: dict[str, Any]) -> None:
    """Also those that the tool's schema does not allow."""
    assert ask(server, json.dumps(arguments) if ask in (chat, responses) else arguments).status == 200


def test_unenforced_schema_parts_are_logged_once(server: Server) -> None:
    def tools(name: str, **more: Any) -> list[Any]:
        schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, **more}}}
        return [{"type": "function", "function": {"name": f"{name}{i}", "parameters": schema}} for i in "xy"]

    def lines(name: str) -> list[str]:
        return [line for line in server.lines if f"the tool {name}" in line]

    for _ in range(2):
        for name in ("first", "second"):
            assert server.chat([ASK], tools=tools(name), max_tokens=1).status == 200
    server.wait_for("the tool secondx")
    assert [len(lines(name)) for name in ("first", "second")] == [1, 1]
    assert lines("first")[0].endswith("; nor are those of 1 more")
    assert "uniqueItems" in lines("first")[0]
    assert server.chat([ASK], tools=[TOOL], max_tokens=1).status == 200
    assert not lines("weather")
