"""Conversations in every API of a server, and what each answer reports of its prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.conversations import WRITERS, Answer, Body, Call, Conversation, Turn
from tests.support.serving import Api

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ABOUT = "The weather of a city, from stations near it, and how it will be there on each of the next days."


@dataclass(frozen=True)
class Read:
    """What an answer reports. n_cached: tokens of the prompt that were reused. n_evaluated: the others."""

    n_prompt: int
    n_cached: int
    n_evaluated: int
    answer: Answer
    body: Body


def ask(
    server: Api,
    api: str,
    turns: Sequence[Turn],
    tools: bool = False,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Read:
    """Send a conversation in an API, without a stream. Its figures must agree with each other."""
    body = WRITERS[api](Conversation("", turns)) | (_tools(api) if tools else {})
    limit = {"messages": "max_tokens", "responses": "max_output_tokens"}.get(api, "max_tokens")
    body |= {limit: 24, "stream": False, "temperature": 0, "seed": 3} | fields
    reply = server.post(PATHS[api], body, headers=headers)
    assert reply.status == 200, reply.body
    found = READERS[api](reply.json)
    timings = reply.json.get("timings", {"cache_n": found.n_cached, "prompt_n": found.n_evaluated})
    assert (timings["cache_n"], timings["prompt_n"]) == (found.n_cached, found.n_evaluated)
    return found


def prompt_ids(server: Api, turns: Sequence[Turn], tools: bool = False, **fields: Any) -> list[int]:
    """The ids of a conversation's prompt."""
    body = WRITERS["chat"](Conversation("", turns)) | (_tools("chat") if tools else {}) | fields
    text = server.post("/apply-template", body).json["prompt"]
    return text_ids(server, text, add_special=True, parse_special=True)


def text_ids(server: Api, text: str, **fields: Any) -> list[int]:
    """The ids of a text."""
    found: list[int] = server.post("/tokenize", {"content": text, **fields}).json["tokens"]
    return found


def n_new(server: Api, before: Sequence[Turn], after: Sequence[Turn], tools: bool = False) -> int:
    """Ids of the second prompt that the first does not begin with."""
    a, b = (prompt_ids(server, one, tools) for one in (before, after))
    return n_beyond(a, b)


def n_beyond(a: Sequence[int], b: Sequence[int]) -> int:
    """How many of the ids b follow those that a begins with too."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return len(b) - n


def _tools(api: str) -> Body:
    shown: Body = {"name": "weather", "description": ABOUT, "parameters": CITY}
    if api == "messages":
        shown = {"name": "weather", "description": ABOUT, "input_schema": CITY}
    elif api != "responses":
        shown = {"type": "function", "function": shown}
    else:
        shown |= {"type": "function"}
    return {"tools": [shown]}


def _chat(body: Body) -> Read:
    usage, message = body["usage"], body["choices"][0]["message"]
    n_cached = usage["prompt_tokens_details"]["cached_tokens"]
    calls = [Call(c["id"], **c["function"]) for c in message.get("tool_calls") or ()]
    answer = Answer(message.get("content") or "", message.get("reasoning_content") or "", calls)
    return Read(usage["prompt_tokens"], n_cached, usage["prompt_tokens"] - n_cached, answer, body)


def _responses(body: Body) -> Read:
    usage, text, thought, calls = body["usage"], "", "", []
    for item in body["output"]:
        if item["type"] == "function_call":
            calls.append(Call(item["call_id"], item["name"], item["arguments"]))
        elif item["type"] == "reasoning":
            thought += "".join(part["text"] for part in item["content"])
        else:
            text += "".join(part["text"] for part in item["content"])
    n_cached, n_prompt = usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
    return Read(n_prompt, n_cached, n_prompt - n_cached, Answer(text, thought, calls), body)


def _messages(body: Body) -> Read:
    usage, blocks = body["usage"], body["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    used = [block for block in blocks if block["type"] == "tool_use"]
    calls = [Call(block["id"], block["name"], json.dumps(block["input"])) for block in used]
    n_cached = usage["cache_read_input_tokens"]
    n_evaluated = usage["input_tokens"]
    return Read(n_cached + n_evaluated, n_cached, n_evaluated, Answer(text, thought, calls), body)


def _ollama(body: Body) -> Read:
    message, n_cached = body["message"], body["timings"]["cache_n"]
    made = message.get("tool_calls") or ()
    calls = [Call(c["id"], c["function"]["name"], json.dumps(c["function"]["arguments"])) for c in made]
    answer = Answer(message["content"], message.get("thinking") or "", calls)
    n_prompt = body["prompt_eval_count"]
    return Read(n_prompt, n_cached, n_prompt - n_cached, answer, body)


READERS = {"chat": _chat, "responses": _responses, "messages": _messages, "ollama": _ollama}
