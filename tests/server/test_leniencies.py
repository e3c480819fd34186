"""What all dialects do alike with stop texts, reasoning and the beginning of an answer, on a model whose
template opens its reasoning. What they read alike is in tests/unit/server/dialects/test_leniencies.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.serving import Server, rest
from tests.support.thinker import thinker

USER = {"role": "user", "content": "hi"}
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
    "completions": "/v1/completions",
    "native": "/completion",
    "generate": "/api/generate",
}
CHATS = ("chat", "responses", "messages", "ollama")
PREFIXES = {
    "plain": ("ab", ""),
    "with its reasoning": ("<think>\nso\n</think>\n\nab", "so"),
    "with empty reasoning": ("<think>\n\n</think>\n\nab", ""),
}
Said = tuple[str, str, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("thinker")
    with Server(folder, "-np", "1", *thinker(folder)) as one:
        yield one


def said(server: Server, api: str, **fields: Any) -> Said:
    """(Text, reasoning, why it ended) of an answer."""
    asked = {"messages": [USER]} if api in ("chat", "messages", "ollama") else {"prompt": "hi"}
    asked = {"input": [USER]} if api == "responses" else asked
    reply = server.post(PATHS[api], {"max_tokens": 8, "stream": False, **asked, **fields})
    assert reply.status == 200, reply.body
    body = reply.json
    if api in ("chat", "completions"):
        (choice,) = body["choices"]
        message = choice.get("message", {"content": choice.get("text")})
        return message["content"], message.get("reasoning_content") or "", choice["finish_reason"]
    if api == "responses":
        texts = {item["type"]: item["content"][0]["text"] for item in body["output"]}
        return texts.get("message", ""), texts.get("reasoning", ""), body["status"]
    if api == "messages":
        parts = {part["type"]: part for part in body["content"]}
        text = parts.get("text", {}).get("text", "")
        return text, parts.get("thinking", {}).get("thinking", ""), body["stop_sequence"] or ""
    if api == "native":
        return body["content"], "", body["stopping_word"]
    message = body.get("message", {"content": body.get("response"), "thinking": body.get("thinking")})
    return message["content"], message.get("thinking") or "", body["done_reason"]


@pytest.mark.parametrize("api", PATHS)
def test_a_control_token_as_a_stop_text(server: Server, api: str) -> None:
    (begin,) = server.post("/tokenize", {"content": "<|im_start|>"}).json["tokens"]
    bias = {str(begin): 100, "100257": -100}  # of which the latter is another model's
    more: dict[str, Any] = {"logit_bias": bias, "stop": ["<|im_start|>"], "think": False}
    more |= {"raw": True} if api == "generate" else {}
    text, thought, reason = said(server, api, **more)
    ended = {"messages": "<|im_start|>", "native": "<|im_start|>", "responses": "completed"}
    assert (text, thought, reason) == ("", "", ended.get(api, "stop"))
    assert any("100257 have no bias" in line for line in server.lines)  # once for a server


@pytest.mark.parametrize("api", CHATS)
def test_formats_of_reasoning(server: Server, api: str) -> None:
    asked: dict[str, Any] = {"thinking": {"type": "enabled"}, "max_tokens": 12}
    text, thought, _ = said(server, api, **asked)
    assert text
    assert thought
    whole = f"<think>\n{thought}\n</think>\n\n{text}"
    assert said(server, api, reasoning_format="none", **asked)[:2] == (whole, "")
    assert said(server, api, reasoning_format="deepseek-legacy", **asked)[:2] == (whole, thought)
    if api == "chat":
        streamed = server.chat([USER], stream=True, reasoning_format="none", **asked).events
        deltas = [choice["delta"] for event in streamed for choice in event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == whole


@pytest.mark.parametrize("api", ["chat", "messages", "ollama"])
@pytest.mark.parametrize("kind", PREFIXES)
def test_a_beginning_of_the_answer_is_no_reasoning(server: Server, api: str, kind: str) -> None:
    prefix, thought = PREFIXES[kind]
    begun = [USER, {"role": "assistant", "content": prefix}]
    prompt = server.post("/apply-template", {"messages": begun}).json["prompt"]
    assert prompt.endswith(f"<think>\n{thought}\n</think>\n\nab")
    assert prompt.count("<think>") == 1
    text, thinking, _ = said(server, api, messages=begun)
    assert text
    assert (thinking, "think" in text) == ("", False)


@pytest.mark.parametrize("api", PATHS)
def test_a_schema_of_nothing_is_refused_in_words(server: Server, api: str) -> None:
    asked: dict[str, Any] = {"prompt": "hi"}
    asked = {"messages": [USER]} if api in ("chat", "messages", "ollama") else asked
    asked = {"input": [USER]} if api == "responses" else asked
    forms: list[dict[str, Any]] = [{"json_schema": {"$ref": "#"}}, {"format": {"anyOf": [{"$ref": "#"}]}}]
    if api in CHATS:
        loop = {"properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}
        forms.append({"tools": [{"name": "f", "parameters": loop, "strict": True}], "tool_choice": "any"})
    for form in forms:
        reply = server.post(PATHS[api], {"max_tokens": 2, "stream": False, **asked, **form})
        assert reply.status == 400, reply.body
        assert "cannot be used: no text satisfies it" in str(reply.json)
        assert "tools" in form or "a $ref leads to nothing but itself" in str(reply.json)


BUDGET: dict[str, dict[str, Any]] = {
    "chat": {"reasoning_budget_tokens": 4},
    "responses": {"reasoning": {"max_tokens": 4}},
    "messages": {"thinking": {"type": "enabled", "budget_tokens": 4}},
    "ollama": {"think": True, "options": {"reasoning_budget_tokens": 4}},
}


def endless(server: Server) -> dict[str, Any]:
    """What makes the model reason without end."""
    (closing,) = server.post("/tokenize", {"content": "</think>"}).json["tokens"]
    return {"logit_bias": {str(closing): -100}, "reasoning_budget_message": " enough"}


@pytest.mark.parametrize("api", CHATS)
def test_a_budget_ends_reasoning(server: Server, api: str) -> None:
    asked = {**endless(server), **BUDGET[api], "max_tokens": 24}
    text, thought, reason = said(server, api, **asked)
    assert thought.endswith(" enough")
    assert 4 <= len(thought.removesuffix(" enough")) <= 8
    assert text
    assert said(server, api, **asked, speculation={"enabled": False}) == (text, thought, reason)


def test_an_effort_is_a_budget_where_the_template_knows_none(server: Server) -> None:
    """And what a schema or a required call demands comes after it."""
    asked: dict[str, Any] = {**endless(server), "max_tokens": 60, "reasoning_effort": "none", "think": True}
    text, thought, _ = said(server, "chat", **asked, json_schema={"const": "a"})
    assert (text, thought) == ('"a"', "enough")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    reply = server.chat(**asked, tools=[tool], tool_choice="required", verbose=True).json
    (choice,) = reply["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["f"]
    assert choice["message"]["reasoning_content"] == "enough"
    assert reply["__verbose"]["generation_settings"]["reasoning_budget"] == 0
    assert 0 < reply["usage"]["completion_tokens_details"]["reasoning_tokens"] < 20


def ended_by_control(server: Server, asked: dict[str, Any]) -> str:
    """The text of an answer whose reasoning was ended after its first event; "" where it was over before."""
    answer = server.begin(PATHS["chat"], messages=[USER], stream=True, **asked).getresponse()
    id_ = json.loads(answer.readline().removeprefix(b"data: "))["id"]
    reply = server.post("/v1/chat/completions/control", {"id": id_, "action": "reasoning_end"})
    assert reply.status in (200, 404)
    assert reply.status == 404 or reply.json == {"success": True}
    chunks = [chunk["choices"][0]["delta"] for chunk in rest(answer) if chunk.get("choices")]
    return "".join(delta.get("content") or "" for delta in chunks)


def test_reasoning_is_ended_while_it_is_written(server: Server) -> None:
    asked = {**endless(server), "max_tokens": 1500, "reasoning_control": True}
    assert any(ended_by_control(server, asked) for _ in range(20))  # unless it was over before
    answer = server.begin(PATHS["chat"], messages=[USER], stream=True, max_tokens=1500).getresponse()
    id_ = json.loads(answer.readline().removeprefix(b"data: "))["id"]
    reply = server.post("/v1/chat/completions/control", {"id": id_, "action": "reasoning_end"})
    assert reply.status == 404 or "reasoning_control" in reply.json["message"]
    server.hang_up()


def test_control_of_what_there_is_not(server: Server) -> None:
    path = "/v1/chat/completions/control"
    unknown = server.post(path, {"id": "chatcmpl-nobody", "action": "reasoning_end"})
    assert (unknown.status, unknown.error["param"]) == (404, "id")
    for wrong, param in (
        ({"action": "reasoning_end"}, "id"),
        ({"id": "", "action": "reasoning_end"}, "id"),
        ({"id": "a"}, "action"),
        ({"id": "a", "action": "stop"}, "action"),
    ):
        reply = server.post(path, wrong)
        assert (reply.status, reply.error["param"]) == (400, param), wrong
