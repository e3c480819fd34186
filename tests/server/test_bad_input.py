"""Whatever a client sends: one clear answer that names what is wrong, and the server goes on."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.serving import QUESTION, Server

CHAT = "/v1/chat/completions"
DEEP_SCHEMA: dict[str, object] = {"type": "object"}
for _ in range(40):
    DEEP_SCHEMA = {"type": "object", "properties": {"a": DEEP_SCHEMA}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": 1}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "x"}] * 5000}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 2.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_completion_tokens": 10**12}, "max_completion_tokens"),
        ({"n_predict": -3}, "n_predict"),
        ({"n_predict": 2**31}, "n_predict"),
        ({"stop": [5]}, "stop[0]"),
        ({"logprobs": True, "top_logprobs": 999}, "top_logprobs"),
        ({"logit_bias": {"1": 1e300}}, "logit_bias"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "response_format"),
        ({"json_schema": {}, "grammar": 'root ::= "a"'}, "json_schema"),
        ({"speculation": {"max": -1}}, "speculation.max"),
        ({"speculation": {"max": 10_000}}, "speculation.max"),
        ({"stream_options": []}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs"),
    ],
)
def test_a_field_that_cannot_be_used(server: Server, fields, param) -> None:
    reply = server.chat(**{"messages": QUESTION, **fields})
    assert reply.status == 400, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == param, reply.error
    assert reply.error["message"]
    assert len(reply.body) < 1000


@pytest.mark.parametrize(
    ("fields", "needle"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [4096]}, "4095"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["x"] * 60_000}, "prompt"),
        ({"prompt": ["x"] * 64, "n": 8}, "64"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "suffix": 5}, "suffix"),
        ({"prompt": [5, 6], "suffix": "y"}, "suffix"),
        ({"prompt": "x", "t_max_prompt_ms": 0.5}, "t_max_prompt_ms"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
    ],
)
def test_a_field_of_completions_that_cannot_be_used(server: Server, fields, needle) -> None:
    reply = server.post("/v1/completions", fields)
    assert (reply.status, needle in reply.error["message"]) == (400, True), reply.error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "needle"),
    [
        ({"json_schema": {"type": "nonsense"}}, "nonsense"),
        ({"json_schema": DEEP_SCHEMA}, "nested"),
        ({"json_schema": {"enum": ["x" * 70_000]}}, "65536"),
        ({"json_schema": {"$ref": "#"}}, "schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"strict": True, "schema": {"type": "string", "pattern": "(?=x)"}},
                }
            },
            "schema",
        ),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 1}}, "schema"),
        ({"json_schema": False}, "schema"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "nonsense"}, "grammar"),
        ({"grammar": "root ::= root"}, "grammar"),
        ({"chat_template_kwargs": {"add_generation_prompt": {"a": 1}}, "messages": [{"role": "user"}]}, ""),
    ],
)
def test_bad_grammars_are_refused_quickly(server: Server, fields, needle, stream: bool) -> None:
    began = time.monotonic()
    reply = server.chat(**{"max_tokens": 2, "stream": stream, **fields})
    assert time.monotonic() - began < 20
    assert reply.status == 400 or not needle, reply.body
    if needle:
        assert needle in reply.error["message"]
    assert server.chat(max_tokens=1).status == 200


def test_a_prompt_that_does_not_fit(server: Server) -> None:
    for stream in (False, True):
        reply = server.chat([{"role": "user", "content": "zip " * 4000}], stream=stream)
        assert reply.status == 400
        assert reply.error["type"] == "exceed_context_size_error"
        assert reply.error["code"] == "context_length_exceeded"
        assert reply.error["n_prompt_tokens"] > reply.error["n_ctx"] == 2048


@pytest.mark.parametrize(
    ("body", "needle"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "Infinity"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "temperature"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"[" * 60_000, "nested"),
        (b"[" * 100_000, "lists"),
        (b'{"messages": "\xed\xa0\x80"}', "UTF-8"),
        ('{"messages": []}'.encode("utf-16"), "UTF-8"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested"),
        (b'{"n": ' + b"9" * 10_000 + b"}", "JSON"),
        (b"a=b&c=d", "JSON"),
    ],
    ids=range(15),
)
def test_invalid_bodies_are_refused(server: Server, body: bytes, needle: str) -> None:
    reply = server.post(CHAT, body)
    assert (reply.status, needle in reply.error["message"]) == (400, True), reply.error


def test_an_empty_prompt_is_the_bos_token(server: Server) -> None:
    usage_counts = server.complete("", max_tokens=2, ignore_eos=True).json["usage"]
    assert (usage_counts["prompt_tokens"], usage_counts["completion_tokens"]) == (1, 2)


def test_an_excessive_max_tokens_is_limited_by_the_context(exact: Server) -> None:
    for length in (2**31 - 1, -2):
        reply = exact.complete("zip", max_tokens=length, ignore_eos=True).json
        assert reply["choices"][0]["finish_reason"] == "length"
        assert 500 < reply["usage"]["total_tokens"] <= 513


def test_a_model_that_is_not_served(server: Server) -> None:
    for reply in (server.chat(model="another"), server.complete(model="another")):
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert "pydoc-target" in reply.error["message"]


def test_a_surrogate_pair_is_a_character(server: Server) -> None:
    body = rb'{"content": "\ud83d\ude00"}'
    ids = server.post("/tokenize", body).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["content"] == "😀"


def test_nul_and_other_odd_characters(server: Server) -> None:
    odd = [{"role": "user", "content": "a\x00b \u2028 \ufffe 😀 " + chr(0xF0000)}]
    assert server.chat(odd, max_tokens=2).status == 200


def test_a_body_that_is_too_large(server: Server) -> None:
    reply = server.post(CHAT, b'{"a": "' + b"x" * (5 * 1024 * 1024) + b'"}')
    assert reply.status == 413
    assert reply.error["type"] == "request_too_large"
    assert "those with images may have 32000000, but no model here has a projector" in reply.error["message"]
    connection = server.connect()
    connection.request("POST", CHAT, iter([b"x" * 65536] * 80), encode_chunked=True)  # no length
    assert connection.getresponse().status == 413
    connection.close()


def test_endless_chunks_are_refused(server: Server) -> None:
    """Cut off after what is read at most."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    try:
        received = server.raw(head + chunk * 1000)
    except (BrokenPipeError, ConnectionResetError):
        return
    assert b"413" in received.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
    ],
    ids=range(6),
)
def test_invalid_http_is_refused(server: Server, data: bytes) -> None:
    try:
        received = server.raw(data, seconds=1.0)
    except (BrokenPipeError, ConnectionResetError):
        received = b""
    assert not received or received.startswith(b"HTTP/1.1 4")
    assert server.get("/health").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v1/models/%00%0a", 404),
    ],
)
def test_unknown_routes_are_refused(server: Server, method: str, path: str, status: int) -> None:
    reply = server.ask(method, path)
    assert reply.status == status
    assert reply.error["message"]


def test_errors_take_the_shape_of_their_path(server: Server) -> None:
    ollama, anthropic = server.get("/api/nothing"), server.post("/v1/messages/nothing", {})
    assert isinstance(ollama.json["error"], str)
    assert anthropic.json["type"] == "error"
    assert anthropic.json["error"]["type"] == "not_found_error"
    assert anthropic.json["request_id"] == anthropic.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template"])
@pytest.mark.parametrize("body", [{}, {"content": 5}, {"tokens": ["x"]}, {"tokens": [-1]}, {"x": 1}])
def test_the_small_routes(server: Server, path: str, body) -> None:
    reply = server.post(path, body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


def test_messages_of_errors_are_ascii_and_short(server: Server) -> None:
    reply = server.post(CHAT, json.dumps({"é" * 5000: 1}).encode())
    assert reply.status == 400
    assert reply.body.isascii()
    assert len(reply.body) < 1500
