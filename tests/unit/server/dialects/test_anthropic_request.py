"""What Anthropic's requests become, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from specllama.calls.tools import Tool, Tools
from specllama.client import protocol
from specllama.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    DeadlineError,
    EngineDiedError,
    NotFoundError,
    SpecllamaError,
    UsageError,
)
from specllama.server.app import ERRORS
from specllama.server.dialects.anthropic import CountRequest, MessagesRequest, error_body
from specllama.server.dialects.shared.fields import FieldError, checked
from specllama.server.http.errors import HttpError
from tests.support.generations import text_only

ASKED: dict[str, Any] = {"role": "user", "content": "What?"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read", "description": "Read a file", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
USE = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}


def request(*messages: dict[str, Any], **fields: Any) -> protocol.Generate:
    body = {"max_tokens": 5, "messages": list(messages) or [ASKED], **fields}
    return text_only(checked(MessagesRequest, body)).generations({}, {})[0]


def result(content: Any = None, **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}
    return {k: v for k, v in block.items() if v is not None}


def refused(body: dict[str, Any], model: Any = MessagesRequest) -> str:
    def read() -> None:
        read_body = text_only(checked(model, body))
        read_body.generations({}, {})[0] if model is MessagesRequest else read_body.chat_input({})

    with pytest.raises(FieldError) as error:
        read()
    return error.value.message


def allowed(**fields: Any) -> dict[str, Any]:
    """The tools of a request as a dict."""
    fields_of_tools = asdict(request(**fields).chat.tools)
    return fields_of_tools | {"names": list(fields_of_tools["names"])}


def tools(*tools: Tool, **fields: Any) -> dict[str, Any]:
    return asdict(Tools(list(tools), **fields)) | {"names": list(fields.get("names", ()))}


class TestMessages:
    @pytest.mark.parametrize(
        ("system", "text"),
        [
            ("Be short.", "Be short."),
            ([{"type": "text", "text": "Be"}, {"type": "text", "text": "short."}], "Be\nshort."),
            ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "a"),
            ("x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;", ""),
            (
                "x-anthropic-billing-header: cc_version=2.1; cch=a5145;You are Claude Code.",
                "You are Claude Code.",
            ),
            (
                "x-anthropic-billing-header: cc_version=2.1; cch=a5145\nYou are Claude Code.",
                "You are Claude Code.",
            ),
            ("x-anthropic-billing-header: a=b c; d=e; f=g; not this", "not this"),
            ("Say x-anthropic-billing-header: cch=1;", "Say x-anthropic-billing-header: cch=1;"),
            ("", ""),
            ([], ""),
        ],
    )
    def test_the_system_prompt(self, system, text) -> None:
        history = request(system=system).chat.messages
        assert history == [*([{"role": "system", "content": text}] if text else []), ASKED]

    def test_a_block_with_only_the_header_is_dropped(self) -> None:
        header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.9; cch=fa690;"}
        rest = [{"type": "text", "text": "You are"}, {"type": "text", "text": "Claude."}]
        assert request(system=[header, *rest]).chat.messages == request(system=rest).chat.messages

    @pytest.mark.parametrize(
        ("block", "text"),
        [
            (result("12"), "12"),
            (result([{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]), "1\n2"),
            (result([]), ""),
            (result(), ""),
            (result("no such file", is_error=True), "Error: no such file"),
            (result("Error: gone", is_error=True), "Error: gone"),
            (result(is_error=True), "Error"),
            (result("fine", is_error=False), "fine"),
        ],
    )
    def test_results(self, block, text) -> None:
        generation = request(
            ASKED, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [block]}
        )
        function = {"name": "read", "arguments": {"path": "a"}}
        call = {"id": "toolu_1", "type": "function", "function": function}
        assert generation.chat.messages == [
            ASKED,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": text, "name": "read"},
        ]

    def test_results_come_before_the_text_of_their_turn(self) -> None:
        blocks = [{"type": "text", "text": "See:"}, result("1"), {"type": "text", "text": "and"}, result("2")]
        generation = request(
            ASKED, {"role": "assistant", "content": [USE]}, {"role": "user", "content": blocks}
        )
        assert generation.chat.messages is not None
        assert [(m["role"], m["content"]) for m in generation.chat.messages[2:]] == [
            ("tool", "1"), ("tool", "2"), ("user", "See:\nand"),
        ]  # fmt: skip

    def test_thinking_is_the_reasoning_of_its_turn(self) -> None:
        blocks = [
            {"type": "thinking", "thinking": "So ", "signature": "x"},
            {"type": "redacted_thinking", "data": "abc"},
            {"type": "thinking", "thinking": "be it."},
            {"type": "text", "text": "Yes"},
            {"type": "text", "text": ".", "citations": None},
        ]
        history = request(ASKED, {"role": "assistant", "content": blocks}, ASKED).chat.messages
        assert history == [
            ASKED,
            {"role": "assistant", "content": "Yes.", "reasoning_content": "So be it."},
            ASKED,
        ]

    def test_consecutive_turns_of_one_role_are_not_merged(self) -> None:
        """calls/history.py joins them where the template demands that."""
        said = {"role": "assistant", "content": "b"}
        thought = {"type": "thinking", "thinking": "t"}
        used = {"role": "assistant", "content": [thought, {"type": "text", "text": "c"}, USE]}
        history = request(ASKED, ASKED, said, used, {"role": "user", "content": [result("1")]}).chat.messages
        assert history is not None
        assert history[:3] == [ASKED, ASKED, said]
        assert (history[3]["content"], history[3]["reasoning_content"]) == ("c", "t")
        assert [call["id"] for call in history[3]["tool_calls"]] == ["toolu_1"]
        assert len(history) == 5

    def test_instructions_between_turns_stay_system_messages(self) -> None:
        """As Claude Code 2.1.197 sends them; calls/history.py marks them where the template shows none."""
        text = [{"type": "text", "text": "Agents: none"}]
        body = {"max_tokens": 1, "messages": [ASKED, {"role": "system", "content": text}]}
        read = checked(MessagesRequest, body)
        assert read.chat_input({}).messages == [ASKED, {"role": "system", "content": "Agents: none"}]
        read.check_roles("claude-code-20250219")

    def test_a_system_message_first_needs_a_beta(self) -> None:
        first = checked(MessagesRequest, {"max_tokens": 1, "messages": [{"role": "system", "content": "a"}]})
        first.check_roles("claude-code-20250219,mid-conversation-tool-changes-2026-07-01")
        with pytest.raises(FieldError, match=r"messages\[0\].role must be 'user' or 'assistant'"):
            first.check_roles("claude-code-20250219")

    def test_tools_found_by_a_search_are_named(self) -> None:
        """What Claude Code's search for tools returns."""
        searched = result([{"type": "tool_reference", "tool_name": "Monitor"}])
        used = {"role": "assistant", "content": [USE]}
        messages = request(ASKED, used, {"role": "user", "content": [searched]}).chat.messages
        assert messages is not None
        assert messages[-1]["content"] == "The tool Monitor can be called now."

    def test_a_last_turn_of_the_assistant_is_continued(self) -> None:
        blocks = [{"type": "text", "text": "It "}, {"type": "text", "text": "is "}]
        for content in ("It is ", blocks):
            generation = request(ASKED, {"role": "assistant", "content": content})
            assert (generation.chat.messages, generation.chat.prefix) == ([ASKED], "It is ")
        assert request(ASKED).chat.prefix == ""

    @pytest.mark.parametrize(
        ("messages", "needle"),
        [
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "tool", "content": "x"}], "messages[0].role"),
            (
                [{"role": "system", "content": [result("x")]}],
                "messages[0].content[0].type must be one of text",
            ),
            (
                [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "x"}}]}],
                "messages[0].content[0].image: could not process image: ",
            ),
            (
                [{"role": "user", "content": [{"type": "document", "source": {}}]}],
                "messages[0].content[0].document: could not process file: only texts and images",
            ),
            ([{"role": "user", "content": [USE]}], "messages[0].content[0].type must be one of text"),
            ([{"role": "user", "content": [result("1")]}], "tool_use_id: no message before it has a call"),
            (
                [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}],
                "messages[0].content[0]: no message before it calls a tool",
            ),
            ([ASKED, {"role": "assistant", "content": [result("1")]}, ASKED], "messages[1].content[0].type"),
            (
                [ASKED, {"role": "assistant", "content": [{**USE, "name": ""}]}, ASKED],
                "messages[1].content[0].name is missing",
            ),
            ([ASKED, {"role": "assistant", "content": [USE]}], "the last message have no results"),
        ],
    )
    def test_messages_that_cannot_be_used(self, messages, needle) -> None:
        for model in (MessagesRequest, CountRequest):
            assert needle in refused({"max_tokens": 5, "messages": messages}, model)


class TestTools:
    def test_fields_without_meaning_here(self) -> None:
        tool = {**READ, "type": "custom", "cache_control": {"type": "ephemeral"}, "defer_loading": True}
        assert allowed(tools=[tool]) == allowed(tools=[READ])
        assert allowed(tools=[{**READ, "strict": True}]) == tools(
            Tool("read", "Read a file", SCHEMA, strict=True)
        )

    def test_tools_of_the_server_are_left_out(self) -> None:
        body = checked(MessagesRequest, {"max_tokens": 1, "messages": [ASKED], "tools": [SEARCH, READ]})
        assert body.request_tools.dropped == ["web_search_20250305"]
        assert body.generations({}, {})[0].chat.tools == request(tools=[READ]).chat.tools

    @pytest.mark.parametrize(
        ("fields", "needle"),
        [
            ({"tools": [{"input_schema": {}}]}, "tools[0].name is missing"),
            ({"tools": [{"name": "f", "input_schema": {"enum": ["x" * 70_000]}}]}, "65536"),
            ({"tools": [{"name": f"f{i}"} for i in range(2000)]}, "tools: must have at most 1024 items"),
            ({"tools": [SEARCH]}, "tools: those of the type web_search_20250305 do not run here"),
            ({"tools": [SEARCH, READ], "tool_choice": {"type": "tool", "name": "web_search"}}, "no tool"),
        ],
    )
    def test_tools_that_cannot_be_used(self, fields, needle) -> None:
        for model in (MessagesRequest, CountRequest):
            assert needle in refused({"max_tokens": 5, "messages": [ASKED], **fields}, model)


class TestParameters:
    def test_sampling(self) -> None:
        generation = request(
            temperature=1, top_p=0.9, top_k=5, stop_sequences=["END"], min_p=0.1, seed=3,
            speculation={"enabled": False, "max": 2},
        )  # fmt: skip
        assert generation.params == {
            "max_tokens": 5, "temperature": 1, "top_p": 0.9, "top_k": 5, "stop": ["END"], "min_p": 0.1,
            "seed": 3,
        }  # fmt: skip
        assert (generation.speculate, generation.draft_max) == (False, 2)

    def test_the_servers_settings_are_defaults(self) -> None:
        body = checked(MessagesRequest, {"max_tokens": 5, "messages": [ASKED], "top_k": 1})
        generation = body.generations({"top_k": 3, "min_p": 0.2}, {"x": 1})[0]
        assert generation.params == {"max_tokens": 5, "top_k": 1, "min_p": 0.2}
        assert generation.chat.variables == {"x": 1, "enable_thinking": False}

    @pytest.mark.parametrize(
        "fields",
        [
            {"metadata": {"user_id": "u"}},
            {"service_tier": "auto"},
            {"betas": ["x"]},
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            {"container": None},
            {"inference_geo": "us"},
            {"speed": "fast"},
            {"diagnostics": {"a": 1}},
            {"cache_control": {"type": "ephemeral"}},
            {"nonsense": [1]},
            {"output_config": {"effort": None, "task_budget": 5}},
            {"tools": None, "tool_choice": None, "stop_sequences": None, "top_k": None, "thinking": None},
        ],
    )
    def test_fields_without_an_effect(self, fields) -> None:
        assert request(**fields) == request()

    @pytest.mark.parametrize(
        ("thinking", "server", "variables"),
        [
            (None, {}, {"enable_thinking": False}),
            (None, {"enable_thinking": True}, {"enable_thinking": True}),
            ({"type": "disabled"}, {"enable_thinking": True}, {"enable_thinking": False}),
            (
                {"type": "enabled", "budget_tokens": 2000},
                {"enable_thinking": False},
                {"enable_thinking": True},
            ),
            ({"type": "adaptive", "display": "omitted"}, {}, {"enable_thinking": True}),
        ],
    )
    def test_thinking(self, thinking, server, variables) -> None:
        body = {"max_tokens": 5, "messages": [ASKED], "thinking": thinking}
        assert checked(MessagesRequest, body).generations({}, server)[0].chat.variables == variables
        body["messages"] = [ASKED, {"role": "assistant", "content": "It"}]
        assert checked(MessagesRequest, body).generations({}, server)[0].chat.variables == {
            "enable_thinking": False
        }

    @pytest.mark.parametrize(("effort", "shown"), [("low", "low"), ("high", "high"), ("max", "high")])
    def test_effort(self, effort: str, shown: str) -> None:
        assert request(output_config={"effort": effort}).chat.variables["reasoning_effort"] == shown

    def test_variables_of_the_template(self) -> None:
        template_variables = request(chat_template_kwargs={"enable_thinking": True, "x": 1}).chat.variables
        assert template_variables == {"enable_thinking": True, "x": 1}

    @pytest.mark.parametrize(
        ("fields", "needle"),
        [
            ({"max_tokens": None}, "max_tokens is missing"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"max_tokens": "5"}, "max_tokens"),
            ({"stop_sequences": "x"}, "stop_sequences"),
            ({"n": 2}, "n"),
            ({"system": 5}, "system"),
            ({"system": [{"type": "tool_use"}]}, "system[0].type must be one of text"),
            ({"thinking": {"type": "on"}}, "thinking.type"),
            ({"thinking": 1}, "thinking"),
            ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
            ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type"),
            (
                {"output_config": {"format": {"type": "json_schema"}}},
                "output_config.format.schema is missing",
            ),
            (
                {"output_config": {"format": {"type": "json_schema", "schema": {}}}, "grammar": "x"},
                "output_config.format.schema and grammar are both given",
            ),
            ({"tools": [READ], "grammar": "x"}, "tools and grammar"),
            ({"input": "x"}, "input is not supported"),
            ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
            ({"thread": {"type": "create"}}, "thread: no conversation is kept here"),
            ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
        ],
    )
    def test_fields_that_cannot_be_used(self, fields, needle) -> None:
        assert needle in refused({"max_tokens": 5, "messages": [ASKED], **fields})

    def test_a_count_needs_no_max_tokens(self) -> None:
        chat = checked(CountRequest, {"messages": [ASKED], "tools": [READ], "system": "x"}).chat_input({})
        assert chat.messages == [{"role": "system", "content": "x"}, ASKED]
        assert chat.tools is not None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("no"), "invalid_request_error"),
        (AccessError("no"), "authentication_error"),
        (HttpError(403, "no"), "permission_error"),
        (NotFoundError("no"), "not_found_error"),
        (HttpError(405, "no"), "invalid_request_error"),
        (HttpError(408, "no"), "timeout_error"),
        (HttpError(413, "no"), "request_too_large"),
        (BusyError("no"), "rate_limit_error"),
        (SpecllamaError("no"), "api_error"),
        (EngineDiedError("no"), "overloaded_error"),
        (DeadlineError("no"), "timeout_error"),
    ],
)
def test_errors(error: SpecllamaError, kind: str) -> None:
    error_json = error_body(error, "req_1")
    assert error_json == {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": "req_1"}


def test_a_prompt_that_is_too_long_is_named_as_claude_code_expects() -> None:
    details = {"n_prompt_tokens": 5000, "n_ctx": 4096}
    error_json = error_body(ContextLengthError("long", details=details), "")["error"]
    assert error_json["message"] == "prompt is too long: 5000 tokens > 4096 maximum; long"
    assert error_body(ContextLengthError("long"), "")["error"]["message"] == "prompt is too long: long"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"])
@pytest.mark.parametrize(
    ("error", "status", "kind", "header"),
    [
        (AccessError("no"), 401, "authentication_error", "www-authenticate"),
        (HttpError(405, "no", details={"allow": "POST"}), 405, "invalid_request_error", "allow"),
        (HttpError(413, "no"), 413, "request_too_large", "connection"),
        (BusyError("no", details={"retry_after": 7}), 429, "rate_limit_error", "retry-after"),
        (EngineDiedError("no"), 503, "overloaded_error", "retry-after"),
    ],
)
def test_errors_of_the_path(path: str, error: SpecllamaError, status: int, kind: str, header: str) -> None:
    """As the middleware, the router and the limits on connections write them."""
    response = ERRORS.response(error, path, "req_1")
    assert (response.status_code, json.loads(response.body)["error"]["type"]) == (status, kind)
    assert header in response.headers
