"""The costliest bodies that clients can send, for every POST route: as large as is accepted, and as large as
is read before it is refused. Whoever adds a route adds its bodies here.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specllama.client import protocol
from specllama.server.dialects.llama_server.routes import UNSUPPORTED
from specllama.server.http.body import MAX_BYTES, MAX_VALUES
from tests.support.serving import Api

CHAT, COMPLETIONS, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/messages"
OLLAMA_CHAT, OLLAMA_GENERATE = "/api/chat", "/api/generate"
RESPONSES = "/v1/responses"
_LONG = MAX_BYTES - 200  # bytes of a field that leave room for the others
_ONE_TOKEN = {"max_tokens": 1}
_IMAGE = {"type": "image_url", "image_url": "aGk="}
_ONE_OLLAMA = {"options": {"num_predict": 1}, "stream": False}


@dataclass(frozen=True)
class CostlyBody:
    """A request. command: the message to the engine that it leads to, or would lead to if it were accepted,
    None for none. make: its body.
    """

    path: str
    command: type[protocol.Message] | None
    name: str
    make: Callable[[], bytes]

    def __str__(self) -> str:
        return f"{self.path} {self.name}"

    def send(self, api: Api, seconds: float = 60.0) -> int:
        """Send it; returns the status. Raises AssertionError for an answer that is no JSON."""
        if "chunks" in self.name:
            return _send_chunks(api, self.path, self.make(), seconds)
        reply = api.post(self.path, self.make(), seconds=seconds)
        assert isinstance(reply.json, (dict, list)), reply.body[:200]
        return reply.status


def _send_chunks(api: Api, path: str, body: bytes, seconds: float) -> int:
    """Send a body in chunks of one byte."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"x-api-key: {api.key}",
        "Transfer-Encoding: chunked",
    ]
    head = "\r\n".join([*lines, "", ""]).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with socket.create_connection((api.host, api.port), timeout=seconds) as link:
        link.sendall(head + chunks + b"0\r\n\r\n")
        return int(link.recv(4096).split()[1])


def _said(content: Any, **fields: Any) -> Callable[[], bytes]:
    return lambda: _json(messages=[{"role": "user", "content": content}], **_ONE_TOKEN, **fields)


def _asked(**fields: Any) -> Callable[[], bytes]:
    return lambda: _json(**_ONE_TOKEN, **fields)


def _json(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _body(**fields: Any) -> Callable[[], bytes]:
    return lambda: _json(**fields)


def _filled(before: str, item: str, after: str) -> Callable[[], bytes]:
    """A list or object that fills a body: `item`, separated by commas, as often as it fits."""

    def make() -> bytes:
        n = (_LONG - len(before) - len(after)) // (len(item) + 1)
        return f"{before}{','.join([item] * n)}{after}".encode()

    return make


def _numbered(before: str, item: str, after: str) -> Callable[[], bytes]:
    """The same with a number in each item: {0}."""

    def make() -> bytes:
        n = (_LONG - len(before) - len(after)) // (len(item) + 6)
        return f"{before}{','.join([item.replace('{0}', str(i)) for i in range(n)])}{after}".encode()

    return make


def _tools(n: int, properties: int = 0, values: int = 0) -> dict[str, Any]:
    """A request with n tools, each of which takes that many arguments, and one of that many values."""
    schema: dict[str, Any] = {f"p{i}": {"type": "string"} for i in range(properties)}
    if values:
        schema["p"] = {"enum": [f"a{i}" for i in range(values)]}
    function = {"description": "what it does", "parameters": {"type": "object", "properties": schema}}
    tools = [{"type": "function", "function": {"name": f"tool{i}", **function}} for i in range(n)]
    return {"messages": [{"role": "user", "content": "x"}], "tools": tools, **_ONE_TOKEN}


def _called(arguments: str, n: int) -> list[dict[str, Any]]:
    """Messages with n calls."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        for i in range(n)
    ]
    return [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "x"}]


_MESSAGE = '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,'
_GAP = '{"input_prefix":"","input_suffix":"",'
_PARTS = [{"type": "text", "text": "x"}]
_USER = [{"role": "user", "content": "x"}]
_RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "<" * 400}
_USE = {"type": "tool_use", "id": "a", "name": "f", "input": {"a": "<" * 400}}
_TOOL = {"name": "f", "description": "<" * 1000, "input_schema": {"type": "object"}}
_WIDE = {"type": "object", "properties": {f"a{i}": {} for i in range(4000)}}
_MANY = MAX_VALUES - 100
_CALL = {"type": "function_call", "call_id": "c", "name": "f"}
_FUNCTION = {"type": "function", "name": "f"}
_ONE_OUTPUT = {"max_output_tokens": 1}


def _functions(n: int, about: str, **parameters: Any) -> list[dict[str, Any]]:
    """n tools of /v1/responses."""
    more = {"description": about, "parameters": parameters}
    return [{**_FUNCTION, "name": f"f{i}", **more} for i in range(n)]


_BODIES: Mapping[tuple[str, type[protocol.Message] | None], Mapping[str, Callable[[], bytes]]] = {
    (CHAT, protocol.Generate): {
        "a text of <, eight answers": _said("<" * _LONG, n=8),
        "a text of one letter": _said("a" * _LONG),
        "a text of control tokens": _said("</s><|im_end|>" * (_LONG // 14)),
        "a small text of <": _said("<" * 16_000),
        "a small text of control tokens": _said("</s><|im_end|>" * 1100),
        "a text of quotes": _said('"' * (_LONG // 2)),
        "a text of wide characters": _said("x" + "😀" * (_LONG // 4)),
        "messages in parts": lambda: _json(
            messages=[{"role": "user", "content": _PARTS * 16}] * 4096, **_ONE_TOKEN
        ),
        "as many messages as there may be": _body(messages=[{"role": "user", "content": "<"}] * 4096),
        "messages with wrong fields": _filled('{"messages":[', '{"role":1,"content":1,"x":1}', "]}"),
        "a message of unknown fields": _numbered('{"messages":[{', '"a{0}":1', "}]}"),
        "template variables": _numbered(_MESSAGE + '"chat_template_kwargs":{"a":{', '"a{0}":{}', "}}}"),
        "a schema": _numbered(_MESSAGE + '"json_schema":{"enum":[', '"a{0}"', "]}}"),
        "a schema of 64 KiB": _said("x", json_schema={"enum": [f"a{i}" for i in range(6000)]}),
        "template variables of 64 KiB": _said("x", chat_template_kwargs={"a": [[]] * 16_000}),
        "a grammar of 64 KiB": _said("x", grammar='root ::= "a"' + ' | "b"' * 10_000),
        "images": _filled(
            '{"messages":[{"role":"user","content":[', '{"type":"image_url","image_url":"aGk="}', "]}]}"
        ),
        "as many images as there may be parts, earlier": lambda: _json(
            messages=[{"role": "user", "content": [_IMAGE] * 4096}, *_USER], **_ONE_TOKEN
        ),
        "a large image": lambda: _json(
            messages=[
                {"role": "user", "content": [_IMAGE | {"image_url": "data:image/png;base64," + "A" * _LONG}]}
            ]
        ),
        "a thousand tools": lambda: _json(**_tools(1000, properties=6)),
        "tools of one name": _filled(
            _MESSAGE + '"tools":[', '{"type":"function","function":{"name":"f"}}', "]}"
        ),
        "a tool with a schema of 64 KiB": lambda: _json(**_tools(1, properties=1500)),
        "sixty tools with schemas of 64 KiB": lambda: _json(**_tools(60, values=6000)),
        "one tool of a thousand is required": lambda: _json(
            **_tools(1000, properties=6), tool_choice="required"
        ),
        "calls with arguments of lists": lambda: _json(
            messages=_called('{"a":[' + "[]," * 9000 + "[]]}", 100)
        ),
        "calls with deep arguments": lambda: _json(messages=_called('{"a":' * 9000, 60)),
        "as many calls as there may be": lambda: _json(messages=_called('{"a":1}', 1024) * 14),
        "a grammar of repetitions": _said("x", grammar="root ::= " + '"a"{0,9999} ' * 4000),
    },
    (COMPLETIONS, protocol.Generate): {
        "negative ids": _filled('{"prompt":[', "-1", "]}"),
        "ids": _filled('{"max_tokens":1,"prompt":[', "7", "]}"),
        "as many ids as there may be": _body(prompt=[7] * _MANY, max_tokens=1, n=8),
        "chunks of one byte": lambda: _json(prompt="zip " * 40_000),
        "lists": _filled('{"prompt":[', "[]", "]}"),
        "empty texts": _filled('{"prompt":[', '""', "]}"),
        "nested lists": lambda: b'{"prompt":' + b"[" * (_LONG // 2) + b"]" * (_LONG // 2) + b"}",
        "unknown fields": _numbered("{", '"a{0}":1', "}"),
        "a long number": lambda: b'{"prompt":"x","top_k":' + b"9" * _LONG + b"}",
        "biases": _numbered('{"prompt":"x","logit_bias":{', '"a{0}":"x"', "}}"),
        "pairs of biases": _filled('{"prompt":"x","logit_bias":[', "[1]", "]}"),
        "stop strings": _filled('{"prompt":"x","stop":[', "1", "]}"),
        "a text of words, eight answers": _asked(prompt=" a" * (_LONG // 2), n=8),
        "sixty-four texts": _asked(prompt=["zip " * (_LONG // 300)] * 64),
        "sixty-four texts that fit": _asked(prompt=["zip " * 400] * 64),
        "lone surrogates": lambda: b'{"prompt":"' + rb"\ud800" * (_LONG // 6) + b'"}',
        "no UTF-8": lambda: b'{"prompt":"' + b"a" * (_LONG - 9) + b'\xed\xa0\x80"}',
    },
    ("/completion", protocol.Generate): {
        "texts and ids": _filled('{"n_predict":1,"prompt":[', '7,"x"', "]}"),
        "as many texts and ids as there may be": _body(prompt=[7, "zip " * 200] * 256, n_predict=1),
        "texts and ids that fit": _body(prompt=[7, "zip"] * 256, n_predict=1, n_cmpl=8),
        "prompts of texts and ids": _body(prompt=[[7, "a"] * 256] * 64, n_predict=1),
        "nested prompts": _filled('{"prompt":[', '{"prompt_string":[[1]]}', "]}"),
        "images": _filled('{"prompt":{"prompt_string":"<__media__>","multimodal_data":[', '"aGk="', "]}}"),
        "markers of images": _body(
            prompt={"prompt_string": "<__media__>" * (_LONG // 12), "multimodal_data": ["aGk="]}
        ),
        "biases of texts": _body(
            prompt="x", n_predict=1, logit_bias={f"{i:064}a"[1:]: 1 for i in range(128)}
        ),
        "more biases of texts": _body(prompt="x", logit_bias=[["a" * 1024, 1]] * 1024),
        "fields that nobody knows": _numbered('{"prompt":"x","n_predict":1,', '"a{0}":1', "}"),
        "fields of the answer": _filled('{"prompt":"x","response_fields":[', '"a/b"', "]}"),
        "a long path of a field": _body(prompt="x", n_predict=1, response_fields=["a/" * 64] * 64),
        "samplers": _filled('{"prompt":"x","samplers":[', '"top_k"', "]}"),
        "every sampler, often": _body(
            prompt="zip " * 200,
            n_predict=4,
            samplers="edsypmxt" * 4,
            typical_p=0.9,
            top_n_sigma=9,
            dry_multiplier=1,
            dry_penalty_last_n=-1,
            xtc_probability=1,
            repeat_penalty=1.1,
            repeat_last_n=-1,
        ),
        "sequence breakers": _body(
            prompt="x",
            n_predict=1,
            dry_multiplier=1,
            dry_sequence_breakers=[f"{i} and so on" * 4 for i in range(64)],
        ),
        "more sequence breakers": _filled('{"prompt":"x","dry_sequence_breakers":[', '":"', "]}"),
        "a prompt that is sent back": _body(prompt="zip " * 1000, n_predict=1, n_cmpl=8, n_probs=20),
    },
    ("/completions", protocol.Generate): {"a text": _body(prompt="zip " * (_LONG // 4), n_predict=1)},
    ("/responses", protocol.Generate): {"a text": lambda: _json(input="zip " * (_LONG // 4), **_ONE_OUTPUT)},
    ("/chat/completions", protocol.Generate): {"a text": _said("zip " * (_LONG // 4))},
    (OLLAMA_CHAT, protocol.Generate): {
        "a text of <": lambda: _json(messages=[{"role": "user", "content": "<" * _LONG}], **_ONE_OLLAMA),
        "results without calls": _filled('{"messages":[', '{"role":"tool","content":"x"}', "]}"),
        "calls and results": lambda: _json(
            messages=[
                {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 1000},
                *[{"role": "tool", "content": "x", "tool_name": "g"}] * 4000,
            ],
            **_ONE_OLLAMA,
        ),
        "arguments that are no JSON": _filled(
            '{"messages":[{"role":"assistant","tool_calls":[',
            '{"function":{"name":"f","arguments":"[[[["}}',
            "]}]}",
        ),
        "tools": _numbered('{"tools":[', '{"function":{"name":"f{0}"}}', "]}"),
        "tools with one name": lambda: _json(
            messages=[{"role": "user", "content": "x"}], tools=[{"function": {"name": "f"}}] * 1000
        ),
        "options": _numbered('{"options":{', '"a{0}":1', "}}"),
    },
    (OLLAMA_GENERATE, protocol.Generate): {
        "a text of words": lambda: _json(prompt=" a" * (_LONG // 2), **_ONE_OLLAMA),
        "a raw text of one letter": lambda: _json(prompt="a" * _LONG, raw=True, **_ONE_OLLAMA),
        "a context": _filled('{"context":[', "7", "]}"),
        "images": _filled('{"prompt":"x","images":[', '"aGk="', "]}"),
        "a schema": _numbered('{"prompt":"x","format":{"enum":[', '"a{0}"', "]}}"),
        "a duration": lambda: b'{"keep_alive":"' + b"1" * _LONG + b'h"}',
    },
    (f"{CHAT}/control", None): {
        "a long id": _body(id="a" * _LONG, action="reasoning_end"),
        "unknown fields": _numbered('{"id":"a","action":"reasoning_end",', '"a{0}":1', "}"),
    },
    ("/api/show", None): {"options": _numbered('{"options":{', '"a{0}":{}', "}}")},
    ("/api/pull", None): {"unknown fields": _numbered("{", '"a{0}":1', "}")},
    **{(f"/api/{name}", None): {"a model": _body(model="x")} for name in ("push", "create", "copy")},
    ("/api/embed", protocol.Embed): {"as many texts as there may be": _body(input=["zip " * 400] * 2048)},
    ("/api/embeddings", protocol.Embed): {"a text": _body(prompt="zip " * (_LONG // 4))},
    ("/v1/embeddings", protocol.Embed): {
        "a text of one letter": _body(input="a" * _LONG),
        "as many texts as there may be": _body(input=["zip " * 400] * 2048),
        "ids": _filled('{"input":[', "7", "]}"),
        "too many texts": _filled('{"input":[', '""', "]}"),
        "lists of ids": _filled('{"input":[', "[7]", "]}"),
    },
    **{
        (path, protocol.Embed): {"texts": _body(content=["zip " * 400] * 2048)}
        for path in ("/embedding", "/embeddings")
    },
    **{
        (path, protocol.Embed): {"documents": _body(query="x", documents=["zip " * 400] * 2048)}
        for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
    },
    (RESPONSES, protocol.Generate): {
        "a text of <": lambda: _json(input="<" * _LONG, **_ONE_OUTPUT),
        "instructions of words": lambda: _json(input="x", instructions="zip " * (_LONG // 4), **_ONE_OUTPUT),
        "items of a wrong type": _filled('{"input":[', '{"type":"x"}', "]}"),
        "an item of unknown fields": _numbered('{"input":[{"role":"user","content":"x",', '"a{0}":1', "}]}"),
        "items in parts": lambda: _json(
            input=[{"role": "user", "content": [{"type": "input_text", "text": "x" * 900}]}] * 4096,
            **_ONE_OUTPUT,
        ),
        "as many messages of the system as there may be": lambda: _json(
            input=[{"role": "developer", "content": "x" * 950}] * 4096, **_ONE_OUTPUT
        ),
        "as many calls as there may be": lambda: _json(
            input=[_CALL | {"arguments": '{"a":"' + "x" * 800 + '"}'}] * 4096, **_ONE_OUTPUT
        ),
        "calls of many values": lambda: _json(
            input=[_CALL | {"arguments": '{"a":[' + "[]," * 250 + "[]]}"}] * 4096, **_ONE_OUTPUT
        ),
        "a call of deep arguments": lambda: _json(
            input=[_CALL | {"arguments": '{"a":' + "[" * (_LONG // 2) + "]" * (_LONG // 2) + "}"}]
        ),
        "as many tools as there may be": lambda: _json(
            input="x", tools=_functions(1024, "zip " * 100), **_ONE_OUTPUT
        ),
        "tools of 64 KiB": lambda: _json(
            input="x", tools=_functions(60, "", type="object", description="x" * 60_000), **_ONE_OUTPUT
        ),
        "tools of many values": lambda: _json(
            input="x",
            tools=_functions(200, "", type="object", properties={f"a{i}": {} for i in range(70)}),
            tool_choice="required",
            **_ONE_OUTPUT,
        ),
        "unknown tools": _numbered('{"input":"x","max_output_tokens":1,"tools":[', '{"type":"t{0}"}', "]}"),
        "a choice of tools": _filled(
            '{"input":"x","tool_choice":{"type":"allowed_tools","tools":[', '{"type":1}', "]}}"
        ),
    },
    (ANTHROPIC, protocol.Generate): {
        "a text of <": _said("<" * _LONG),
        "as many turns as there may be": _body(
            messages=[{"role": "user", "content": "<"}, {"role": "assistant", "content": "<"}] * 2048,
            **_ONE_TOKEN,
        ),
        "blocks": lambda: _json(messages=[{"role": "user", "content": _PARTS * 16}] * 960, **_ONE_TOKEN),
        "results": lambda: _json(messages=[{"role": "user", "content": [_RESULT] * 200}] * 40, **_ONE_TOKEN),
        "calls": lambda: _json(
            messages=[{"role": "assistant", "content": [_USE] * 100}, *_USER] * 64, **_ONE_TOKEN
        ),
        "blocks of wrong types": _filled('{"messages":[{"role":"user","content":[', '{"type":1}', "]}]}"),
        "a header without end": lambda: _json(
            system="x-anthropic-billing-header:" + " a=b;" * (_LONG // 5), messages=_USER, **_ONE_TOKEN
        ),
        "a header of blanks": lambda: _json(
            system="x-anthropic-billing-header:" + " " * (_LONG - 30), messages=_USER, **_ONE_TOKEN
        ),
        "as many tools as there may be": lambda: _json(
            messages=_USER, tools=[_TOOL | {"name": f"f{i}"} for i in range(1024)], **_ONE_TOKEN
        ),
        "a tool of 64 KiB": lambda: _json(
            messages=_USER, tools=[_TOOL | {"input_schema": _WIDE}], tool_choice={"type": "any"}, **_ONE_TOKEN
        ),
    },
    (f"{ANTHROPIC}/count_tokens", protocol.CountTokens): {
        "a text of <": _body(messages=[{"role": "user", "content": "<" * _LONG}]),
        "messages": lambda: _json(messages=[{"role": "user", "content": "<" * 900}] * 4096),
        "tools": lambda: _json(
            messages=_USER, tools=[_TOOL | {"name": f"f{i}"} for i in range(1024)], system="<" * 16_000
        ),
    },
    ("/chat/completions/input_tokens", protocol.CountTokens): {"a text of <": _said("<" * _LONG)},
    ("/v1/chat/completions/input_tokens", protocol.CountTokens): {
        "a small text of control tokens": _said("</s><|im_end|>" * 1100),
    },
    ("/responses/input_tokens", protocol.CountTokens): {"a text": _body(input="zip " * (_LONG // 4))},
    ("/v1/responses/input_tokens", protocol.CountTokens): {"a text of <": _body(input="<" * 16_000)},
    ("/infill", protocol.Generate): {
        "texts of words around the gap": _body(
            input_prefix="zip " * (_LONG // 9), input_suffix="zip " * (_LONG // 9), n_predict=1
        ),
        "a text of one letter before the gap": _body(input_prefix="a" * _LONG, input_suffix="", n_predict=1),
        "other texts": _filled(
            '{"input_prefix":"","input_suffix":"","input_extra":[', '{"text":"a b"}', "]}"
        ),
        "as many other texts as there may be": _body(
            input_prefix="", input_suffix="", n_predict=1, input_extra=[{"text": "zip " * 900}] * 1024
        ),
        "wrong texts": _filled(_GAP + '"input_extra":[', '{"text":1}', "]}"),
        "times of a text": _body(
            input_prefix="", input_suffix="", n_predict=1, input_extra=[{"text": "", "time": [[]] * 16_000}]
        ),
        "a large text that the gap begins with": _body(input_prefix="", input_suffix="", prompt="<" * _LONG),
    },
    ("/tokenize", protocol.Tokenize): {
        "a text of one letter": _body(content="a" * _LONG, with_pieces=True),
        "a small text of one letter": _body(content="a" * 16_000, with_pieces=True),
        "a text of blanks": _body(content=" \n" * (_LONG // 3)),
        "a text of 64 KiB": _body(content="<a" * (1 << 15), with_pieces=True),
        "a text of words": _body(content="zip " * (_LONG // 4), with_pieces=True),
    },
    ("/detokenize", protocol.Detokenize): {
        "ids": _filled('{"tokens":[', "700", "]}"),
        "small ids": _filled('{"tokens":[', "7", "]}"),
        "wrong ids": _filled('{"tokens":[', "-1", "]}"),
        "as many ids as there may be": _body(tokens=[700] * _MANY),
    },
    ("/apply-template", protocol.Render): {
        "a text of <": _body(messages=[{"role": "user", "content": "<" * _LONG}]),
        "messages": lambda: _json(messages=[{"role": "user", "content": "<" * 900}] * 4096),
    },
    ("/slots/{slot}", protocol.SlotAction): {
        "a long name of a file": _body(filename="a" * _LONG),
        "a path": _body(filename="../" * (_LONG // 4)),
        "unknown fields": _numbered("{", '"a{0}":1', "}"),
    },
    # Nothing is sent to an engine for these.
    ("/models/load", protocol.GetSlots): {"a long name": _body(model="a" * _LONG)},
    ("/models/unload", protocol.GetSlots): {"unknown fields": _numbered('{"model":"x",', '"a{0}":1', "}")},
    ("/models/pull", protocol.GetSlots): {"a long name": _body(model="a" * _LONG)},
    ("/models/pull/stop", protocol.GetSlots): {"unknown fields": _numbered('{"model":"x",', '"a{0}":1', "}")},
}
_UNSUPPORTED = tuple(path for method, path in UNSUPPORTED if method == "POST")
BODIES = tuple(
    CostlyBody(path, command, name, make)
    for (path, command), bodies in _BODIES.items()
    for name, make in bodies.items()
) + tuple(
    CostlyBody(path, protocol.Generate, "values", _filled('{"a":[', "1", "]}")) for path in _UNSUPPORTED
)
