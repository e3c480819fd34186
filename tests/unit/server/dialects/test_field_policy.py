"""The one policy for fields, in every API: what is ignored and named, what is done, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specllama.client import protocol
from specllama.server.dialects.anthropic import MessagesRequest
from specllama.server.dialects.llama_server.completion import InfillRequest, NativeRequest
from specllama.server.dialects.ollama import OllamaChatRequest, OllamaGenerateRequest
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.routes import ChatRequest, CompletionRequest
from specllama.server.dialects.shared.fields import MAX_NAMED, FieldError, checked
from tests.support.generations import text_only

Q = [{"role": "user", "content": "hi"}]
CHATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (ChatRequest, {"messages": Q}),
    "responses": (ResponsesRequest, {"input": Q}),
    "messages": (MessagesRequest, {"messages": Q, "max_tokens": 5}),
    "ollama": (OllamaChatRequest, {"messages": Q}),
}
TEXTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "completions": (CompletionRequest, {"prompt": "x"}),
    "native": (NativeRequest, {"prompt": "x"}),
    "infill": (InfillRequest, {"input_prefix": "x", "input_suffix": "y"}),
    "generate": (OllamaGenerateRequest, {"prompt": "x"}),
}
ALL = {**CHATS, **TEXTS}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
chats = pytest.mark.parametrize("api", CHATS)
every = pytest.mark.parametrize("api", ALL)


def body(api: str, **fields: Any) -> Any:
    model, least = ALL[api]
    return checked(model, {**least, **fields})


def asked(api: str, **fields: Any) -> protocol.Generate:
    return text_only(body(api, **fields)).generations({}, {})[0]


@every
def test_unknown_fields_are_ignored_and_named(api: str) -> None:
    read_body = body(api, session_id="x", provider={"order": []}, usage={"include": True}, mood=None)
    assert read_body.ignored_fields == ("session_id", "provider", "usage")
    assert asked(api, session_id="x") == asked(api)


@every
@pytest.mark.parametrize("path", ["response_format", "format", "text.format", "output_config.format"])
def test_ignored_fields_are_named_where_they_stand(api: str, path: str) -> None:
    """One form of answers has several places."""
    form: dict[str, Any] = {"type": "json_object", "mood": 1}
    for name in reversed(path.split(".")):
        form = {name: form}
    assert body(api, **form).ignored_fields == (f"{path}.mood",)


@every
def test_fields_that_clients_always_send_are_not_named(api: str) -> None:
    assert body(api, user="u", metadata={"a": "b"}, store=True, cache_prompt=True).ignored_fields == ()


def test_fields_of_hosted_tools_are_not_named() -> None:
    """Agents send it with every request, and it is left out as a whole."""
    hosted = [{"type": "mcp", "server_label": "x", "headers": {"a": "b"}}, {"type": "file_search", "x": 1}]
    assert body("responses", tools=[*hosted, {"name": "f"}]).ignored_fields == ()
    searches = [{"name": "f"}, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    assert body("messages", tools=searches).ignored_fields == ()
    assert body("messages", context_management={"edits": [{"type": "x"}]}).ignored_fields == ()


@every
def test_too_many_fields_are_refused(api: str) -> None:
    assert len(body(api, **{f"a{i}": 1 for i in range(200)}).ignored_fields) == MAX_NAMED
    with pytest.raises(FieldError, match="at most 256 fields"):
        body(api, **{f"a{i}": 1 for i in range(300)})


@chats
def test_ignored_fields_of_messages_and_parts_are_reported_once_with_their_path(api: str) -> None:
    part = {"type": "text", "text": "hi", "mood": 1, "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": [part], "mood": 1, "id": "m"}
    field = "input" if api == "responses" else "messages"
    read_body = body(api, **{field: [message] * 3})
    assert set(read_body.ignored_fields) == {f"{field}[].mood", f"{field}[].content[].mood"}


@chats
def test_null_is_absent_at_every_level(api: str) -> None:
    field = "input" if api == "responses" else "messages"
    message = {"role": "user", "content": "hi", "foo": None, "name": None, "tool_calls": None}
    read_body = body(api, **{field: [message]}, speculation={"max": None}, foo=None)
    assert read_body.ignored_fields == ()
    options = {"stream_options": {"include_usage": True, "foo": None}} if api == "chat" else {}
    assert asked(api, **{field: [message]}, **options).chat.messages == Q


@every
def test_4_0_is_a_whole_number_and_4_5_is_not(api: str) -> None:
    def limited(value: Any) -> protocol.Generate:
        if api in ("ollama", "generate"):
            return asked(api, options={"num_predict": value})
        return asked(api, max_tokens=value)

    max_tokens = limited(4.0).params["max_tokens"]
    assert (max_tokens, type(max_tokens)) == (4, int)
    with pytest.raises(FieldError):
        limited(4.5)
    with pytest.raises(FieldError):
        limited(True)


def test_ids_may_be_whole_floats() -> None:
    assert asked("completions", prompt=[1.0, 2.0]).prompt == protocol.MixedInput([[1, 2]])
    assert asked("native", prompt=[1.0, "x"]).prompt == protocol.MixedInput([[1], "x"])
    assert asked("chat", stop_token_ids=[2.0]).params["stop_token_ids"] == [2]


@every
@pytest.mark.parametrize("stop", ["", [], [""], ["", ""]])
def test_empty_stop_texts_are_none(api: str, stop: Any) -> None:
    fields = {"options": {"stop": stop}} if api in ("ollama", "generate") else {"stop": stop}
    assert not asked(api, **fields).params.get("stop")


@every
def test_64_stop_texts(api: str) -> None:
    many = [f"s{i}" for i in range(64)]
    fields = {"options": {"stop": ["", *many]}} if api in ("ollama", "generate") else {"stop": ["", *many]}
    assert asked(api, **fields).params["stop"] == many


@chats
@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"think": False}, {"enable_thinking": False}),
        ({"think": "low"}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, {"enable_thinking": True}),
        ({"thinking": False}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning": {"enabled": True}}, {"enable_thinking": True}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"verbosity": "low"}, {"verbosity": "low"}),
        ({"chat_template_kwargs": {"enable_thinking": True}, "think": False}, {"enable_thinking": True}),
    ],
)
def test_fields_that_set_thinking_work_in_all_apis(api: str, fields, variables) -> None:
    alone = {"enable_thinking": False} if api == "messages" else {}  # unless a request asks for it
    assert asked(api, **fields).chat.variables == {**alone, **variables}


@chats
@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"reasoning_budget_tokens": 9}, 9),
        ({"reasoning_budget_tokens": 0}, 0),
        ({"reasoning_budget_tokens": -1}, None),  # the server's own
        ({"thinking_budget": 9}, 9),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, 7),
        ({"thinking": {"type": "disabled", "budget_tokens": 7}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}, "reasoning_budget_tokens": 9}, 9),
        ({"reasoning": {"max_tokens": 5}}, 5),
    ],
)
def test_budgets_of_reasoning_in_all_apis(api: str, fields, budget) -> None:
    params = asked(api, **fields, reasoning_budget_message="Enough.").params
    assert (params.get("reasoning_budget"), params["reasoning_budget_message"]) == (budget, "Enough.")
    assert asked(api, reasoning_control=True) == replace(asked(api), reasoning_control=True)


@every
def test_errors_name_fields_as_they_were_sent(api: str) -> None:
    """Also those that the server knows by another name, or in another place."""
    for fields, param in (
        ({"thinking_budget_tokens": -2}, "thinking_budget_tokens"),
        ({"max_new_tokens": "x"}, "max_new_tokens"),
        ({"speculative.n_max": -1}, "speculative.n_max"),
        ({"options": {"draft_num_predict": -1}}, "options.draft_num_predict"),
        ({"options": {"stop_sequences": ["a", 5]}}, "options.stop_sequences[1]"),
        ({"reasoning_budget_message": "x" * 5000}, "reasoning_budget_message"),
        ({"reasoning_budget": -2}, "reasoning_budget"),
        ({"options": {"thinking_budget": -2}}, "options.thinking_budget"),
        ({"xtc_probability": 2}, "xtc_probability"),
        ({"options": {"xtc_probability": 2}}, "options.xtc_probability"),
        ({"samplers": ["mood"]}, "samplers"),
        ({"options": {"typ_p": 2}}, "options.typ_p"),
        ({"logit_bias": {"5": 2e9}}, "logit_bias"),
    ):
        if param == "max_new_tokens" and api == "messages":
            continue  # its own field counts
        with pytest.raises(FieldError) as error:
            asked(api, **fields)
        shown = error.value.details["param"]
        assert shown == param
        assert error.value.message.startswith(shown)


@chats
def test_budgets_out_of_range_name_a_field_that_was_sent(api: str) -> None:
    for fields in (
        {"thinking": {"type": "enabled", "budget_tokens": 2**40}},
        {"reasoning": {"max_tokens": 2**40}},
    ):
        with pytest.raises(FieldError) as error:
            asked(api, **fields)
        assert (error.value.details["param"] or "").startswith(next(iter(fields))), error.value.message


@every
def test_lengths_of_drafts_of_other_apis(api: str) -> None:
    for name in ("draft_num_predict", "speculative.n_max"):
        assert asked(api, **{name: 3}) == replace(asked(api), draft_max=3)
    assert asked(api, options={"draft_num_predict": 0}) == replace(asked(api), draft_max=0)
    assert asked(api, draft_num_predict=3, speculation={"max": 5}).draft_max == 5


def test_unknown_values_of_include_are_named() -> None:
    known = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert body("responses", include=[*known, "mood", "mood"], tone=1).ignored_fields == (
        "tone", "include: mood",
    )  # fmt: skip


@every
@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json_object": True}}, {"json_schema": {"type": "object"}}),
        ({"guided_choice": ["yes", 'n"o', "a::=b"]}, {"grammar": r'start: "yes" | "n\"o" | "a:\u003a=b"'}),
        ({"structured_outputs": {"choice": ["a"]}}, {"grammar": 'start: "a"'}),
        ({"guided_regex": r"\d+/[a-z]\/"}, {"grammar": r"start: /\d+\/[a-z]\//"}),
        ({"structured_outputs": {"regex": "a\nb"}}, {"grammar": r"start: /a\nb/"}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
        ({"guided_json": None, "guided_choice": None, "structured_outputs": {}}, {}),
        ({"guided_regex": "", "guided_grammar": "", "structured_outputs": {"regex": ""}}, {}),
    ],
)
def test_vllms_fields_restrict_the_text(api: str, fields, params) -> None:
    parameters = asked(api, **fields).params
    parameters.pop("max_tokens", None)
    assert parameters == params


@every
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "nonsense"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": {"a": 1}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "options": {"num_predict": 8}}, "min_tokens"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"stop": ["", "a", 5]}, "stop[2]"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"logit_bias": [[1, 2], [5, True]]}, "logit_bias[1]"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "json_schema": {}}}}, "text.format.json_schema.schema"),
    ],
)
def test_structured_fields_with_wrong_values(api: str, fields, param: str) -> None:
    with pytest.raises(FieldError) as error:
        asked(api, **fields)
    assert error.value.details["param"].removeprefix("options.") == param
    assert error.value.details["param"] in error.value.message


WRONG: dict[str, list[Any]] = {  # values by the parameter's name
    "temperature": ["hot", -0.1, True], "top_k": [1.5, 2**40], "top_p": [1.5], "min_p": [-1],
    "presence_penalty": [1000], "repeat_penalty": [0], "typical_p": [1.5], "mirostat": [3],
    "dry_multiplier": [-1, 101], "seed": ["1", 2**70], "xtc_probability": [1.5],
    "top_n_sigma": [True, 101], "adaptive_decay": [1], "n_indent": [-1], "t_max_predict_ms": ["soon"],
    "stop": [5, [5], ["x"] * 65, ["x"] * 60_000, "x" * 5000],
    "logit_bias": [{"x" * 65: 1}, {"1": 1e300}, {str(i): 1 for i in range(1025)}, [[1]]],
}  # fmt: skip


@every
@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_of_parameters(api: str, name: str) -> None:
    """Next to the conversation, and in options."""
    for value in WRONG[name]:
        for fields, param in (({name: value}, name), ({"options": {name: value}}, f"options.{name}")):
            with pytest.raises(FieldError) as error:
                asked(api, **fields)
            assert str(error.value.details["param"]).startswith(param), error.value.message
            assert len(error.value.message) < 300


@every
def test_stop_tokens_and_times_in_memory(api: str) -> None:
    assert asked(api, stop_token_ids=[]).params["stop_token_ids"] == []
    assert asked(api, stop_token_ids=[5, 7]).params["stop_token_ids"] == [5, 7]
    assert body(api, keep_alive="5m").keep_alive == 300
    assert body(api, keep_alive=0).keep_alive == 0
    where = {"options": {"num_ctx": 4096.0}} if api in ("ollama", "generate") else {"num_ctx": 4096.0}
    assert body(api, **where).expected_context == 4096


@every
@pytest.mark.parametrize(
    ("name", "value", "off"),
    [
        ("functions", [{"name": "f"}], []),
        ("bad_words", ["x"], []),
        ("documents", [{"text": "x"}], []),
        ("chat_template", "{{ x }}", ""),
        ("tfs_z", 0.5, 1),
        ("top_a", 0.5, 0),
        ("truncate_prompt_tokens", 5, -1),
        ("instructions", "Be brief.", ""),
        ("web_search_options", {}, None),
    ],
)
def test_unsupported_fields_are_refused_unless_they_are_off(api: str, name: str, value, off) -> None:
    if name == "instructions" and api == "responses":
        pytest.skip("its own")
    with pytest.raises(FieldError, match=f"^{name} is not supported") as error:
        asked(api, **{name: value})
    assert error.value.details["param"] == name
    assert asked(api, **{name: off}) == asked(api)
    assert body(api, **{name: off}).ignored_fields == ()


def test_conversations_of_other_apis_are_refused() -> None:
    for api, name, instead in (
        ("chat", "input", "/v1/responses takes it"),
        ("responses", "messages", "routes of chats take it, such as /v1/chat/completions"),
        ("messages", "prompt", "routes of texts take it, such as /v1/completions"),
        ("ollama", "system", "a message of the role system says it"),
    ):
        with pytest.raises(FieldError, match=f"^{name} is not supported: {instead}"):
            body(api, **{name: "x"})


def test_names_of_other_apis() -> None:
    assert asked("chat", max_new_tokens=5).params == {"max_tokens": 5}
    assert asked("chat", stop_sequences=["a"]).params == {"stop": ["a"]}
    assert asked("chat", num_predict=5, max_tokens=6).params == {"max_tokens": 6}
    assert asked("chat", grammar="", logit_bias=[]).params == {}


@every
def test_samplers_and_their_order(api: str) -> None:
    assert asked(api, samplers=[]).params["samplers"] == []  # as in llama-server: no step at all
    assert asked(api, samplers="tkx").params["samplers"] == ["temperature", "top_k", "xtc"]
    named = asked(api, samplers=["Temp", "top-k", "infill", "tfs_z", "nucleus"]).params
    assert named["samplers"] == ["temperature", "top_k", "infill", "top_p"]
    assert named["infill_sampling"] is True
    for samplers, words in (
        ("kz", "samplers.*'z'"),
        (["top_k", "magic"], "samplers.*'magic'"),
        (["infill"], "samplers.*top_k"),
        (["infill", "top_k"], "samplers.*top_k"),
        (["top_k"] * 33, "samplers.*32"),
    ):
        with pytest.raises(FieldError, match=words) as error:
            asked(api, samplers=samplers)
        assert error.value.details["param"].endswith("samplers")


@every
def test_sequence_breakers_as_other_front_ends_send_them(api: str) -> None:
    for sent in (["a", ":"], '["a", ":"]', '"a", ":"'):
        assert asked(api, dry_sequence_breakers=sent).params["dry_sequence_breakers"] == ["a", ":"]
    for sent in (["x"] * 10_000, [5], "[5]"):
        with pytest.raises(FieldError, match="dry_sequence_breakers"):
            asked(api, dry_sequence_breakers=sent)


@every
def test_options_are_an_object(api: str) -> None:
    with pytest.raises(FieldError, match="options: must be an object") as caught:
        body(api, options=5)
    assert caught.value.details["param"] == "options"
    body(api, options=None)  # as clients written in Go send none


@every
def test_options_of_ollama(api: str) -> None:
    options = {"num_gqa": 8, "num_thread": 2, "rope_frequency_base": 1e6, "tfs_z": 1.0, "use_mmap": True}
    read_body = body(api, options=options)
    assert read_body.ignored_fields == ("options.num_gqa", "options.rope_frequency_base")
    assert asked(api, options={"seed": -5}).params["seed"] < 2**53
    for name, value in (("num_thread", "two"), ("use_mmap", 1), ("num_ctx", "big"), ("low_vram", [])):
        with pytest.raises(FieldError, match=f"options.{name}: must be ") as caught:
            body(api, options={name: value})
        assert caught.value.details["param"] == f"options.{name}"


def test_negative_seeds_are_mapped_below_2_53() -> None:
    assert asked("chat", seed=-5).params["seed"] == 2**53 - 5
    assert asked("chat", seed=-1).params == {}
    assert asked("chat", seed=2**63).params["seed"] == 2**63


@every
@pytest.mark.parametrize(
    ("speculation", "asked_for"),
    [
        ({}, {}),
        ({"exact": True}, {"exact": True}),
        ({"exact": False}, {"exact": False}),
        ({"enabled": False}, {"speculate": False}),
        ({"max": 3}, {"draft_max": 3}),
        ({"max": 3.0, "exact": None}, {"draft_max": 3}),
        ({"exact": True, "enabled": False, "max": 0}, {"exact": True, "speculate": False, "draft_max": 0}),
    ],
)
def test_speculation_reaches_the_engine(api: str, speculation, asked_for) -> None:
    assert asked(api, speculation=speculation) == replace(asked(api), **asked_for)


@every
@pytest.mark.parametrize("name", ["exact", "enabled", "memory", "trace"])
@pytest.mark.parametrize("value", [1, 0, 1.0, "true", "", [], {}])
def test_switches_of_speculation_are_booleans(api: str, name: str, value: Any) -> None:
    with pytest.raises(FieldError, match=f"speculation.{name}: must be a valid boolean") as error:
        body(api, speculation={name: value})
    assert error.value.details["param"] == f"speculation.{name}"


@every
def test_cache_has_two_switches(api: str) -> None:
    for reuse, given in ((True, {}), (True, {"reuse": None}), (True, False), (False, {"reuse": False})):
        assert body(api, cache=given).cache.reuse is reuse
    both = body(api, cache={"store": False, "reuse": False})
    assert (both.kept, both.cache.reuse, both.ignored_fields) == (False, False, ())
    for wrong in (0, "no", "", [], {}):
        with pytest.raises(FieldError, match=r"cache\.reuse: must be a valid boolean") as error:
            body(api, cache={"reuse": wrong})
        assert error.value.details["param"] == "cache.reuse"
    with pytest.raises(FieldError, match="store and reuse only, not 'reues'"):
        body(api, cache={"reues": False})


@every
def test_cache_and_keep_alive_may_stand_in_options(api: str) -> None:
    inside = body(api, options={"cache": {"store": False, "reuse": False}, "keep_alive": "5m"})
    assert (inside.kept, inside.cache.reuse, inside.keep_alive) == (False, False, 300)
    assert inside.ignored_fields == ()
    with pytest.raises(FieldError, match="store and reuse only, not 'stoer'"):
        body(api, options={"cache": {"stoer": False}})
