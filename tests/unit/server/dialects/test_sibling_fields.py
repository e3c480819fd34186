"""Fields that one API has its own way are read in every other, under the name and in the place of any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specllama.server.dialects.shared.fields import FieldError
from tests.unit.server.dialects.test_field_policy import ALL, CHATS, SCHEMA, asked, body

every = pytest.mark.parametrize("api", ALL)
chats = pytest.mark.parametrize("api", CHATS)
ANY = {"type": "object"}
HUGGINGFACE = {"type": "json", "value": SCHEMA}
RESPONSES = {"format": {"type": "json_schema", "schema": SCHEMA}}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "chat's": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        SCHEMA,
        "response_format.json_schema.schema",
    ),
    "chat's for any object": ({"response_format": {"type": "json_object"}}, ANY, "response_format"),
    "huggingface_hub's": ({"response_format": HUGGINGFACE}, SCHEMA, "response_format.value"),
    "responses'": ({"text": RESPONSES}, SCHEMA, "text.format.schema"),
    "responses' for any object": ({"text": {"format": {"type": "json_object"}}}, ANY, "text.format"),
    "messages'": (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        SCHEMA,
        "output_config.format.schema",
    ),
    "messages' before": (
        {"output_format": {"type": "json_schema", "schema": SCHEMA}}, SCHEMA, "output_format.schema"
    ),
    "ollama's": ({"format": SCHEMA}, SCHEMA, "format"),
    "ollama's for anything": ({"format": {}}, {}, "format"),
    "ollama's for any object": ({"format": "json"}, ANY, "format"),
    "llama-server's": ({"json_schema": SCHEMA}, SCHEMA, "json_schema"),
}  # fmt: skip
FREE: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"text": {"format": {"type": "text"}}},
    {"text": {}},
    {"output_config": {}},
    {"format": ""},
    {"json_schema": None},
]


@every
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_answers(api: str, form: str) -> None:
    fields, schema, path = FORMS[form]
    assert asked(api, **fields).params["json_schema"] == schema
    assert body(api, **fields).limits.path == path
    assert body(api, **fields).ignored_fields == ()


@every
@pytest.mark.parametrize("fields", FREE)
def test_free_texts(api: str, fields: dict[str, Any]) -> None:
    assert asked(api, **fields) == asked(api)


@every
@pytest.mark.parametrize("one", FORMS)
def test_two_forms(api: str, one: str) -> None:
    other = "ollama's" if "format" not in FORMS[one][0] else "chat's"
    with pytest.raises(FieldError, match="are both given"):
        asked(api, **FORMS[one][0], **FORMS[other][0])


@every
@pytest.mark.parametrize("strict", [None, False, True])
def test_strict_schemas(api: str, strict: bool | None) -> None:
    chat = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": strict}}
    responses = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": strict}
    assert asked(api, response_format=chat).strict_schema is bool(strict)
    assert asked(api, text={"format": responses}).strict_schema is bool(strict)


@pytest.mark.parametrize("api", ["completions", "native", "infill"])
@pytest.mark.parametrize("fields", [{"text": "x"}, {"output_config": 5}, {"format": "wav"}, {"format": 3}])
def test_unrelated_fields_with_the_same_names(api: str, fields: dict[str, Any]) -> None:
    assert asked(api, **fields) == asked(api)


@chats
def test_wrong_values_are_errors_in_their_own_api(api: str) -> None:
    name = {"chat": "response_format", "responses": "text", "messages": "output_config", "ollama": "format"}[
        api
    ]
    with pytest.raises(FieldError) as error:
        asked(api, **{name: 5})
    assert str(error.value.details["param"]).startswith(name)


@every
@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "num_predict",
        "n_predict",
    ],
)
def test_names_of_the_limit(api: str, name: str) -> None:
    without = {"max_tokens": None} if api == "messages" else {}
    assert asked(api, **{**without, name: 7}).params["max_tokens"] == 7
    assert asked(api, **{**without, "options": {name: 7}}).params["max_tokens"] == 7
    assert body(api, **{**without, name: 7}).ignored_fields == ()


OPTIONS: dict[str, Any] = {
    "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "seed": 5, "stop": ["x"],
    "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repeat_last_n": 9,
    "logit_bias": {"5": 1.0}, "ignore_eos": True, "samplers": ["top_k"], "n_indent": 2,
    "dry_sequence_breakers": ["x"], "min_keep": 3, "adaptive_target": 0.4, "mirostat": 2, "typical_p": 0.5,
    "t_max_predict_ms": 100, "stop_token_ids": [3], "min_tokens": 2,
    "skip_special_tokens": False, "speculation": {"enabled": False},
}  # fmt: skip


@every
@pytest.mark.parametrize("name", OPTIONS)
def test_sampling_next_to_the_conversation_and_in_options(api: str, name: str) -> None:
    fields = {name: OPTIONS[name]}
    generation = asked(api, **fields)
    assert generation != asked(api)
    assert asked(api, options=fields) == generation
    assert body(api, options=fields).ignored_fields == ()


@every
def test_the_apis_own_place_takes_precedence(api: str) -> None:
    generation = asked(api, temperature=0.25, options={"temperature": 0.75})
    assert generation.params["temperature"] == (0.75 if api in ("ollama", "generate") else 0.25)


@every
def test_options_that_are_unknown(api: str) -> None:
    assert body(api, options={"num_gqa": 8}).ignored_fields == ("options.num_gqa",)
    with pytest.raises(FieldError, match=r"options\.tfs_z is not supported"):
        asked(api, options={"tfs_z": 0.5})


TOOLS: dict[str, Any] = {
    "chat": [{"type": "function", "function": {"name": "f"}}],
    "responses": [{"type": "function", "name": "f"}],
    "messages": [{"name": "f"}],
    "ollama": [{"type": "function", "function": {"name": "f"}}],
}


@chats
@pytest.mark.parametrize(
    ("fields", "parallel"),
    [
        ({}, True),
        ({"parallel_tool_calls": False}, False),
        ({"parallel_tool_calls": True}, True),
        ({"disable_parallel_tool_use": True}, False),
        ({"disable_parallel_tool_use": False}, True),
    ],
)
def test_parallel_calls(api: str, fields: dict[str, Any], parallel: bool) -> None:
    offered, plain = (
        asked(api, tools=TOOLS[api], **fields).chat.tools,
        asked(api, tools=TOOLS[api]).chat.tools,
    )
    assert plain is not None
    assert offered == replace(plain, parallel=parallel)


THOUGHTS: list[dict[str, Any]] = [
    {"reasoning_content": "hm"},
    {"reasoning": "hm"},
    {"thinking": "hm"},
    {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}]},
    {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    {"reasoning": None, "reasoning_content": "", "thinking": "hm"},
]


def conversation(api: str, *messages: dict[str, Any]) -> dict[str, Any]:
    return {"input" if api == "responses" else "messages": list(messages)}


@chats
@pytest.mark.parametrize("fields", THOUGHTS)
def test_reasoning_next_to_the_content(api: str, fields: dict[str, Any]) -> None:
    user = {"role": "user", "content": "hi"}
    generation = asked(api, **conversation(api, user, {"role": "assistant", "content": "ho", **fields}, user))
    answer = {"role": "assistant", "content": "ho", "reasoning_content": "hm"}
    assert generation.chat.messages == [user, answer, user]


@chats
def test_images_next_to_the_content(api: str) -> None:
    user, seen = {"role": "user", "content": "hi"}, {"role": "user", "content": "look", "images": ["aGk="]}
    generation = asked(api, **conversation(api, seen, {"role": "assistant", "content": "ho"}, user))
    assert generation.chat.messages is not None
    assert generation.chat.messages[0]["content"] == "[image left out: it cannot be read here]\nlook"
    field = "input" if api == "responses" else "messages"
    with pytest.raises(FieldError, match=r"\.images\[0\]: could not process image") as error:
        asked(api, **conversation(api, seen))
    assert error.value.details["param"] == f"{field}[0].images"


FILES = ["image", "image_url", "input_image", "input_audio", "video_url", "file", "input_file", "document"]
FORMS_OF_FILES: list[dict[str, Any]] = [
    {},
    {"content": None, "source": None, "file": None},
    {"source": {"type": "url", "url": "http://x"}},
    {"source": "x"},
    {"content": ""},
    {"content": []},
    {"filename": "f"},
]


@chats
@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("kind", FILES)
def test_files_of_earlier_turns_in_any_form(api: str, role: str, kind: str) -> None:
    user = {"role": "user", "content": "hi"}
    for form in FORMS_OF_FILES:
        part = {"type": kind, **form}
        generation = asked(api, **conversation(api, user, {"role": role, "content": [part]}, user))
        assert generation.chat.messages is not None
        assert "left out: it cannot be read here]" in generation.chat.messages[1]["content"], form
        if role == "user":
            with pytest.raises(FieldError, match="could not process"):
                asked(api, **conversation(api, {"role": role, "content": [part]}))


@chats
@pytest.mark.parametrize("texts", ["a text", [{"type": "text", "text": "a text"}]])
def test_documents_that_are_texts(api: str, texts: Any) -> None:
    inside = {"type": "document", "source": {"type": "content", "content": texts}, "title": "f"}
    for part in (inside, {"type": "document", "content": texts, "title": "f"}):
        (message,) = asked(api, **conversation(api, {"role": "user", "content": [part]})).chat.messages or ()
        assert message["content"] == "f\na text"


def test_a_document_of_messages_may_be_one_part() -> None:
    part = {"type": "document", "content": {"type": "text", "text": "a text"}}
    (message,) = asked("messages", messages=[{"role": "user", "content": [part]}]).chat.messages or ()
    assert message["content"] == "a text"


@pytest.mark.parametrize("api", ["chat", "responses", "completions", "native", "infill"])
def test_n_predict_0_only_evaluates_the_prompt(api: str) -> None:
    for fields in ({"n_predict": 0}, {"options": {"n_predict": 0}}):
        assert asked(api, **fields).warm
        assert "max_tokens" not in asked(api, **fields).params
