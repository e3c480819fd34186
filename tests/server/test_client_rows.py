"""Requests with which sessions of real clients ended, in every API, against a real server."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.conversation_table import CONTINUED, SIXTY
from tests.support.conversations import WRITERS, Conversation
from tests.support.serving import Reply, Server

Q = [{"role": "user", "content": "hi"}]
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}
NAMED = {one.name: one for one in SIXTY + CONTINUED}
PERSON = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer"}},
    "required": ["kind", "age"],
}
MISTRAL = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}"
    "{% endfor %}"
)
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
every = pytest.mark.parametrize("api", PATHS)


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with nothing but its defaults, a strict template, and --verbose."""
    home = tmp_path_factory.mktemp("lenient")
    (home / "template.jinja").write_text(MISTRAL, "utf-8")
    log = "--verbose", "--log-file", str(home / "llama.log")
    flags = ("-np", "2", "--chat-template-file", str(home / "template.jinja"), *log)
    with Server(home, *flags) as one:
        yield one


def post(server: Server, api: str, body: dict[str, Any], n: int = 2, **more: Any) -> Reply:
    """A short answer in one piece."""
    limits = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
    if api == "ollama":
        options = {"num_predict": n, **body.get("options", {})}
        body = {"stream": False, **body, "options": options}
    else:
        body = {limits[api]: n, **body}
    return server.post(PATHS[api], body, **more)


def asked(server: Server, api: str, **fields: Any) -> Reply:
    return post(server, api, {"input" if api == "responses" else "messages": Q, **fields})


def n_prompt(reply: Reply, api: str) -> int:
    """Tokens of the prompt."""
    assert reply.status == 200, reply.body
    usage = reply.json["prompt_eval_count"] if api == "ollama" else reply.json["usage"]
    counts: dict[str, Callable[[], int]] = {
        "chat": lambda: usage["prompt_tokens"],
        "responses": lambda: usage["input_tokens"],
        "messages": lambda: usage["input_tokens"] + usage["cache_read_input_tokens"],
        "ollama": lambda: usage,
    }
    return counts[api]()


def text_of(reply: Reply, api: str) -> str:
    assert reply.status == 200, reply.body
    answer = reply.json
    if api == "chat":
        return str(answer["choices"][0]["message"]["content"])
    if api == "responses":
        return str(answer["output"][-1]["content"][0]["text"])
    return str(answer["content"][0]["text"] if api == "messages" else answer["message"]["content"])


@pytest.mark.parametrize(
    "name",
    [
        "two results the other way round", "reasoning in place 1", "cut off: {\"text\": \"once upon",
        "a picture earlier", "a picture as a result", "two questions after instructions", "null everywhere",
        "own fields in parts", "a call of another provider", "something of another provider",
        "instructions between turns", "a question after a result", "ids that begin again",
    ],
)  # fmt: skip
def test_prompts_are_the_same_in_every_api(server: Server, name: str) -> None:
    conversation = NAMED[name]
    alone = {"chat_template_kwargs": {"enable_thinking": True}}  # Messages has none unless asked
    counts = {api: n_prompt(post(server, api, {**WRITERS[api](conversation), **alone}), api) for api in PATHS}
    assert len(set(counts.values())) == 1, counts


def test_results_are_shown_in_the_order_of_their_calls(server: Server) -> None:
    body = WRITERS["chat"](NAMED["two results the other way round"])
    prompt = server.post("/apply-template", body).json["prompt"]
    assert 0 < prompt.index("PARIS-10") < prompt.index("ROME-30")


@pytest.mark.parametrize("seed", range(4))
@every
def test_a_tool_chosen_by_name_is_called_once(server: Server, api: str, seed: int) -> None:
    age = {"type": "integer", "minimum": 0, "maximum": 99}
    schema = {"type": "object", "properties": {"age": age}, "additionalProperties": False}
    function = {"name": "P", "parameters": schema}
    tools: dict[str, list[dict[str, Any]]] = {
        "chat": [{"type": "function", "function": function}],
        "responses": [{"type": "function", **function}],
        "messages": [{"name": "P", "input_schema": schema}],
        "ollama": [{"type": "function", "function": function}],
    }
    choices: dict[str, dict[str, Any]] = {
        "chat": {"type": "function", "function": {"name": "P"}},
        "responses": {"type": "function", "name": "P"},
        "messages": {"type": "tool", "name": "P"},
        "ollama": {"type": "function", "function": {"name": "P"}},
    }
    turns = {"input" if api == "responses" else "messages": Q}
    more = {"options": {"seed": seed}} if api == "ollama" else {"seed": seed}
    reply = post(server, api, {**turns, **more, "tools": tools[api], "tool_choice": choices[api]}, 200)
    assert reply.status == 200, reply.body
    answer = reply.json
    calls: dict[str, Callable[[], list[Any]]] = {
        "chat": lambda: answer["choices"][0]["message"]["tool_calls"],
        "responses": lambda: [item for item in answer["output"] if item["type"] == "function_call"],
        "messages": lambda: [block for block in answer["content"] if block["type"] == "tool_use"],
        "ollama": lambda: answer["message"]["tool_calls"],
    }
    assert len(calls[api]()) == 1


def test_a_call_that_was_cut_off_can_be_sent_back(server: Server) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tools = [{"type": "function", "function": {"name": "write", "parameters": schema}}]
    reply = server.chat(Q, tools=tools, tool_choice="required", max_tokens=21, seed=1)
    message = reply.json["choices"][0]["message"]
    if not message.get("tool_calls"):
        pytest.skip("the call had not begun")
    with pytest.raises(ValueError):
        json.loads(message["tool_calls"][0]["function"]["arguments"])
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "it was cut off"}
    assert server.chat([*Q, message, result], tools=tools, max_tokens=2).status == 200


@every
def test_templates_that_demand_alternation(lenient: Server, api: str) -> None:
    for name in ("two questions after instructions", "two answers", "an answer first", "an empty answer"):
        assert post(lenient, api, WRITERS[api](NAMED[name])).status == 200, name


@every
def test_objects_of_schemas_are_closed(server: Server, api: str) -> None:
    forms: dict[str, dict[str, Any]] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}},
        "responses": {"text": {"format": {"type": "json_schema", "name": "x", "schema": PERSON}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}},
        "ollama": {"format": PERSON},
    }
    turns = {"input" if api == "responses" else "messages": Q}
    more = (
        {"options": {"seed": 1, "temperature": 0.7}} if api == "ollama" else {"seed": 1, "temperature": 0.7}
    )
    assert set(json.loads(text_of(post(server, api, {**turns, **forms[api], **more}, 100), api))) == {
        "kind",
        "age",
    }


def test_schema_open(tmp_path: Any) -> None:
    with Server(tmp_path, "--schema-open", "-np", "1") as one:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**PERSON, "minProperties": 3}}}
        choice = one.chat(Q, response_format=form, max_tokens=200, seed=1).json["choices"][0]
        assert choice["finish_reason"] == "length" or len(json.loads(choice["message"]["content"])) >= 3


@every
@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "propertyNames": {"type": "string"}, "maxProperties": 1}, "propertyNames"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 2, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "password", "maxLength": 2}, "password"),
        ({"type": "string", "pattern": "^(?=.*[0-9]).+$", "maxLength": 2}, "(?=.*[0-9])"),
    ],
)
def test_unenforceable_schema_parts_are_dropped_and_logged(
    server: Server, api: str, schema, named: str
) -> None:
    forms: dict[str, dict[str, Any]] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        "responses": {"text": {"format": {"type": "json_schema", "schema": schema}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "ollama": {"format": schema},
    }
    assert asked(server, api, **forms[api]).status == 200
    assert server.said("not held to its whole schema", named)


@every
@pytest.mark.parametrize("schema", [{"type": "integer", "minimum": 5, "maximum": 1}, {"$ref": "#/$defs/x"}])
def test_errors_of_unusable_schemas_name_the_field(server: Server, api: str, schema) -> None:
    forms: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": (
            "response_format.json_schema.schema",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        ),
        "responses": ("text.format.schema", {"text": {"format": {"type": "json_schema", "schema": schema}}}),
        "messages": (
            "output_config.format.schema",
            {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        ),
        "ollama": ("format", {"format": schema}),
    }
    field, form = forms[api]
    reply = asked(server, api, **form)
    assert reply.status == 400
    assert field in (reply.json["error"] if api == "ollama" else reply.error["message"])
    if api in ("chat", "responses"):
        assert reply.error["param"] == field


@every
def test_a_new_picture_is_refused(server: Server, api: str) -> None:
    conversation = Conversation("", [NAMED["a picture earlier"].turns[0]])
    reply = post(server, api, WRITERS[api](conversation))
    assert reply.status == 400
    message = reply.json["error"] if api == "ollama" else reply.error["message"]
    assert "loaded without a projector" in message
    assert "mmproj-*.gguf, which -mm names; or send the message without" in message


@every
def test_ignored_fields_are_named_and_logged_once(server: Server, api: str) -> None:
    name = f"mood_{api}"
    for _ in range(2):
        assert asked(server, api, **{name: 1}).json["ignored_fields"] == [name]
    assert "ignored_fields" not in asked(server, api).json
    assert server.said(f'no effect here: "{name}"') == 1


@every
def test_streams_name_ignored_fields_too(server: Server, api: str) -> None:
    turns = {"input" if api == "responses" else "messages": Q}
    reply = post(server, api, {**turns, "stream": True, "mood": 1})
    assert reply.status == 200
    assert reply.body.count(b'"ignored_fields":["mood"]') == 1


@every
def test_requests_without_a_model_name(server: Server, api: str) -> None:
    assert asked(server, api, model="").status == 200
    assert asked(server, api, model="gpt-4o").status == 404


@every
def test_one_model_answers_to_any_name(lenient: Server, api: str) -> None:
    reply = asked(lenient, api, model="gpt-4o")
    assert reply.status == 200
    assert reply.json["model"] == "gpt-4o"


def test_one_model_is_described_loaded_and_kept_under_any_name(lenient: Server) -> None:
    for name in ("gpt-4o", "pydoc-target.gguf", "pydoc-target:latest"):
        assert lenient.get(f"/v1/models/{name}").json["id"] == name
        assert lenient.get(f"/api/v0/models/{name}").json["id"] == name
        assert "completion" in lenient.post("/api/show", {"model": name}).json["capabilities"]
        assert lenient.post("/models/load", {"model": name}).json == {"success": True}
        assert "alone" in lenient.post("/models/unload", {"model": name}).error["message"]


def test_paths_as_clients_write_them(server: Server) -> None:
    forwarded = {"X-Forwarded-Proto": "https"}
    for path in ("/v1/models/", "//v1//models", "/v1/models"):
        assert server.get(path, headers=forwarded).json["object"] == "list"
    body = {"messages": Q, "max_tokens": 1}
    assert server.post("/v1/chat/completions/", body, headers=forwarded).status == 200
    assert server.post("//v1/chat/completions", body).status == 200
    target = f"GET {server.url}/v1/models HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n\r\n"
    assert server.raw(target.encode()).startswith(b"HTTP/1.1 200")
    foreign = target.replace(server.host, "evil.example", 1)
    assert server.raw(foreign.encode()).startswith(b"HTTP/1.1 421")


def test_a_root_path(tmp_path: Any) -> None:
    with Server(tmp_path, "--root-path", "/llm", "--allowed-origin", "*", "-np", "1") as one:
        for path in ("/llm/v1/models", "/v1/models", "/llm/v1/models/"):
            reply = one.get(path, headers={"Origin": "https://example.org"})
            assert reply.status == 200
            assert reply.headers["access-control-allow-origin"] == "https://example.org"
        page = one.get("/llm/", headers={"Accept": "text/html"})
        assert b'src="page/app.js"' in page.body
        assert one.get("/llm/page/app.js").status == 200
        assert one.get("/llmx/v1/models").status == 404


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose template knows reasoning."""
    home = tmp_path_factory.mktemp("reasoner")
    (home / "template.jinja").write_text(QWEN3, "utf-8")
    with Server(home, "-np", "1", "--chat-template-file", str(home / "template.jinja")) as one:
        yield one


def test_an_answer_with_reasoning_is_continued(reasoner: Server) -> None:
    """Responses do not continue a last answer."""
    expected = {
        "after reasoning": "<|im_start|>assistant\n<think>\nsay hello\n</think>\n\nHel",
        "reasoning goes on": "<|im_start|>assistant\n<think>\nsay hel",
        "an answer goes on": "<|im_start|>assistant\nIt is",
    }
    for name, end in expected.items():
        body = WRITERS["chat"](NAMED[name])
        prompt = reasoner.post("/apply-template", body).json["prompt"]
        assert prompt.endswith(end), prompt
        given = {**body, "enable_thinking": False} if name == "after reasoning" else body
        assert reasoner.post("/apply-template", given).json["prompt"] == prompt
        bodies = {api: WRITERS[api](NAMED[name]) for api in ("chat", "messages", "ollama")}
        if name == "an answer goes on":  # Messages has no thinking in an answer that has begun
            del bodies["messages"]
        counts = {n_prompt(post(reasoner, api, body), api) for api, body in bodies.items()}
        assert len(counts) == 1


@pytest.mark.parametrize("api", ["chat", "messages", "ollama"])
def test_continued_reasoning_stays_reasoning(reasoner: Server, api: str) -> None:
    answer = post(reasoner, api, WRITERS[api](NAMED["reasoning goes on"]), 4).json
    shown: dict[str, Callable[[], Any]] = {
        "chat": lambda: answer["choices"][0]["message"]["reasoning_content"],
        "messages": lambda: answer["content"][0]["thinking"],
        "ollama": lambda: answer["message"]["thinking"],
    }
    assert shown[api]()


@every
def test_compressed_bodies(server: Server, api: str) -> None:
    turns = {"input" if api == "responses" else "messages": Q}
    limits = {"options": {"num_predict": 1}, "stream": False} if api == "ollama" else {"max_tokens": 1}
    if api == "responses":
        limits = {"max_output_tokens": 1}
    body = gzip.compress(json.dumps({**turns, **limits}).encode())
    assert server.post(PATHS[api], body, headers={"Content-Encoding": "gzip"}).status == 200
    refused = server.post(PATHS[api], body, headers={"Content-Encoding": "br"})
    assert refused.status == 415
    assert b"Content-Encoding" in refused.body
    bomb = gzip.compress(b"{" + b" " * 50_000_000)
    assert server.post(PATHS[api], bomb, headers={"Content-Encoding": "gzip"}).status == 413


@pytest.mark.parametrize(("api", "expects"), [("chat", False), *((api, True) for api in PATHS)])
def test_an_excessive_content_length_is_refused_from_the_header(
    server: Server, api: str, expects: bool
) -> None:
    head = f"POST {PATHS[api]} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
    head += "Expect: 100-continue\r\n" if expects else ""
    began = time.monotonic()
    received = server.raw(head.encode() + b"\r\n" + (b"" if expects else b"{}"), seconds=20.0)
    assert received.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in received
    assert time.monotonic() - began < 18  # `raw` waits longer


def test_verbose_shows_the_prompt(lenient: Server) -> None:
    """As llama-server's own tests look for it."""
    shown = lenient.chat(Q, max_tokens=2).json["__verbose"]["prompt"]
    assert "[INST]hi[/INST]" in shown
    assert "__verbose" not in lenient.chat(Q, max_tokens=2, verbose=False).json
    assert "prompt" in lenient.complete("x", max_tokens=2).json["__verbose"]


def test_seeds_of_several_answers_survive_a_float_round_trip(server: Server) -> None:
    seeds = [choice["seed"] for choice in server.chat(Q, n=4, max_tokens=1).json["choices"]]
    assert len(set(seeds)) == 4
    assert all(seed < 2**53 for seed in seeds)


def test_stop_tokens(server: Server) -> None:
    ids = server.complete("def read(", max_tokens=8, temperature=0, ignore_eos=True, stream=False)
    native = server.post(
        "/completion", {"prompt": "def read(", "n_predict": 8, "temperature": 0, "return_tokens": True}
    )
    tokens = native.json["tokens"]
    stopped = server.post(
        "/completion",
        {
            "prompt": "def read(",
            "n_predict": 8,
            "temperature": 0,
            "return_tokens": True,
            "stop_token_ids": tokens[3:4],
        },
    ).json
    first = tokens.index(tokens[3])
    assert (stopped["stop_type"], len(stopped["tokens"])) == ("eos", first + 1)
    assert ids.json["choices"][0]["text"].startswith(stopped["content"])


def test_vllms_choices_and_regular_expressions(server: Server) -> None:
    message = server.chat(Q, guided_choice=["yes", "no"], max_tokens=20).json["choices"][0]["message"]
    assert message["content"] in ("yes", "no")
    message = server.chat(Q, structured_outputs={"regex": r"\d{3}/[ab]"}, max_tokens=20).json["choices"][0][
        "message"
    ]
    assert message["content"][3] == "/"


def test_lm_studios_list(server: Server) -> None:
    listing = server.get("/api/v0/models").json
    (one,) = [model for model in listing["data"] if model["id"] == "pydoc-target"]
    assert (one["state"], one["type"], one["loaded_context_length"]) == ("loaded", "llm", 2048)
    assert server.get("/api/v0/models/pydoc-target").json["max_context_length"] == 2048
    assert server.get("/api/v0/models/nothing").error["code"] == "model_not_found"
