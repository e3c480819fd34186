"""Anthropic's own client and LangChain's chat model for it, and a request as Claude Code sends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from tests.support.serving import QUESTION, Server

MESSAGES = "/v1/messages"
NAME = "pydoc-target"
LOOK = {
    "name": "look_up",
    "description": "Documentation of a function",
    "input_schema": {
        "type": "object",
        "properties": {"name": {"enum": ["zip", "open"]}, "long": {"type": "boolean"}},
        "required": ["name", "long"],
        "additionalProperties": False,
    },
}
DONE = {"name": "done", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
NONSENSE = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
THINK = 'root ::= "<think>\\n2 is\\nsmall\\n</think>\\n\\nIt is 2."'
ASKED: dict[str, Any] = {"model": NAME, "messages": QUESTION, "max_tokens": 40}


class Verdict(BaseModel, extra="forbid"):
    """A verdict on a function."""

    name: Literal["zip", "open"]
    pure: bool


@pytest.fixture(scope="module")
def client(exact: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=exact.url, api_key="unused", max_retries=0) as one:
        yield one


def test_an_answer_and_its_stream_are_the_same(client: anthropic.Anthropic) -> None:
    asked = {**ASKED, "system": "Be short.", "extra_body": {"seed": 5}}
    whole = client.messages.create(**asked)
    assert (whole.type, whole.role, whole.model, whole.stop_reason) == (
        "message", "assistant", NAME, "max_tokens",
    )  # fmt: skip
    assert whole.usage.output_tokens == 40
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text != ""
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 40
    assert _n_input(final.usage) == _n_input(whole.usage)
    assert whole.to_dict()["speculation"]["enabled"] is True


def _n_input(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be short."},
        {"tools": [LOOK, DONE]},
        {"tools": [LOOK], "tool_choice": {"type": "none"}},
        {"messages": [*QUESTION, {"role": "assistant", "content": "It <|im_end|> copies"}]},
        {"messages": [{"role": "user", "content": "<|im_start|>system\n" * 3}]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ],
)
def test_count_tokens_agrees_with_the_answer(client: anthropic.Anthropic, fields) -> None:
    asked = {**ASKED, "max_tokens": 1, **fields}
    used = client.messages.create(**asked).usage
    del asked["max_tokens"]
    assert client.messages.count_tokens(**asked).input_tokens == _n_input(used)
    assert client.beta.messages.count_tokens(**asked).input_tokens == _n_input(used)


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    asked = {**ASKED, "extra_body": {"seed": 1, "temperature": 0}}
    text = client.messages.create(**asked).content[0].text
    word = text.split()[3]
    message = client.messages.create(**asked, stop_sequences=["zzz", word])
    assert message.content[0].text == text[: text.index(word)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)


def test_a_full_context_has_its_own_stop_reason(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**ASKED, "max_tokens": 10_000}, extra_body={"ignore_eos": True})
    assert message.stop_reason == "model_context_window_exceeded"


def test_a_partial_answer_is_continued(client: anthropic.Anthropic, exact: Server) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "It copies a "}]
    asked = {"max_tokens": 25, "extra_body": {"seed": 1, "temperature": 0}}
    text = client.messages.create(model=NAME, messages=begun, **asked).content[0].text
    assert text
    same = exact.chat(begun, max_tokens=25, seed=1, temperature=0).json
    assert text == same["choices"][0]["message"]["content"]


def test_thinking_has_its_own_block(client: anthropic.Anthropic) -> None:
    asked = {
        **ASKED,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "extra_body": {"grammar": THINK},
    }
    whole = client.messages.create(**asked)
    thought, text = whole.content
    assert (thought.type, thought.thinking) == ("thinking", "2 is\nsmall")
    assert thought.signature == ""
    assert (text.type, text.text) == ("text", "It is 2.")
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    again = [*QUESTION, {"role": "assistant", "content": whole.content}, *QUESTION]
    assert client.messages.create(**{**ASKED, "messages": again}).content


def test_a_schema_is_enforced(client: anthropic.Anthropic) -> None:
    form = {"type": "json_schema", "schema": Verdict.model_json_schema()}
    message = client.messages.create(**ASKED, output_config={"format": form})
    assert Verdict.model_validate_json(message.content[0].text)
    parsed = client.messages.parse(**ASKED, output_format=Verdict)
    assert isinstance(parsed.parsed_output, Verdict)


@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "any"}, {"look_up", "done"}), ({"type": "tool", "name": "done"}, {"done"})],
)
def test_forced_calls(client: anthropic.Anthropic, choice, names) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    asked = {**ASKED, "tools": [LOOK, DONE], "tool_choice": choice, "max_tokens": 60}
    for seed in range(3):
        body = {"extra_body": {"seed": seed}}
        (whole,) = client.messages.create(**asked, **body).content
        assert (whole.type, whole.name in names) == ("tool_use", True)
        with client.messages.stream(**asked, **body) as stream:
            final = stream.get_final_message()
        assert (final.content[0].name, final.content[0].input) == (whole.name, whole.input)
        assert final.stop_reason == "tool_use"
        assert whole.id.startswith("toolu_")
        assert whole.id != final.content[0].id


def test_tool_choice_none_forbids_calls(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASKED, tools=[LOOK], tool_choice={"type": "none"})
    assert {block.type for block in message.content} == {"text"}


def test_an_agent_of_three_turns(client: anthropic.Anthropic) -> None:
    """What comes out goes back in as it is, and the prompt of a turn is reused by the next one."""
    messages: list[Any] = list(QUESTION)
    asked = {"model": NAME, "max_tokens": 60, "tools": [LOOK, DONE], "system": "Use the tools."}
    n_before = 0
    for choice in ({"type": "tool", "name": "look_up"}, {"type": "any"}, {"type": "tool", "name": "done"}):
        choice = {**choice, "disable_parallel_tool_use": True}
        with client.messages.stream(**asked, messages=messages, tool_choice=choice) as stream:
            answer = stream.get_final_message()
        assert answer.stop_reason == "tool_use"
        (call,) = answer.content
        assert answer.usage.cache_read_input_tokens >= n_before
        n_before = _n_input(answer.usage) - 8
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "no"}]}
        messages += [
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
        ]
    assert client.messages.create(**asked, messages=messages, tool_choice={"type": "none"}).content[0].text


@pytest.mark.parametrize(
    ("fields", "error", "kind", "needle"),
    [
        ({"model": "claude-x"}, anthropic.NotFoundError, "not_found_error", NAME),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "invalid_request_error", "tools"),
        (
            {"messages": [{"role": "user", "content": "zip " * 4000}]},
            anthropic.BadRequestError, "invalid_request_error", "prompt is too long",
        ),
        (
            {"tools": [{**LOOK, "strict": True, "input_schema": NONSENSE}]},
            anthropic.BadRequestError, "invalid_request_error", "input_schema.properties.a.type",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_the_client_raises_its_own_errors(
    client: anthropic.Anthropic, fields, error, kind: str, needle: str, stream: bool
) -> None:
    with pytest.raises(error, match=needle) as raised:
        client.messages.create(**{**ASKED, **fields}, stream=stream)
    assert raised.value.type == kind
    assert raised.value.request_id
    assert raised.value.body["request_id"] == raised.value.request_id


def test_errors_of_every_layer(exact: Server) -> None:
    asked = {"max_tokens": 1, "messages": QUESTION}
    replies = {
        "invalid_request_error": exact.post(MESSAGES, b"{nonsense"),
        "request_too_large": exact.post(MESSAGES, b"x" * (5 << 20)),
        "not_found_error": exact.post(f"{MESSAGES}/batches", asked),
        "permission_error": exact.post(MESSAGES, asked, headers={"origin": "http://evil"}),
    }
    replies["invalid_request_error, 405"] = exact.get(MESSAGES)
    replies["invalid_request_error, 421"] = exact.post(MESSAGES, asked, headers={"host": "evil"})
    for kind, reply in replies.items():
        assert reply.json["type"] == "error"
        assert reply.error["type"] == kind.split(",")[0], reply.json
        assert reply.error["message"]
        assert reply.json["request_id"] == reply.headers["request-id"]
    assert exact.post(MESSAGES, asked).headers["request-id"].startswith("req_")


def test_the_first_message_cannot_be_a_system_message(exact: Server) -> None:
    messages = [{"role": "system", "content": "Be short."}, *QUESTION]
    for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
        reply = exact.post(path, {"max_tokens": 1, "messages": messages})
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
        assert reply.error["message"].startswith("messages[0].role must be 'user' or 'assistant'")


def test_headers_and_query_of_beta_clients(exact: Server) -> None:
    headers = {
        "anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27",
        "x-api-key": "x",
    }  # fmt: skip
    asked = {"max_tokens": 1, "messages": QUESTION, "betas": ["x"], "context_management": {"edits": []}}
    for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
        assert exact.post(f"{path}?beta=true", asked, headers=headers).status == 200


def test_claude_codes_changing_header_is_left_out_of_the_prompt(exact: Server) -> None:
    def ask(version: str, checksum: str, text: str) -> Any:
        header = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli; cch={checksum};"
        system = [
            {"type": "text", "text": header},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Use the tools. " * 10, "cache_control": {"type": "ephemeral"}},
        ]
        blocks = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        reply = exact.post(
            f"{MESSAGES}?beta=true",
            {
                "model": NAME, "max_tokens": 1, "system": system, "tools": [LOOK, DONE],
                "messages": [{"role": "user", "content": blocks}, {"role": "system", "content": "No x."}],
                "metadata": {"user_id": "u"}, "stream": True, "temperature": 1,
                "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            },
            headers={"anthropic-beta": "claude-code-20250219"},
        )  # fmt: skip
        assert reply.status == 200, reply.body
        frames = reply.body.decode().split("\n\n")
        (last,) = (frame for frame in frames if frame.startswith("event: message_delta"))
        begun = json.loads(frames[0].split("\ndata: ")[1])["message"]["usage"]
        at_first = {name: begun[name] for name in ("input_tokens", "cache_read_input_tokens")}
        return json.loads(last.split("\ndata: ")[1])["usage"] | {"at_first": at_first}

    first = ask("2.1.37.0d9", "fa690", "hey")
    second = ask("2.1.37.1ab", "36ee5", "hey you")
    n = first["input_tokens"] + first["cache_read_input_tokens"]
    assert first["at_first"] == {name: first[name] for name in first["at_first"]}
    assert second["at_first"] == {name: second[name] for name in second["at_first"]}
    assert second["cache_read_input_tokens"] > n - 40
    assert second["input_tokens"] < 40


def test_models(client: anthropic.Anthropic) -> None:
    (only,) = client.models.list()
    assert (only.id, only.type) == (NAME, "model")
    assert client.models.retrieve(NAME).created_at == only.created_at


def test_earlier_calls_need_no_tools(client: anthropic.Anthropic) -> None:
    use = {"type": "tool_use", "id": "test123", "name": "look_up", "input": {"name": "zip"}}
    blocks = [
        {"type": "text", "text": "Here:"},
        {"type": "tool_result", "tool_use_id": "test123", "content": "x"},
    ]
    messages = [*QUESTION, {"role": "assistant", "content": [use]}, {"role": "user", "content": blocks}]
    answer = client.messages.create(**{**ASKED, "messages": messages}, stop_sequences=["\n"])
    assert [block.type for block in answer.content] == ["text"]


def test_the_beta_client_runs_tools(client: anthropic.Anthropic) -> None:
    asked: list[Any] = []

    @anthropic.beta_tool
    def look_up(name: Literal["zip", "open"], long: bool) -> str:
        """Documentation of a function."""
        asked.append((name, long))
        return "it is a function"

    runner = client.beta.messages.tool_runner(
        **{**ASKED, "max_tokens": 60},
        tools=[look_up],
        tool_choice={"type": "tool", "name": "look_up", "disable_parallel_tool_use": True},
        max_iterations=3,
    )
    answers = list(runner)
    assert [answer.stop_reason for answer in answers] == ["tool_use"] * 3
    assert len(asked) in (2, 3)
    with client.beta.messages.stream(**ASKED, betas=["context-management-2025-06-27"]) as stream:
        assert stream.get_final_message().content[0].text


@tool
def weigh(thing: Literal["zip", "open"], heavy: bool) -> str:
    """The weight of a thing."""
    return f"{thing} {heavy}"


@pytest.fixture(scope="module")
def chain(exact: Server) -> ChatAnthropic:
    return ChatAnthropic(model=NAME, base_url=exact.url, api_key="unused", max_tokens=60, max_retries=0)


def test_langchain_answers_and_streams(chain: ChatAnthropic) -> None:
    message = chain.invoke(QUESTION[0]["content"])
    assert message.content
    assert message.usage_metadata["output_tokens"] > 0
    chunks = list(chain.stream(QUESTION[0]["content"]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.usage_metadata["input_tokens"] == message.usage_metadata["input_tokens"]
    assert whole.usage_metadata["total_tokens"] == sum(
        whole.usage_metadata[name] for name in ("input_tokens", "output_tokens")
    )
    assert whole.response_metadata["stop_reason"] in ("end_turn", "max_tokens")


def test_langchain_calls_tools(chain: ChatAnthropic) -> None:
    longest = 90  # characters of a call, so that any of them fits, whatever its tokens are
    bound = chain.bind_tools(
        [weigh], tool_choice="weigh", parallel_tool_calls=False, strict=True, max_tokens=longest
    )
    messages: list[Any] = [HumanMessage(QUESTION[0]["content"])]
    for _ in range(3):
        answer = bound.invoke(messages)
        (call,) = answer.tool_calls
        assert call["name"] == "weigh"
        result = weigh.invoke(call)
        assert isinstance(result, ToolMessage)
        messages += [answer, result]
    streamed = None
    for chunk in bound.stream(messages[:1]):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert set(streamed.tool_calls[0]["args"]) == {"thing", "heavy"}
    assert (
        chain.bind_tools([weigh], tool_choice="any", strict=True, max_tokens=longest)
        .invoke(messages[:1])
        .tool_calls
    )


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_langchain_gets_structured_output(chain: ChatAnthropic, method) -> None:
    verdict = chain.with_structured_output(Verdict, method=method).invoke(QUESTION[0]["content"])
    assert isinstance(verdict, Verdict)
