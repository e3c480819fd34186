"""What stays an error of the client, in every API."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.server.dialects.shared.fields import FieldError
from tests.support.conversations import WRITERS, Answer, Call, Conversation, Result, Say
from tests.unit.server.dialects.test_conversations import asked

U = Say("user", "x")
CALL = Answer(calls=[Call("call_x")])
X = Result("call_x")
GOOD: dict[str, dict[str, Any]] = {
    api: write(Conversation("good", [U, CALL, X])) for api, write in WRITERS.items()
}
LIMIT = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}


def field(api: str) -> str:
    """Where the turns are."""
    return "input" if api == "responses" else "messages"


def turns(api: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = GOOD[api][field(api)]
    return messages


def with_turns(api: str, *messages: Any) -> dict[str, Any]:
    return {**GOOD[api], field(api): list(messages)}


def limited(api: str, value: Any) -> dict[str, Any]:
    if api == "ollama":
        return {**GOOD[api], "options": {"num_predict": value}}
    return {**GOOD[api], LIMIT[api]: value}


def schema(api: str, value: Any) -> dict[str, Any]:
    forms: dict[str, dict[str, Any]] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"schema": value}}},
        "responses": {"text": {"format": {"type": "json_schema", "schema": value}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": value}}},
        "ollama": {"format": value},
    }
    return {**GOOD[api], **forms[api]}


def tool(api: str, value: Any) -> dict[str, Any]:
    flat = {"name": "f", "parameters": value}
    forms: dict[str, dict[str, Any]] = {
        "chat": {"type": "function", "function": flat},
        "responses": {"type": "function", **flat},
        "messages": {"name": "f", "input_schema": value},
        "ollama": {"type": "function", "function": flat},
    }
    return {**GOOD[api], "tools": [forms[api]]}


ARGUMENTS = {
    "chat": "{}[1].tool_calls[0].function.arguments",
    "responses": "{}[1].arguments",
    "messages": "{}[1].content[0].input",
    "ollama": "{}[1].tool_calls[0].function.arguments",
}
TURNS: dict[str, tuple[Any, str]] = {  # messages, and the field that the error names
    "a message that is a text": (["hello"], "{}[0]"),
    "a content that is a number": ([{"role": "user", "content": 5}], "{}[0].content"),
    "a content that is an object": ([{"role": "user", "content": {"text": "x"}}], "{}[0].content"),
    "a part without a type": ([{"role": "user", "content": [{"text": "x"}]}], "{}[0].content[0].type"),
    "a part of a type that does not exist": (
        [{"role": "user", "content": [{"type": "magic", "text": "x"}]}], "{}[0].content[0].type"
    ),
    "a part whose text is a number": (
        [{"role": "user", "content": [{"type": "text", "text": 5}]}], "{}[0].content[0].text"
    ),
    "a role that does not exist": ([{"role": "robot", "content": "x"}], "{}[0].role"),
    "no role": ([{"content": "x"}], "{}[0].role"),
    "too many messages": ([{"role": "user", "content": "x"}] * 5000, "{}"),
    "too many parts": (
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * 5000}], "{}[0].content"
    ),
}  # fmt: skip
BAD = {
    "a conversation that is a number": lambda api: {**GOOD[api], field(api): 5},
    "a result without a call": lambda api: with_turns(api, turns(api)[0], turns(api)[-1]),
    "a result before its call": lambda api: with_turns(api, turns(api)[-1], *turns(api)[:-1]),
    "only an answer": lambda api: with_turns(
        api, {"role": "assistant", "content": "x"} if api != "responses" else {"type": "reasoning"}
    ),
    "4.5 tokens": lambda api: limited(api, 4.5),
    "tokens as a text": lambda api: limited(api, "4"),
    "true tokens": lambda api: limited(api, True),
    "a schema that is a text": lambda api: schema(api, "object"),
    "the schema of a tool that is a list": lambda api: tool(api, [1]),
    "the schema of a tool that is no object": lambda api: tool(api, {"type": "string"}),
    "stream as a text": lambda api: {**GOOD[api], "stream": "yes"},
    "a model that is a number": lambda api: {**GOOD[api], "model": 5},
}  # fmt: skip


@pytest.mark.parametrize("api", WRITERS)
def test_the_original_body_is_valid(api: str) -> None:
    assert len(asked(api, GOOD[api]).chat.messages or ()) == 3


@pytest.mark.parametrize("api", WRITERS)
@pytest.mark.parametrize("case", BAD)
def test_unreadable_conversations_are_errors(api: str, case: str) -> None:
    with pytest.raises(FieldError) as error:
        asked(api, BAD[case](api))
    assert error.value.http_status == 400
    assert error.value.details["param"]
    assert len(error.value.message) < 400


@pytest.mark.parametrize("api", WRITERS)
@pytest.mark.parametrize("case", TURNS)
def test_turns_that_cannot_be_read_are_named(api: str, case: str) -> None:
    messages, param = TURNS[case]
    with pytest.raises(FieldError) as error:
        asked(api, with_turns(api, *messages))
    assert error.value.details["param"] == param.format(field(api))
    assert len(error.value.message) < 400


@pytest.mark.parametrize("api", WRITERS)
@pytest.mark.parametrize("arguments", ["nonsense", "[1]"])
def test_arguments_that_are_no_object_are_named(api: str, arguments: str) -> None:
    calls = Conversation("", [U, Answer(calls=[Call("call_x", "f", arguments)]), X])
    with pytest.raises(FieldError) as error:
        asked(api, WRITERS[api](calls))
    assert error.value.details["param"] == ARGUMENTS[api].format(field(api))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: must have at least 1 item, not 0"),
        ({"messages": 5}, "messages: must be a valid list"),
        ({"messages": [5]}, "messages[0]: must be an object"),
        ({"messages": [{"role": "user", "content": 5}]},
         "messages[0].content: must be a valid string or a valid list"),
        ({"stop": 5}, "stop: must be a valid string or a valid list"),
        ({"model": "x" * 600}, "model: must have at most 512 characters"),
        ({"max_tokens": 2**40}, "max_tokens: must be less than 2147483648"),
        ({"max_tokens": 1e30}, "max_tokens: must be less than 2147483648"),
        ({"max_completion_tokens": 1e999}, "max_completion_tokens: must be less than 2147483648"),
        ({"seed": -1e999}, "seed: must be greater than or equal to -9223372036854775808"),
        ({"top_k": 2.0**70}, f"top_k must be a whole number from -1 to 2147483647, not {2**70}"),
        ({"temperature": 1e999}, "temperature: must be a finite number"),
        ({"think": 5}, "think: must be a valid boolean or a valid string"),
        ({"thinking": 5}, "thinking: must be a valid boolean or an object"),
        ({"tools": [{"type": "function"}]}, "tools[0].name is missing"),
        ({"user": 5, "stop": "\ud800"}, "stop: must be valid Unicode"),
    ],
)  # fmt: skip
def test_error_messages(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError) as error:
        asked("chat", {**GOOD["chat"], **fields})
    assert error.value.message == message
