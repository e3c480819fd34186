"""Tools in LLM.chat and AsyncLLM.chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from specllama import LLM, AsyncLLM, SamplingParams
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import UsageError

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "now"}}
ASK = [{"role": "user", "content": "What is 2 + 3?"}]
PARAMS = SamplingParams(seed=4, max_tokens=200, temperature=0.5)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(model=str(EMBEDDED_TARGET), speculative_model=str(EMBEDDED_DRAFT)) as llm:
        yield llm


def test_a_loop_of_calls_and_results(llm: LLM) -> None:
    messages: list[dict[str, Any]] = list(ASK)
    for choice in ("required", NAMED):
        how: dict[str, Any] = {"tools": [ADD, NOW], "tool_choice": choice, "parallel_tool_calls": False}
        (answer,) = llm.chat(messages, PARAMS, **how)[0].outputs
        (plain,) = llm.chat(messages, PARAMS, **how, speculate=False)[0].outputs
        assert (plain.text, plain.token_ids) == (answer.text, answer.token_ids)
        (call,) = answer.tool_calls
        assert answer.finish_reason == "stop"
        assert answer.text == ""
        arguments = json.loads(call.arguments)
        assert arguments == {} if call.name == "now" else set(arguments) == {"a", "b"}
        messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    assert call.name == "now"
    last = llm.chat(messages, PARAMS, tools=[ADD, NOW], tool_choice="none")[0].outputs[0]
    assert last.tool_calls == ()
    assert last.message == {"role": "assistant", "content": last.text}


def test_calls_in_an_event_loop() -> None:
    async def last() -> Any:
        async with AsyncLLM(model=str(EMBEDDED_TARGET), speculative_model=None) as other:
            async for output in other.chat(ASK, PARAMS, tools=[NOW], tool_choice="required"):
                completion = output.outputs[0]
            return completion

    assert [call.name for call in asyncio.run(last()).tool_calls][:1] == ["now"]


@pytest.mark.parametrize(
    ("tools", "choice", "needle"),
    [
        ("add", "auto", "tools must be a list"),
        ([{"name": "add"}], "auto", "tools[0] must be"),
        ([{"type": "function", "function": {"name": "a b"}}], "auto", "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a", "parameters": 1}}], "auto", "parameters must be"),
        (
            [{"type": "function", "function": {"name": "a", "parameters": {"type": 1}}}],
            "auto",
            "object",
        ),
        ([NOW, NOW], "auto", "two tools 'now'"),
        ([NOW], "always", "tool_choice must be"),
        ([NOW], {"type": "function", "function": {"name": "add"}}, "which are now"),
        ([], "required", "tool_choice needs tools"),
    ],
)
def test_tools_are_checked(llm: LLM, tools: Any, choice: Any, needle: str) -> None:
    with pytest.raises(UsageError) as caught:
        llm.chat(ASK, PARAMS, tools=tools, tool_choice=choice)
    assert needle in caught.value.message


def test_arguments_of_earlier_calls_are_checked(llm: LLM) -> None:
    call = {"id": "1", "function": {"name": "now", "arguments": "{no JSON"}}
    with pytest.raises(UsageError, match=r"messages\[1\].tool_calls\[0\]"):
        llm.chat([*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}], PARAMS)


def test_what_is_not_enforced_of_a_schema_is_a_warning(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "sort", "parameters": parameters}}]
    for _ in range(2):
        llm.chat(ASK, SamplingParams(max_tokens=2), tools=tools)
    (line,) = [r for r in caplog.records if "the tool sort" in r.message]
    assert line.levelname == "WARNING"
    assert "uniqueItems" in line.message
