"""The body of /v1/responses: what is accepted, ignored and refused, and the engine's request made of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from specllama.client import protocol
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.shared.fields import FieldError, checked
from tests.support.codex import codex_request
from tests.support.generations import text_only

USER = {"role": "user", "content": "x"}
FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}
INSIDE = {"type": "namespace", "name": "mcp__files"}
NAMESPACE: dict[str, Any] = INSIDE | {"description": "d", "tools": [FUNCTION | {"name": "read"}]}
READ = "mcp__files__read"
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "b"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "done"}


def read(input_: Any = "x", **fields: Any) -> ResponsesRequest:
    return checked(ResponsesRequest, {"input": input_, **fields})


def asked(input_: Any = "x", **fields: Any) -> protocol.Generate:
    return read(input_, **fields).generations({}, {})[0]


def messages(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    history = asked([*items], **fields).chat.messages
    assert history is not None
    return history


def called(name: str = "f", id_: str = "c1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": {"a": "b"}}}


class TestMessages:
    def test_a_text(self) -> None:
        assert asked("hello", instructions="be short").chat.messages == [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": "hello"},
        ]

    @pytest.mark.parametrize("type_", [{}, {"type": "message"}, {"type": None}])
    @pytest.mark.parametrize(
        ("role", "shown"),
        [("user", "user"), ("assistant", "assistant"), ("system", "system"), ("developer", "system")],
    )
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("a", "a"),
            ("", ""),
            ([], ""),
            (None, ""),
            ([{"type": "input_text", "text": "a"}], "a"),
            ([{"type": "output_text", "text": "a", "annotations": [], "logprobs": None}], "a"),
            ([{"type": "refusal", "refusal": "a"}], "a"),
            ([{"type": "input_text", "text": "a"}, {"type": "text", "text": "b", "x": 1}], "a\nb"),
        ],
    )
    def test_messages(self, type_, role, shown, content, text) -> None:
        item = {**type_, "role": role, "content": content, "id": "msg_1", "status": "completed", "phase": "x"}
        text = text.replace("\n", "") if role == "assistant" else text  # it was one
        assert messages(item, USER)[0] == {"role": shown, "content": text}

    def test_system_messages_keep_their_position(self) -> None:
        """calls/history.py joins and marks them where the template shows no such messages."""
        developer, shown = {"role": "developer", "content": "b"}, {"role": "system", "content": "b"}
        history = messages(developer, USER, developer, instructions="a")
        assert history == [{"role": "system", "content": "a"}, shown, USER, shown]

    def test_calls_that_follow_each_other_are_one_turn(self) -> None:
        second = CALL | {"call_id": "c2", "id": "fc_2", "status": "completed"}
        results = [RESULT, RESULT | {"call_id": "c2", "output": [{"type": "input_text", "text": "two"}]}]
        assert messages(USER, CALL, second, *results)[1:] == [
            {"role": "assistant", "content": "", "tool_calls": [called(), called(id_="c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "done", "name": "f"},
            {"role": "tool", "tool_call_id": "c2", "content": "two", "name": "f"},
        ]

    def test_reasoning_text_and_calls_are_one_turn(self) -> None:
        reasoning = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": None,
            "encrypted_content": "x",
        }
        thought = reasoning | {"content": [{"type": "reasoning_text", "text": "hm"}]}
        said = {"type": "message", "role": "assistant", "content": "so"}
        (turn,) = messages(USER, thought, said, CALL, said)[1:]
        assert turn == {
            "role": "assistant", "content": "so\nso", "reasoning_content": "hm", "tool_calls": [called()]
        }  # fmt: skip
        first, second = messages(USER, thought, said, thought, CALL)[1:]
        assert (first["content"], second["reasoning_content"]) == ("so", "hm")
        assert [m["role"] for m in messages(USER, said, said)] == ["user", "assistant", "assistant"]

    @pytest.mark.parametrize(
        ("content", "summary", "encrypted", "with_id"),
        [
            *itertools.product(
                [..., None, [], [{"type": "reasoning_text", "text": "c"}], [{"type": "text", "text": ""}]],
                [..., None, [], [{"type": "summary_text", "text": "s"}]],
                [..., None, "secret"],
                [True, False],
            )
        ],
    )
    def test_reasoning_in_every_combination(self, content, summary, encrypted, with_id) -> None:
        fields = {"content": content, "summary": summary, "encrypted_content": encrypted}
        item: dict[str, Any] = {"type": "reasoning"} | {k: v for k, v in fields.items() if v is not ...}
        history = messages(USER, item | ({"id": "rs_1"} if with_id else {}), CALL, RESULT)
        texts = [part["text"] for parts in (content, summary) if parts not in (..., None) for part in parts]
        expected = next((text for text in texts if text), None)
        assert history[1].get("reasoning_content") == expected
        assert [message["role"] for message in history] == ["user", "assistant", "tool"]

    def test_an_incomplete_call_that_cannot_be_read_is_left_out(self) -> None:
        cut = CALL | {"arguments": "nonsense", "status": "incomplete"}
        assert messages(USER, cut, RESULT) == [{"role": "user", "content": "x"}]
        assert read([USER, cut, RESULT]).turns.note == "left out of the conversation: 1 'function_call'"

    @pytest.mark.parametrize("arguments", ["", "{}", " {} ", None])
    def test_calls_without_arguments(self, arguments) -> None:
        (turn,) = messages(USER, CALL | {"arguments": arguments})[1:]
        assert turn["tool_calls"][0]["function"]["arguments"] == {}

    def test_calls_in_a_namespace_have_flat_names(self) -> None:
        history = messages(USER, CALL | {"name": "read", "namespace": "mcp__files"}, RESULT)
        assert history[1]["tool_calls"][0]["function"]["name"] == "mcp__files__read" == history[2]["name"]


class TestTools:
    def test_flat_tools(self) -> None:
        tools = asked(
            tools=[FUNCTION, {"type": "function", "name": "g", "strict": True, "parameters": None}]
        ).chat.tools
        assert tools is not None
        assert [(tool.name, tool.description, tool.strict) for tool in tools.tools] == [
            ("f", "d", False), ("g", "", True)
        ]  # fmt: skip
        assert tools.tools[1].parameters == {}
        assert (tools.choice, tools.names, tools.parallel) == ("auto", (), True)

    @pytest.mark.parametrize(
        ("choice", "kind", "names"),
        [
            ({"type": "function", "name": "read"}, "required", [READ]),
            ({"type": "function", "name": "read", "namespace": "mcp__files"}, "required", [READ]),
            ({"type": "function", "name": "mcp__files__read"}, "required", [READ]),
            (
                {"type": "allowed_tools", "mode": "required", "tools": [INSIDE]},
                "required",
                [READ],
            ),
            ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "none", []),
        ],
    )  # fmt: skip
    def test_choices(self, choice, kind, names) -> None:
        tools = asked(tools=[FUNCTION, NAMESPACE], tool_choice=choice, parallel_tool_calls=False).chat.tools
        assert tools is not None
        assert (tools.choice, [*tools.names], tools.parallel) == (kind, names, False)
        assert len(tools.tools) == 2

    def test_hosted_tools_are_left_out(self) -> None:
        hosted = [{"type": t} for t in ("web_search", "image_generation", "custom", "mcp", "local_shell")]
        inside = NAMESPACE | {"tools": [*NAMESPACE["tools"], {"type": "custom", "name": "patch"}]}
        body = read(tools=[*hosted, FUNCTION, inside])
        assert body.request_tools.dropped == [*(tool["type"] for tool in hosted), "custom"]
        tools = body.generations({}, {})[0].chat.tools
        assert tools is not None
        assert [tool.name for tool in tools.tools] == ["f", "mcp__files__read"]
        assert asked(tools=hosted, tool_choice="none").chat.tools is None

    def test_a_namespace_that_ends_in_an_underscore_gets_no_other(self) -> None:
        tools = asked(tools=[NAMESPACE | {"name": "a__"}]).chat.tools
        assert tools is not None
        assert tools.tools[0].name == "a__read"


class TestFields:
    @pytest.mark.parametrize(
        ("fields", "params"),
        [
            ({"max_output_tokens": 5}, {"max_tokens": 5}),
            ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}),
            ({"top_logprobs": 3}, {"logprobs": 3}),
            ({"include": ["message.output_text.logprobs"]}, {"logprobs": 0}),
            ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": 2}),
            ({"top_logprobs": 0, "include": ["reasoning.encrypted_content"]}, {}),
            ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
            ({"seed": 7, "stop": ["a"], "top_k": 4}, {"seed": 7, "stop": ["a"], "top_k": 4}),
        ],
    )  # fmt: skip
    def test_fields_become_parameters(self, fields, params) -> None:
        assert asked(**fields).params == params

    def test_the_servers_defaults_and_variables(self) -> None:
        body = read(
            reasoning={"effort": "low", "summary": "auto"}, temperature=1, chat_template_kwargs={"a": 1}
        )
        generation = body.generations({"temperature": 0, "top_k": 3}, {"enable_thinking": False})[0]
        assert generation.params == {"temperature": 1, "top_k": 3}
        assert generation.chat.variables == {"enable_thinking": False, "reasoning_effort": "low", "a": 1}
        off = read(reasoning={"effort": "none"}).generations({}, {"enable_thinking": True})[0].chat.variables
        assert off == {"enable_thinking": False, "reasoning_effort": "none"}
        assert read(speculation={"enabled": False, "max": 3}).generations({}, {})[0].draft_max == 3

    @pytest.mark.parametrize(
        "fields",
        [
            {"store": True},
            {"store": False, "user": "u", "service_tier": "auto", "safety_identifier": "s"},
            {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "implicit"}},
            {"prompt_cache_retention": "24h", "client_metadata": {"a": "b"}, "max_tool_calls": 3},
            {"truncation": "auto"},
            {"truncation": "disabled"},
            {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
            {"text": {"format": None}},
            {"moderation": {"model": "x"}},
            {"stream_options": {"include_obfuscation": False}},
            {"metadata": {"a": "b"}},
            {"background": False, "context_management": []},
            {
                "previous_response_id": None, "conversation": None, "prompt": None, "background": None,
                "instructions": None, "reasoning": None, "tools": None, "tool_choice": None, "text": None,
                "metadata": None, "include": None, "parallel_tool_calls": None, "max_output_tokens": None,
            },
            {"reasoning": {"effort": None, "summary": "detailed", "context": "auto", "mode": "standard"}},
        ],
    )  # fmt: skip
    def test_fields_without_effect(self, fields) -> None:
        plain = asked()
        sent = asked(**fields)
        assert (sent.chat.messages, sent.params, sent.chat.variables, sent.chat.tools) == (
            plain.chat.messages, plain.params, plain.chat.variables, plain.chat.tools
        )  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored"),
    ({"conversation": "conv_1"}, "conversation", "not stored"),
    ({"conversation": {"id": "conv_1"}}, "conversation", "not stored"),
    ({"background": True}, "background", "stream"),
    ({"prompt": {"id": "pmpt_1"}, "input": None}, "prompt", "instructions"),
    ({"context_management": [{"type": "compaction"}]}, "context_management", "compacted"),
    ({"input": None}, "input", "missing"),
    ({"input": []}, "input", "nothing to answer"),
    ({"input": [{"type": "reasoning"}]}, "input", "nothing to answer"),
    ({"input": 1}, "input", "must be"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "not held"),
    ({"input": [USER, {"id": "msg_1"}]}, "input[1]", "not held"),
    ({"input": [USER, {"type": "magic", "id": "m_1"}]}, "input[1]", "function_call_output"),
    ({"input": [{"type": "computer_call_output", "output": {"a": 1}}]}, "input[0]", "calls a tool"),
    ({"input": [USER, {"type": "web_search_call", "id": "ws_1"}, RESULT]}, "input[2].call_id", "no message"),
    ({"input": [{"type": 1}]}, "input[0]", "must be one of"),
    ({"input": [{"role": "user", **{f"a{i}": 1 for i in range(256)}}]}, "input[0]", "at most 256 fields"),
    ({"input": [{}]}, "input[0].role", "missing"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "assistant"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]},
        "input[0].content[0]",
        "could not process image",
    ),
    (
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_file"}]}
            ]
        },
        "input[0].content[1].type",
        "could not process",
    ),
    ({"input": [USER, {**CALL, "arguments": '{"a" 1'}]}, "input[1].arguments", "not JSON"),
    ({"input": [USER, {**CALL, "arguments": "[1]"}]}, "input[1].arguments", "object"),
    ({"input": [USER, {**CALL, "name": ""}]}, "input[1].name", "missing"),
    ({"input": [USER, {**RESULT, "call_id": None}]}, "input[1]", "calls a tool"),
    ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name", "missing"),
    ({"tools": [NAMESPACE, {**FUNCTION, "name": "mcp__files__read"}]}, "tools[1]", "already"),
    (
        {"tools": [{**NAMESPACE, "tools": [{"type": "function"}]}]},
        "tools[0].tools[0].name",
        "missing",
    ),
    ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice", "web_search"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools", "web_search"),
    (
        {
            "tools": [FUNCTION],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
        },
        "tool_choice",
        "no function",
    ),
    ({"tools": [FUNCTION], "json_schema": {}}, "json_schema", "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "missing"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "json_schema"),
    ({"text": {"format": {"type": "json_object"}}, "grammar": 'root ::= "a"'}, "text", "grammar"),
    ({"max_output_tokens": 0}, "max_output_tokens", "1"),
    ({"truncation": "middle"}, "truncation", "disabled"),
    ({"n": 2}, "n", "1"),
    ({"messages": [USER]}, "messages", "not supported"),
]


@pytest.mark.parametrize(("fields", "param", "needle"), REFUSED, ids=[f"{p}-{n}" for _, p, n in REFUSED])
def test_refusals(fields: dict[str, Any], param: str, needle: str) -> None:
    with pytest.raises(FieldError, match=needle) as caught:
        text_only(checked(ResponsesRequest, {"input": "x", **fields})).generations({}, {})[0]
    assert caught.value.details["param"] == param


def test_a_first_request_of_codex() -> None:
    generation = checked(ResponsesRequest, codex_request("m")).generations({}, {})[0]
    assert generation.chat.messages == [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "system", "content": "<skills_instructions>\n<permissions instructions>"},
        {"role": "user", "content": "<environment_context>"},
        {"role": "user", "content": "list the files"},
    ]
    assert generation.chat.tools is not None
    assert [tool.name for tool in generation.chat.tools.tools] == [
        "exec_command",
        "update_plan",
        "mcp__files__read",
    ]
