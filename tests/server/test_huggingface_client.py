"""huggingface_hub's client against a model that thinks: a loop with a tool, streams, and a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import InferenceClient

from tests.support.serving import Server
from tests.support.thinker import THOUGHT, thinker

LINE = {"type": "object", "properties": {"line": {"const": "one"}}, "required": ["line"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "append", "parameters": LINE}}]
FORCED: Any = {"type": "function", "function": {"name": "append"}}
PERSON = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"]}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
ASKED: list[Any] = [{"role": "user", "content": "write to the file"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceClient]:
    folder = tmp_path_factory.mktemp("thinker")
    with Server(folder, "-np", "1", *thinker(folder)) as server:
        yield InferenceClient(base_url=f"{server.url}/v1", api_key="unused", timeout=60)


def test_a_loop_with_a_tool(client: InferenceClient) -> None:
    messages = list(ASKED)
    for _ in range(2):
        choice = client.chat_completion(messages, tools=TOOLS, tool_choice=FORCED, max_tokens=100).choices[0]
        assert choice.message["reasoning_content"] == THOUGHT
        (call,) = choice.message.tool_calls or []
        assert (call.function.name, json.loads(call.function.arguments)) == ("append", {"line": "one"})
        assert choice.finish_reason == "tool_calls"
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "written"}]
    last = client.chat_completion(messages, response_format=FORM, max_tokens=100).choices[0]
    assert json.loads(last.message.content or "")["kind"] in ("cat", "dog")


def test_a_stream_of_a_schema(client: InferenceClient) -> None:
    stream = client.chat_completion(ASKED, response_format=FORM, max_tokens=100, stream=True)
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == THOUGHT
    assert json.loads("".join(delta.content or "" for delta in deltas))["kind"] in ("cat", "dog")
