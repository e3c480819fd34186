"""Ollama's API over HTTP: streams of JSON lines, loads, names, errors in its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.serving import QUESTION, Api, Reply, Server

NAME = "pydoc-target"
SHORT = {"num_predict": 8, "seed": 3, "temperature": 0}


def chat(server: Api, **fields: Any) -> Reply:
    return server.post("/api/chat", {"model": NAME, "messages": QUESTION, "options": SHORT, **fields})


def generate(server: Api, **fields: Any) -> Reply:
    return server.post("/api/generate", {"model": NAME, "prompt": "zip", "options": SHORT, **fields})


def lines(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson"
    text = reply.body.decode()
    assert text.endswith("\n")
    assert "\n\n" not in text
    return [json.loads(line) for line in text.splitlines()]


def test_a_chat_and_its_stream_are_the_same(server: Server) -> None:
    chunks, whole = lines(chat(server)), chat(server, stream=False).json
    assert "".join(chunk["message"]["content"] for chunk in chunks) == whole["message"]["content"] != ""
    assert {chunk["model"] for chunk in chunks} == {NAME}
    assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for last in (chunks[-1], whole):
        assert (last["done_reason"], last["eval_count"]) == ("length", 8)
        assert last["prompt_eval_count"] > 0
        for part in ("total", "load", "prompt_eval", "eval"):
            assert isinstance(last[f"{part}_duration"], int)
            assert last[f"{part}_duration"] > 0
        assert last["timings"]["predicted_n"] == 8


def test_a_text_and_its_stream_are_the_same(server: Server) -> None:
    for fields in ({}, {"raw": True}, {"system": "Be short."}):
        chunks, whole = lines(generate(server, **fields)), generate(server, stream=False, **fields).json
        assert "".join(chunk["response"] for chunk in chunks) == whole["response"] != ""
    raw = server.complete("zip", max_tokens=8, seed=3, temperature=0).json["choices"][0]["text"]
    assert generate(server, raw=True, stream=False).json["response"] == raw


def test_a_chat_is_the_same_in_both_dialects(server: Server) -> None:
    whole = chat(server, stream=False).json["message"]["content"]
    other = server.chat(max_tokens=8, seed=3, temperature=0).json["choices"][0]["message"]["content"]
    assert whole == other


def test_logprobs(server: Server) -> None:
    whole = chat(server, stream=False, logprobs=True, top_logprobs=2).json
    streamed = [entry for chunk in lines(chat(server, logprobs=True, top_logprobs=2))
                for entry in chunk.get("logprobs", [])]  # fmt: skip
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole["logprobs"]]
    assert "".join(entry["token"] for entry in streamed) == whole["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in streamed)
    assert "logprobs" not in chat(server, stream=False).json


def test_the_format_is_enforced(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    more = {"stream": False, "options": {"num_predict": 40, "seed": 3}}
    assert json.loads(chat(server, format=schema, **more).json["message"]["content"])["a"] in ("x", "y")
    reply = generate(server, format={"type": "object", "additionalProperties": False}, **more)
    assert json.loads(reply.json["response"]) == {}
    assert chat(server, format="json", **more).json["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("path", "fields"), [("/api/chat", {"messages": []}), ("/api/chat", {}), ("/api/generate", {})]
)
@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (0, "unload")])
def test_an_empty_request_loads_or_unloads_the_model(
    server: Server, path: str, fields, keep_alive, reason: str
) -> None:
    asked = {"model": NAME, "keep_alive": keep_alive, **fields}
    (streamed,) = lines(server.post(path, asked))
    whole = server.post(path, {**asked, "stream": False}).json
    for answer in (streamed, whole):
        assert (answer["done"], answer["done_reason"], answer["model"]) == (True, reason, NAME)
        assert answer.get("message", {"content": answer.get("response")})["content"] == ""
    assert server.answers()


@pytest.mark.parametrize("name", [NAME, f"{NAME}:latest", "", None])
def test_names(server: Server, name) -> None:
    reply = chat(server, model=name, stream=False)
    assert (reply.status, reply.json["model"]) == (200, name or NAME)
    assert server.post("/api/show", {"name": name}).status == 200


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show"])
def test_a_model_that_is_not_served(server: Server, path: str) -> None:
    for stream in ({}, {"stream": False}) if path != "/api/show" else ({},):
        reply = server.post(path, {"model": "another:latest", **stream})
        assert reply.status == 404
        assert "model 'another' not found" in reply.json["error"]
        assert NAME in reply.json["error"]


def test_copilots_first_requests(server: Server) -> None:
    version = server.get("/api/version").json["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
    (listed,) = server.get("/api/tags").json["models"]
    assert listed["name"] == listed["model"] == NAME
    assert listed["size"] > 10**6
    assert len(listed["digest"]) == 64
    shown = server.post("/api/show", {"model": listed["model"]}).json
    arch = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{arch}.context_length"] == 2048
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert shown["details"] == listed["details"]
    assert shown["details"]["family"] == arch


def test_ps_lists_the_models_in_memory(server: Server) -> None:
    (only,) = server.get("/api/ps").json["models"]
    assert (only["name"], only["context_length"], only["size_vram"]) == (NAME, 2048, 0)


def test_heads(server: Server) -> None:
    """`ollama` asks so whether a server is there."""
    for path in ("/", "/api/version"):
        reply = server.ask("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")
    assert server.get("/").status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", f"/api/{name}") for name in ("pull", "push", "create", "copy")),
        ("DELETE", "/api/delete"),
    ],
)
def test_unsupported_routes(server: Server, method: str, path: str) -> None:
    reply = server.ask(method, path, {"model": "x", "stream": True, "nonsense": [1]})
    assert reply.status == 501
    assert set(reply.json) == {"error"}
    assert "not offered" in reply.json["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/chat", b"{", 400),
        ("POST", "/api/pull", b"{", 400),
        ("POST", "/api/chat", b"[]", 400),
        ("POST", "/api/chat", {"messages": 1}, 400),
        ("POST", "/api/chat", {"messages": QUESTION, "think": True}, 400),
        ("POST", "/api/generate", {"prompt": "x", "think": "high", "stream": False}, 400),
        ("POST", "/api/chat", {"messages": [{"role": "user", "content": "zip " * 4000}]}, 400),
        ("POST", "/api/chat", {"messages": QUESTION, "format": {"type": "nonsense"}}, 400),
        ("GET", "/api/chat", None, 405),
        ("POST", "/api/tags", {}, 405),
        ("GET", "/api/nothing", None, 404),
        ("POST", "/api/chat", b'{"a": "' + b"x" * (5 * 1024 * 1024) + b'"}', 413),
    ],
    ids=range(12),
)
def test_errors_are_one_string(server: Server, method: str, path: str, body, status: int) -> None:
    reply = server.ask(method, path, body)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json) == {"error"}
    assert isinstance(reply.json["error"], str)


def test_thinking_needs_a_reasoning_model(server: Server) -> None:
    """The words are those that clients look for."""
    assert f'"{NAME}" does not support thinking' in chat(server, think="low").json["error"]
    assert chat(server, think=False).status == 200


def test_a_suffix_needs_an_infill_model(server: Server) -> None:
    reply = generate(server, suffix="x")
    assert (reply.status, f'"{NAME}" does not support insert' in reply.json["error"]) == (400, True)


def test_a_request_for_a_larger_context_is_logged(server: Server) -> None:
    assert chat(server, options={**SHORT, "num_ctx": 8192}).status == 200
    server.until(lambda: any("num_ctx 8192" in line for line in server.lines))
