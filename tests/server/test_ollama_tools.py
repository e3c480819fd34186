"""Tools through the real clients of Ollama's API, and a request like Home Assistant's.

The API has no choice among tools, and the small model calls none by itself: calls are forced on the way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama

from tests.support.serving import QUESTION, Server

NAME = "pydoc-target"
SHORT = {"num_predict": 12, "seed": 5, "temperature": 0}
PURE = {
    "type": "object",
    "properties": {"pure": {"type": "boolean"}},
    "required": ["pure"],
    "additionalProperties": False,
}


def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: which file

    Returns:
        its text
    """
    return f"text of {path}"


def pinned(tool: str, **arguments: Any) -> dict[str, Any]:
    """A tool that can only be called with these arguments, and maybe more: ollama-python sends no const and
    no additionalProperties.
    """
    kinds = {str: "string", int: "integer"}
    properties = {key: {"type": kinds[type(v)], "enum": [v]} for key, v in arguments.items()}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": tool, "description": "x", "parameters": schema}}


class Forcing(httpx.HTTPTransport):
    """A transport that adds a choice to requests with tools."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.read() or b"{}")
        if body.get("tools"):
            data = json.dumps({**body, "tool_choice": "required"}).encode()
            headers = [pair for pair in request.headers.items() if pair[0] != "content-length"]
            request = httpx.Request(
                request.method, request.url, headers=headers, content=data, extensions=request.extensions
            )
        return super().handle_request(request)


@pytest.fixture(scope="module")
def forced(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(server.url, transport=Forcing()) as one:
        yield one


def test_an_answer_without_calls(server: Server) -> None:
    with ollama.Client(server.url) as client:
        for tools in ([read_file], [pinned("f", a=1)]):
            whole = client.chat(NAME, QUESTION, tools=tools, options=SHORT)
            chunks = list(client.chat(NAME, QUESTION, tools=tools, options=SHORT, stream=True))
            assert "".join(chunk.message.content for chunk in chunks) == whole.message.content


def test_a_loop_of_three_tool_turns(forced: ollama.Client) -> None:
    messages: list[Any] = list(QUESTION)
    for i in range(3):
        tools = [pinned("read_file", path=f"{i}.txt", n=i)]
        chunks = list(forced.chat(NAME, messages, tools=tools, stream=True, options={"seed": i}))
        whole = forced.chat(NAME, messages, tools=tools, options={"seed": i})
        (call, *_) = (call for chunk in chunks for call in chunk.message.tool_calls or ())
        assert call.function == whole.message.tool_calls[0].function
        assert call.function.name == "read_file"
        assert call.function.arguments.items() >= {"path": f"{i}.txt", "n": i}.items()
        assert whole.done_reason == "stop"
        result = ollama.Message(role="tool", tool_name="read_file", content=read_file(f"{i}.txt"))
        messages += [whole.message, *[result] * len(whole.message.tool_calls)]
    last = forced.chat(NAME, messages, options=SHORT)
    assert last.message.content
    assert last.prompt_eval_count > 60


def test_a_named_tool(server: Server) -> None:
    tools = [pinned("f", a=1), pinned("g", b=2)]
    choice = {"type": "function", "function": {"name": "g"}}
    asked = {"messages": QUESTION, "tools": tools, "tool_choice": choice, "stream": False}
    message = server.post("/api/chat", asked).json["message"]
    assert message["content"] == ""
    assert {call["function"]["name"] for call in message["tool_calls"]} == {"g"}
    assert len({call["id"] for call in message["tool_calls"]}) == len(message["tool_calls"])


@pytest.mark.parametrize("tools", [[], [pinned("HassTurnOn", device="light"), pinned("HassTurnOff")]])
def test_home_assistant(server: Server, tools) -> None:
    """It sends floats for whole numbers, a duration, a schema next to the tools, results without ids."""
    call = {"function": {"name": "HassTurnOn", "arguments": {"device": "light"}}}

    async def main() -> list[ollama.ChatResponse]:
        async with ollama.AsyncClient(host=server.url) as client:
            stream = await client.chat(
                model=NAME,
                messages=[
                    ollama.Message(role="system", content="You are a voice assistant."),
                    ollama.Message(role="user", content="Turn on the light"),
                    ollama.Message(role="assistant", content="", tool_calls=[call]),
                    ollama.Message(role="tool", content='{"success": true}'),
                    ollama.Message(role="user", content="Thanks"),
                ],
                tools=tools,
                stream=True,
                keep_alive="-1s",
                options={"num_ctx": 8192.0, "num_predict": 60, "seed": 1},
                think=False,
                format=PURE,
            )
            return [chunk async for chunk in stream]

    chunks = asyncio.run(main())
    assert chunks[-1].done
    text = "".join(chunk.message.content for chunk in chunks)
    called = [call for chunk in chunks for call in chunk.message.tool_calls or ()]
    assert called or set(json.loads(text)) == {"pure"}


def test_langchains_loop_of_three_tool_turns(server: Server) -> None:
    with Forcing() as forcing:
        model = ChatOllama(model=NAME, base_url=server.url, seed=1, sync_client_kwargs={"transport": forcing})
        messages: list[BaseMessage] = [HumanMessage("What is in the files?")]
        for i in range(3):
            answer = model.bind_tools([pinned("read_file", path=f"{i}.txt")]).invoke(messages)
            assert isinstance(answer, AIMessage)
            assert answer.content == ""
            assert {(call["name"], call["args"]["path"]) for call in answer.tool_calls} == {
                ("read_file", f"{i}.txt")
            }
            results = [
                ToolMessage(read_file(call["args"]["path"]), tool_call_id=call["id"])
                for call in answer.tool_calls
            ]
            messages += [answer, *results]
        assert model.bind(options={"num_predict": 12}).invoke(messages).content
