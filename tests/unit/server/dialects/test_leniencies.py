"""What one API is lenient with, all are: each input in the form of any of them gives the same request to the
engine in every API.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from specllama.calls.tools import Tool, Tools
from specllama.client import protocol
from specllama.server.dialects.shared.chat_fields import ThinkingFields
from specllama.server.dialects.shared.fields import FieldError, checked
from specllama.server.http.body import parse
from tests.unit.server.dialects.test_field_policy import ALL, CHATS, SCHEMA, asked, body

every = pytest.mark.parametrize("api", ALL)
chats = pytest.mark.parametrize("api", CHATS)
U = {"role": "user", "content": "x"}


def conversation(
    api: str, outputs: list[Any], calls: tuple[Any, ...] = ("c1",), results: tuple[Any, ...] = ("c1",)
) -> dict[str, Any]:
    """A conversation with calls of f, g … with these ids, and results with these ids and outputs; an id that
    is ... is absent.
    """

    def with_id(field: str, id_: Any, **fields: Any) -> dict[str, Any]:
        return fields if id_ is ... else {field: id_, **fields}

    names, pairs = "fgh"[: len(calls)], list(zip(results, outputs, strict=True))
    if api == "responses":
        made = [
            with_id("call_id", id_, type="function_call", name=name, arguments="{}")
            for id_, name in zip(calls, names, strict=True)
        ]
        answered = [
            with_id("call_id", id_, type="function_call_output", output=output) for id_, output in pairs
        ]
        return {"input": [U, *made, *answered]}
    if api == "messages":
        uses = [
            with_id("id", id_, type="tool_use", name=name, input={})
            for id_, name in zip(calls, names, strict=True)
        ]
        blocks = [with_id("tool_use_id", id_, type="tool_result", content=output) for id_, output in pairs]
        return {"messages": [U, {"role": "assistant", "content": uses}, {"role": "user", "content": blocks}]}
    functions = [
        with_id("id", id_, type="function", function={"name": name, "arguments": {}})
        for id_, name in zip(calls, names, strict=True)
    ]
    said = [with_id("tool_call_id", id_, role="tool", content=output) for id_, output in pairs]
    return {"messages": [U, {"role": "assistant", "content": "", "tool_calls": functions}, *said]}


def results_in(api: str, sent: dict[str, Any]) -> list[tuple[str, str]]:
    """The results that the engine gets, and the tools that they are of."""
    chat = asked(api, **parse(json.dumps(sent).encode())).chat
    assert chat is not None
    return [(m["name"], m["content"]) for m in chat.messages or () if m["role"] == "tool"]


ROWS = [{"id": 1, "type": "row"}, {"id": 2, "type": "file", "name": "a"}]
OUTPUTS: dict[str, tuple[Any, str]] = {
    "a text": ("ten", "ten"),
    "null": (None, ""),
    "no part": ([], ""),
    "an object": ({"temperature": 10, "é": None}, '{"temperature": 10, "é": null}'),
    "an empty object": ({}, "{}"),
    "a list of objects": (ROWS, json.dumps(ROWS)),
    "a list of texts": (["a", "b"], '["a", "b"]'),
    "a list of numbers": ([1, 2.5], "[1, 2.5]"),
    "a number": (10, "10"),
    "a truth value": (False, "false"),
    "one part": ({"type": "text", "text": "ten"}, "ten"),
    "a part without a text": ([{"type": "text", "value": 3}], '[{"type": "text", "value": 3}]'),
    "a part and an object": ([{"type": "text", "text": "ten"}, {"a": 1}], 'ten\n{"a": 1}'),
    "an object with an output": ({"stdout": "x", "exit_code": 1}, '{"stdout": "x", "exit_code": 1}'),
    "half a character": ("abc \ud83d", "abc \ufffd"),
    "half a character in an object": ({"\udc00": ["\ud83d"]}, '{"\ufffd": ["\ufffd"]}'),
}


@chats
@pytest.mark.parametrize("kind", OUTPUTS)
def test_results_of_tools(api: str, kind: str) -> None:
    sent, shown = OUTPUTS[kind]
    assert results_in(api, conversation(api, [sent])) == [("f", shown)]
    assert body(api, **parse(json.dumps(conversation(api, [sent])).encode())).ignored_fields == ()


IDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "of both": (("a", "b"), ("a", "b")),
    "the other way round": (("a", "b"), ("b", "a")),
    "absent": ((..., ...), (..., ...)),
    "null": ((None, None), (None, None)),
    "empty": (("", ""), ("", "")),
    "of the calls only": (("a", "b"), (None, "")),
    "of the results only": ((None, ...), ("a", "b")),
    "of some": (("a", None), (None, "a")),
}


@chats
@pytest.mark.parametrize("kind", IDS)
def test_ids_of_calls_and_their_results(api: str, kind: str) -> None:
    calls, results = IDS[kind]
    outputs = ["2", "1"] if kind in ("the other way round", "of some") else ["1", "2"]
    assert results_in(api, conversation(api, list(outputs), calls, results)) == [("f", "1"), ("g", "2")]


@chats
def test_a_result_without_a_call_is_an_error(api: str) -> None:
    for id_, calls in ((None, ()), ("x", ()), ("x", ("a",))):
        with pytest.raises(FieldError, match="no message before it"):
            asked(api, **conversation(api, ["1"], calls, (id_,)))


F = Tool("f", "what", {"type": "object", "properties": {"a": {"type": "integer"}}})
NAMED = {"name": "f", "description": "what"}
TOOLS: dict[str, Any] = {
    "nested": {"type": "function", "function": {**NAMED, "parameters": SCHEMA}},
    "nested without a type": {"function": {**NAMED, "parameters": SCHEMA}},
    "flat": {"type": "function", **NAMED, "parameters": SCHEMA},
    "flat without a type": {**NAMED, "parameters": SCHEMA},
    "of messages": {**NAMED, "input_schema": SCHEMA},
    "of messages with its type": {"type": "custom", **NAMED, "input_schema": SCHEMA},
    "of messages, as a function": {"type": "function", **NAMED, "input_schema": SCHEMA},
    "nested, of messages": {"type": "function", "function": {**NAMED, "input_schema": SCHEMA}},
}


@chats
@pytest.mark.parametrize("form", TOOLS)
def test_tools_in_any_form(api: str, form: str) -> None:
    assert asked(api, tools=[TOOLS[form]]).chat.tools == Tools([F])
    assert body(api, tools=[TOOLS[form]]).ignored_fields == ()


G = Tool("g")
CHOICES: dict[str, tuple[Any, Tools]] = {
    **{
        f"{mode} {'as a type' if nested else 'as a word'}": (
            {"type": mode} if nested else mode,
            Tools([F, G], "required" if mode == "any" else mode),  # type: ignore[arg-type]
        )
        for mode in ("auto", "none", "required", "any")
        for nested in (False, True)
    },
    **{
        f"a name: {json.dumps(form)}": (form, Tools([F, G], "required", ("f",), parallel=False))
        for form in (
            "f",
            {"name": "f"},
            {"type": "tool", "name": "f"},
            {"type": "function", "name": "f"},
            {"type": "function", "function": {"name": "f"}},
            {"function": {"name": "f"}},
            {"type": "custom", "name": "f"},
            {"type": "custom", "custom": {"name": "f"}},
        )
    },
    **{
        f"allowed {i}": (form, Tools([F, G], "auto", ("f",)))
        for i, form in enumerate(
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "f"}]}},
            )
        )
    },
    **{
        f"one call by the choice, {mode}": (
            {"type": mode, "disable_parallel_tool_use": one},
            Tools([F, G], "required" if mode == "any" else mode, parallel=not one),  # type: ignore[arg-type]
        )
        for mode, one in (("any", True), ("auto", True), ("any", False))
    },
    "two of the tools": (
        {"type": "allowed_tools", "mode": "required", "tools": [{"name": "g"}, {"name": "f"}]},
        Tools([F, G], "required", ("g", "f")),
    ),
    "none given": (None, Tools([F, G])),
}


@chats
@pytest.mark.parametrize("form", CHOICES)
def test_choices_in_any_form(api: str, form: str) -> None:
    tools = [TOOLS["nested"], {"name": "g"}]
    choice, expected = CHOICES[form]
    assert asked(api, tools=tools, tool_choice=choice).chat.tools == expected
    assert body(api, tools=tools, tool_choice=choice).ignored_fields == ()


@chats
def test_no_tools(api: str) -> None:
    assert asked(api).chat.tools is None
    for choice in (
        {},
        {"tool_choice": "none", "parallel_tool_calls": False},
        {"tool_choice": {"type": "auto"}},
    ):
        assert asked(api, tools=[], **choice).chat.tools is None


@chats
@pytest.mark.parametrize("choice", ["sometimes", "F", {}, {"type": "tool"}, {"type": "web_search"}, 5, ["f"]])
def test_choices_of_nothing(api: str, choice: Any) -> None:
    with pytest.raises(FieldError) as error:
        asked(api, tools=[TOOLS["nested"]], tool_choice=choice)
    assert str(error.value.details["param"]).startswith("tool_choice")


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


def only(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


ONE, OTHER = function(name="f"), function(name="g")
UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": ONE}, "tool_choice"),
    ({"tool_choice": only("auto", ONE)}, "tool_choice"),
    ({"tool_choice": "g", "tools": [ONE]}, "tool_choice"),
    ({"tool_choice": OTHER, "tools": [ONE]}, "tool_choice"),
    ({"tool_choice": only("auto", ONE, OTHER), "tools": [ONE]}, "tool_choice"),
    ({"tool_choice": {}, "tools": [ONE]}, "tool_choice.name"),
    ({"tool_choice": {"type": "function"}, "tools": [ONE]}, "tool_choice.name"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "g"}}, "tools": [ONE]}, "tool_choice"),
    ({"tool_choice": only("none", ONE), "tools": [ONE]}, "tool_choice.allowed_tools.mode"),
    ({"tool_choice": only("required"), "tools": [ONE]}, "tool_choice"),
    ({"tools": "f"}, "tools"),
    ({"tools": [ONE] * 1025}, "tools"),
    ({"tools": [ONE, ONE]}, "tools[1]"),
    ({"tools": [{}]}, "tools[0].name"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools"),
    ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools"),
    ({"tools": [function()]}, "tools[0].function.name"),
    ({"tools": [function(name="")]}, "tools[0].function.name"),
    ({"tools": [function(name="a b")]}, "tools[0].function.name"),
    ({"tools": [ONE, function(name="g", parameters={"type": "array"})]}, "tools[1].function.parameters"),
    ({"tools": [function(name="g", parameters="x")]}, "tools[0].function.parameters"),
    ({"tools": [function(name="g", parameters={"enum": ["x" * 70_000]})]}, "tools[0].function.parameters"),
    ({"tools": [{"name": "g", "parameters": {"type": "array"}}]}, "tools[0].parameters"),
    ({"tools": [{"name": "g", "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": [ONE], "grammar": 'root ::= "a"'}, "grammar"),
    ({"tools": [ONE], "json_schema": {}}, "json_schema"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"tools": [ONE], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
     "tool_choice.disable_parallel_tool_use"),
]  # fmt: skip


@chats
@pytest.mark.parametrize(("fields", "param"), UNUSABLE)
def test_tools_that_cannot_be_used(api: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as error:
        asked(api, **fields)
    assert error.value.details["param"] == param, error.value.message
    assert param.split("[")[0] in error.value.message
    assert len(error.value.message) < 300


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_property_that_is_no_schema(api: str) -> None:
    with pytest.raises(FieldError) as error:
        asked(api, tools=[function(name="g", parameters={"properties": {"a": "x"}})])
    assert error.value.details["param"] == "tools[0].function.parameters.properties.a"


@chats
def test_tools_that_run_elsewhere(api: str) -> None:
    hosted = [{"type": "web_search", "filters": {}}, {"type": "custom", "name": "patch", "format": {}}]
    sent = body(api, tools=[*hosted, TOOLS["flat"]])
    assert (sent.request_tools.allowed, sent.request_tools.dropped) == (Tools([F]), ["web_search", "custom"])
    with pytest.raises(FieldError, match="do not run here"):
        asked(api, tools=hosted)


WRAPPED = {"name": "n", "schema": SCHEMA}
ANY = {"type": "object"}
FORMS: dict[str, tuple[Any, Any]] = {
    "nested": ({"type": "json_schema", "json_schema": WRAPPED}, SCHEMA),
    "flat": ({"type": "json_schema", **WRAPPED}, SCHEMA),
    "the schema itself": ({"type": "json_schema", "json_schema": SCHEMA}, SCHEMA),
    "any object": ({"type": "json_object"}, ANY),
    "an object of a schema": ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
    "an object of a nested schema": ({"type": "json_object", "json_schema": WRAPPED}, SCHEMA),
    "an object of a value": ({"type": "json_object", "value": SCHEMA}, SCHEMA),
    "an object of the schema itself": ({"type": "json_object", "json_schema": SCHEMA}, SCHEMA),
    "huggingface_hub's": ({"type": "json", "value": SCHEMA}, SCHEMA),
}
PLACES: dict[str, Any] = {
    "response_format": lambda form: {"response_format": form},
    "text.format": lambda form: {"text": {"format": form}},
    "output_config.format": lambda form: {"output_config": {"format": form}},
    "output_format": lambda form: {"output_format": form},
    "format": lambda form: {"format": form},
}


@every
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_answers_in_any_place(api: str, place: str, form: str) -> None:
    given, schema = FORMS[form]
    fields = PLACES[place](given)
    assert asked(api, **fields).params["json_schema"] == schema
    assert body(api, **fields).ignored_fields == ()


@every
@pytest.mark.parametrize("place", PLACES)
def test_schemas_that_would_be_dropped(api: str, place: str) -> None:
    for form in (
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "text", "schema": SCHEMA},
        {"type": "text", "json_schema": WRAPPED},
    ):
        with pytest.raises(FieldError) as error:
            asked(api, **PLACES[place](form))
        assert str(error.value.details["param"]).startswith(place)


LOGPROBS: dict[str, tuple[dict[str, Any], int | None]] = {
    "false": ({"logprobs": False}, None),
    "false and 0": ({"logprobs": False, "top_logprobs": 0}, None),
    "0": ({"top_logprobs": 0}, None),
    "n_probs 0": ({"n_probs": 0}, None),
    "true": ({"logprobs": True}, 0),
    "true and 0": ({"logprobs": True, "top_logprobs": 0}, 0),
    "true and 3": ({"logprobs": True, "top_logprobs": 3}, 3),
    "a number": ({"logprobs": 3}, 3),
    "n_probs": ({"n_probs": 3}, 3),
}


@every
@pytest.mark.parametrize("kind", LOGPROBS)
def test_log_probabilities(api: str, kind: str) -> None:
    fields, n = LOGPROBS[kind]
    if api == "messages" and n is not None:
        with pytest.raises(FieldError, match="answers of this API have none"):
            asked(api, **fields)
        return
    assert asked(api, **fields).params.get("logprobs") == n
    assert body(api, **fields).ignored_fields == ()


@every
def test_log_probabilities_that_cannot_be_used(api: str) -> None:
    for fields, param in (
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": "3"}, "logprobs"),
    ):
        with pytest.raises(FieldError) as error:
            asked(api, **fields)
        assert error.value.details["param"] == param


@every
def test_long_stop_texts(api: str) -> None:
    assert asked(api, stop=["x" * 300]).params["stop"] == ["x" * 300]
    with pytest.raises(FieldError, match="stop"):
        asked(api, stop=["x" * 5000])


@every
@pytest.mark.parametrize("name", ["none", "deepseek", "deepseek-legacy", "auto", None])
def test_forms_of_reasoning(api: str, name: str | None) -> None:
    sent = body(api, reasoning_format=name)
    if isinstance(sent, ThinkingFields):
        assert sent.shown_reasoning == (name or "auto")
    assert sent.ignored_fields == ()
    with pytest.raises(FieldError, match="reasoning_format"):
        body(api, reasoning_format="hidden")


def test_bodies_are_whole_characters() -> None:
    text = rb'{"a": "\ud83d", "b": "\\ud83d \ud83d\ude00", "\ude00": [["\ud83d\ud83d\ude00"]]}'
    assert parse(text) == {"a": "\ufffd", "b": "\\ud83d 😀", "\ufffd": [["\ufffd😀"]]}
    arguments = r'{"a": "\ud83d x", "b": 1, "c": "\ud83d'
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    sent: Any = [U, {"role": "assistant", "tool_calls": [call]}, U]
    chat: protocol.ChatInput = checked(CHATS["chat"][0], {"messages": sent}).chat_input({})
    made = (chat.messages or [])[1]["tool_calls"][0]["function"]["arguments"]
    assert made == {"a": "\ufffd x", "b": 1, "c": "\ufffd"}
