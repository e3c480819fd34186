"""What every dialect refuses, in its own form; schemas of tools that ask too much; the engine outlives it
all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.serving import QUESTION, Reply, Server

ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "no finite value": ENDLESS,
    "references in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "no such reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    "another server": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/a.json"}}},
    "a bound": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 10**300}},
        "required": ["a"],
    },
    "a length": {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 10**9}},
        "required": ["a"],
    },
    "a pattern": {"type": "object", "properties": {"a": {"pattern": "^((a|b)*c){1,200}(x{0,900}y){1,50}$"}}},
    "nothing": {"type": "object", "properties": {"a": False}, "required": ["a"]},
}


def tools(path: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A request with a tool, in the dialect of the path."""
    function = {"name": "f", "parameters": schema}
    if path == "/v1/messages":
        tool: dict[str, Any] = {"name": "f", "input_schema": schema}
        return {"model": "pydoc", "messages": QUESTION, "max_tokens": 6, "tools": [tool]}
    if path == "/v1/responses":
        return {"input": "zip?", "max_output_tokens": 6, "tools": [{"type": "function", **function}]}
    limit = {"options": {"num_predict": 6}, "model": "pydoc"} if path == "/api/chat" else {"max_tokens": 6}
    return {
        "messages": QUESTION,
        "stream": False,
        "tools": [{"type": "function", "function": function}],
        **limit,
    }


PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/api/chat", "/api/generate", "/completion", "/infill",
)  # fmt: skip


def assert_refused(path: str, reply: Reply, status: int) -> None:
    """In the form of the path's dialect."""
    assert reply.status == status, reply.body
    if path.startswith("/v1/messages"):
        assert reply.json["type"] == "error"
        assert {"type", "message"} <= set(reply.error)
        assert reply.json["request_id"] == reply.headers["request-id"]
    elif path.startswith("/api"):
        assert isinstance(reply.json["error"], str)
    else:
        assert {"message", "type", "param", "code"} <= set(reply.error)


@pytest.mark.parametrize("path", PATHS)
def test_each_dialect_refuses_in_its_own_form(server: Server, path: str) -> None:
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"model": 5}', b'{"stream": "yes"}'):
        assert_refused(path, server.post(path, body), 400)
    assert_refused(path, server.ask("PUT", path, {}), 405)
    assert_refused(path, server.post(f"{path}/nothing/here", {}), 404)
    assert_refused(path, server.post(path, b'{"a": "' + b"x" * (5 << 20) + b'"}'), 413)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_costly_schema_does_not_end_the_engine(server: Server, path: str, name: str) -> None:
    """It is not enforced, as a note says; strict tools are refused."""
    began, pid = time.monotonic(), server.engine().pid
    body = tools(path, SCHEMAS[name])
    assert server.post(path, body).status == 200
    if path != "/api/chat":
        forced = {"type": "any"} if path == "/v1/messages" else "required"
        assert server.post(path, {**body, "tool_choice": forced}).status == 200
    assert time.monotonic() - began < 20
    assert server.engine().pid == pid


def test_strict_tools_with_such_schemas_are_refused(server: Server) -> None:
    body = tools("/v1/chat/completions", ENDLESS)
    body["tools"][0]["function"]["strict"] = True
    reply = server.chat(**body)
    assert (reply.status, reply.error["param"]) == (400, "tools")
    assert "no value is short enough" in reply.error["message"]
