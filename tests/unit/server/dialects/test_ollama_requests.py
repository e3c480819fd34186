"""What the bodies of Ollama's API ask of the engine, and which of them are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specllama.calls.tools import Tool
from specllama.client.protocol import Infill, TextInput
from specllama.errors import AccessError, BusyError, EngineDiedError
from specllama.models.catalogue import ModelDetails
from specllama.server.app import ERRORS
from specllama.server.dialects import ollama as routes
from specllama.server.dialects.ollama import (
    EmbedRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    ShowRequest,
)
from specllama.server.dialects.shared.fields import FieldError, checked
from tests.support.generations import text_only
from tests.support.loads import load_info

ASKED = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def chat(**fields: Any):
    """The engine's request for these fields of a chat."""
    body = checked(OllamaChatRequest, {"messages": ASKED, **fields})
    return text_only(body).generations({}, {})[0]


def generate(templated: bool = True, **fields: Any):
    body = text_only(checked(OllamaGenerateRequest, {"prompt": "x", **fields}))
    if not templated:
        body.without_template()
    return body.generations({}, {})[0]


def refused(make, fields: dict[str, Any]) -> FieldError:
    with pytest.raises(FieldError) as raised:
        make(**fields)
    return raised.value


class TestFields:
    def test_streams_are_the_default(self) -> None:
        assert checked(OllamaChatRequest, {"messages": ASKED}).stream
        assert checked(OllamaChatRequest, {"messages": ASKED, "stream": None}).stream
        assert not checked(OllamaGenerateRequest, {"stream": False}).stream

    def test_options_are_sampling_parameters(self) -> None:
        options = {
            "num_predict": 5, "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 7,
            "stop": ["a"], "repeat_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.25,
            "repeat_last_n": -1,
        }  # fmt: skip
        expected = {"max_tokens": options["num_predict"], **options}
        del expected["num_predict"]
        assert chat(options=options).params == expected
        assert generate(options=options).params == expected

    @pytest.mark.parametrize(
        ("options", "params"),
        [
            ({"num_predict": -1}, {"max_tokens": -1}),
            ({"num_predict": -2}, {"max_tokens": -1}),
            ({"num_predict": 0}, {"max_tokens": -1}),
            ({"num_predict": 8.0}, {"max_tokens": 8}),
            ({"seed": -1}, {}),
            ({"top_k": -1}, {"top_k": -1}),
            ({"stop": "a"}, {"stop": "a"}),
            ({"temperature": None, "num_ctx": 4096.0, "num_gpu": -1, "use_mmap": True, "num_keep": 5}, {}),
            ({"tfs_z": 1, "penalize_newline": True, "numa": False}, {}),
            (
                {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2, "typical_p": 0.7},
                {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2, "typical_p": 0.7},
            ),
        ],
    )
    def test_special_values(self, options, params) -> None:
        parameters = chat(options=options).params
        assert {name: value for name, value in parameters.items() if value is not None} == params

    def test_options_override_the_servers_defaults(self) -> None:
        body = checked(OllamaChatRequest, {"messages": ASKED, "options": {"top_k": 3}})
        assert body.generations({"top_k": 1, "top_p": 0.5}, {})[0].params == {"top_k": 3, "top_p": 0.5}

    @pytest.mark.parametrize(
        ("think", "variables"),
        [
            (None, {"a": 1}),
            (True, {"a": 1, "enable_thinking": True}),
            (False, {"a": 1, "enable_thinking": False}),
            ("low", {"a": 1, "enable_thinking": True, "reasoning_effort": "low"}),
        ],
    )
    def test_thinking(self, think, variables) -> None:
        body = checked(OllamaChatRequest, {"messages": ASKED, "think": think})
        assert body.generations({}, {"a": 1})[0].chat.variables == variables

    @pytest.mark.parametrize(
        ("keep_alive", "expected"),
        [(0, 0), (-1, -1), (300, 300), ("5m", 300), ("1h30m", 5400), ("-1s", -1), ("0", 0), ("1.5s", 1.5)],
    )
    def test_keep_alive(self, keep_alive, expected) -> None:
        body = checked(OllamaChatRequest, {"keep_alive": keep_alive})
        assert body.keep_alive == expected
        assert body.ending == ("load" if expected else "unload")

    def test_empty_fields_of_go_clients(self) -> None:
        """Their empty values are part of every request."""
        more = {"format": None, "options": None, "tools": None, "keep_alive": "5m0s", "think": None}
        sent = {**more, "_debug_render_only": False, "truncate": True, "shift": True}
        messages = [{**ASKED[0], "images": None, "tool_calls": None, "thinking": "", "tool_name": ""}]
        assert chat(messages=messages, **sent).chat.messages == ASKED
        empty = {"suffix": "", "system": "", "template": "", "context": None, "images": None, "raw": False}
        assert generate(**sent, **empty).chat.messages == ASKED

    def test_tools(self) -> None:
        offered = chat(tools=[TOOL, {"function": {"name": "g", "description": "what"}}]).chat.tools
        assert offered is not None
        assert (offered.choice, offered.parallel) == ("auto", True)
        assert offered.tools == [Tool("f", "", {"type": "object", "properties": {}}), Tool("g", "what")]

    def test_a_text_goes_through_the_chat_template_unless_it_is_raw(self) -> None:
        generation = generate(system="s")
        assert generation.chat.messages == [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "x"},
        ]
        assert generate(raw=True).prompt == TextInput("x")
        assert generate(templated=False).prompt == TextInput("x")

    def test_a_suffix_leaves_a_gap(self) -> None:
        for raw in (False, True):
            generation = generate(suffix="y", raw=raw)
            assert generation.prompt == Infill("x", "y")

    def test_the_last_assistant_message_is_continued(self) -> None:
        generation = chat(messages=[*ASKED, {"role": "assistant", "content": "and"}])
        assert (generation.chat.messages, generation.chat.prefix) == (ASKED, "and")

    def test_show_takes_either_name(self) -> None:
        asked = checked(ShowRequest, {"name": "m", "verbose": True, "options": {"a": 1}})
        assert (asked.name, asked.ignored_fields) == ("m", ("options.a",))
        for model in (ShowRequest, EmbedRequest):
            with pytest.raises(FieldError, match=r"options\.num_gpu: must be "):
                checked(model, {"options": {"num_gpu": "all"}})


class TestHistory:
    CALLS = ({"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"name": "g", "arguments": {}}})

    def history(self, *results: dict[str, Any], calls=CALLS) -> list[dict[str, Any]]:
        """The results as the engine gets them, after an answer with these calls."""
        messages = [*ASKED, {"role": "assistant", "content": "", "tool_calls": list(calls)}]
        history = chat(
            messages=[*messages, *({"role": "tool", **result} for result in results)]
        ).chat.messages
        assert history is not None
        return history[1:]

    def test_names_take_precedence_over_order(self) -> None:
        _, *results = self.history({"content": "2", "tool_name": "g"}, {"content": "1", "tool_name": "f"})
        assert [(r["content"], r["name"]) for r in results] == [("1", "f"), ("2", "g")]

    def test_ids_take_precedence_over_names(self) -> None:
        calls = [{"id": f"call_{i}", "type": "function", **self.CALLS[0]} for i in range(2)]
        _, *results = self.history(
            {"content": "2", "tool_call_id": "call_1", "tool_name": "f"},
            {"content": "1", "tool_call_id": "call_0"},
            calls=calls,
        )
        assert [(r["content"], r["tool_call_id"]) for r in results] == [("1", "call_0"), ("2", "call_1")]

    def test_results_without_a_call_are_kept(self) -> None:
        _, *results = self.history({"content": "1"}, {"content": "2"}, {"content": "3", "tool_name": "h"})
        assert results[-1] == {"role": "tool", "content": "3", "tool_call_id": "call00003", "name": "h"}

    def test_two_turns(self) -> None:
        turn = [{"role": "assistant", "tool_calls": [self.CALLS[0]]}, {"role": "tool", "content": "1"}]
        history = chat(messages=[*ASKED, *turn, *turn]).chat.messages
        assert history is not None
        ids = [m.get("tool_call_id") or m["tool_calls"][0]["id"] for m in history[1:]]
        assert ids == ["call00001", "call00001", "call00002", "call00002"]

    def test_arguments_as_text_are_parsed(self) -> None:
        for arguments in ({"a": 1}, '{"a": 1}'):
            assistant, *_ = self.history(calls=[{"function": {"name": "f", "arguments": arguments}}])
            assert assistant["tool_calls"] == [
                {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
            ]


CHAT_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
    ({"messages": [*ASKED, {"role": "tool", "content": "x"}]}, "messages[1]"),
    (
        {"messages": [*ASKED, {"role": "tool", "content": "x", "tool_call_id": "c"}]},
        "messages[1].tool_call_id",
    ),
    (
        {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]},
        "messages[0].tool_calls",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    ({"prompt": "x"}, "prompt"),
]  # fmt: skip
GENERATE_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 5}, "prompt"),
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"context": [1, 2]}, "context"),
    ({"suffix": 5}, "suffix"),
    ({"suffix": "x", "system": "x"}, "system"),
    ({"suffix": "x", "think": "low"}, "think"),
    ({"images": ["aGk="]}, "images"),
    ({"raw": True, "system": "x"}, "system"),
    ({"raw": True, "think": True}, "think"),
    ({"templated": False, "system": "x"}, "system"),
    ({"messages": ASKED}, "messages"),
]
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"think": "much"}, "think"),
    ({"think": 1}, "think"),
    ({"format": "xml"}, "format"),
    ({"format": ["json"]}, "format"),
    ({"format": {"enum": ["x" * 70_000]}}, "format"),
    ({"keep_alive": "soon"}, "keep_alive"),
    ({"keep_alive": "5" + "0" * 90}, "keep_alive"),
    ({"keep_alive": True}, "keep_alive"),
    ({"options": []}, "options"),
    ({"options": {"num_predict": "x"}}, "options.num_predict"),
    ({"options": {"num_predict": 1.5}}, "options.num_predict"),
    ({"options": {"num_predict": -3}}, "options.num_predict"),
    ({"options": {"num_predict": True}}, "options.num_predict"),
    ({"options": {"num_ctx": "big"}}, "options.num_ctx"),
    ({"options": {"use_mmap": 1}}, "options.use_mmap"),
    ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
    ({"speculation": {"trace": True}}, "speculation.trace"),
    ({"_debug_render_only": True}, "_debug_render_only"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), CHAT_REFUSALS + REFUSALS)
def test_a_chat_that_is_refused(fields, param) -> None:
    error = refused(chat, fields)
    assert error.details["param"] == param, error.message
    assert param.split("[")[0] in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(("fields", "param"), GENERATE_REFUSALS + REFUSALS)
def test_a_text_that_is_refused(fields, param) -> None:
    error = refused(generate, fields)
    assert error.details["param"] == param, error.message


@pytest.mark.parametrize("error", [AccessError("no"), BusyError("full"), EngineDiedError("gone")])
def test_errors_of_all_layers_are_one_string(error) -> None:
    assert json.loads(ERRORS.response(error, "/api/chat").body) == {"error": error.message}


class TestShapes:
    INFO = load_info(architecture="llama", n_layer=9, template="t", template_works=True)

    def test_show_has_what_copilot_reads(self) -> None:
        shown = routes.show_entry("m", self.INFO, 4096, 0, {"top_k": 3})
        assert shown["model_info"]["general.architecture"] == "llama"
        assert shown["model_info"]["llama.context_length"] == 4096
        assert shown["model_info"]["general.parameter_count"] == 10**9
        assert shown["details"] == {
            "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"],
            "parameter_size": "1.0B", "quantization_level": "Q4_0",
        }  # fmt: skip
        assert "top_k 3" in shown["parameters"].splitlines()
        assert shown["template"] == "t"

    @pytest.mark.parametrize(
        ("changes", "more"),
        [
            ({}, ["tools"]),
            ({"template_reasons": True}, ["tools", "thinking"]),
            ({"template_works": False, "template_reasons": True}, []),
            ({"infill": True}, ["tools", "insert"]),
        ],
    )
    def test_capabilities(self, changes, more) -> None:
        info = load_info(**{"template_works": True, **changes})
        assert routes.capabilities(info) == ["completion", *more]

    @pytest.mark.parametrize(("n", "share"), [(0, 0), (5, 0.5), (99, 1), (-1, 1)])
    def test_the_share_of_the_gpu(self, n: int, share: float) -> None:
        info = load_info(n_layer=9, file_bytes=1000, target=replace(self.INFO.target, n_gpu_layers=n))
        entry = routes.running_entry("m", info, None)
        assert (entry["size"], entry["size_vram"]) == (1000, 1000 * share)
        assert entry["expires_at"].startswith("9999-")
        assert routes.running_entry("m", info, 60)["expires_at"] == "1970-01-01T00:01:00Z"

    def test_tags(self) -> None:
        """Of a model that cannot be read, that has never been loaded, and that is in memory."""
        header = ModelDetails("llama", 10**9, "Q4_0")
        unread, unloaded, loaded = (routes.tag("m", one, 7, 0) for one in (None, header, self.INFO))
        assert (unread["name"], unread["model"], unread["size"]) == ("m", "m", 7)
        assert unread["modified_at"] == "1970-01-01T00:00:00Z"
        assert routes.timestamp(2.0**40) == "9999-12-31T23:59:59Z"
        assert unread["details"]["parameter_size"] == ""
        assert unloaded == loaded

    @pytest.mark.parametrize(("n", "text"), [(134_515_008, "134.52M"), (8 * 10**9, "8.0B"), (12, "12")])
    def test_sizes(self, n: int, text: str) -> None:
        assert routes.details(load_info(target=replace(self.INFO.target, params=n)))["parameter_size"] == text
