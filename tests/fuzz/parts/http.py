"""HTTP: raw bytes and bodies, sent to a server with the embedded pair."""

from __future__ import annotations

import json
import random
import re
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.fuzz import mutate
from tests.support.serving import Api, Server

MESSAGES = [{"role": "user", "content": "x"}]
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_OLLAMA_CALL = {"function": {"name": "f", "arguments": {"a": 1}}}
CALLED = [
    *MESSAGES,
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "1"},
]
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_TOOLS = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": _SCHEMA, "strict": True}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
BODIES: tuple[tuple[str, Any], ...] = (
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "stop": ["a"]}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True, "logprobs": 1, "seed": 1}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "n": 2, "logit_bias": {"1": 1.5}}),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 2, "response_format": {"type": "json_object"}},
    ),
    ("/v1/chat/completions", {"messages": CALLED, "max_tokens": 2, **_TOOLS}),
    (
        "/v1/messages",
        {
            "messages": MESSAGES,
            "max_tokens": 2,
            "system": [{"type": "text", "text": "x"}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
        },
    ),
    (
        "/api/chat",
        {
            "messages": [
                *MESSAGES,
                {"role": "assistant", "thinking": "x", "tool_calls": [_OLLAMA_CALL, _OLLAMA_CALL]},
                {"role": "tool", "content": "1"},
                {"role": "tool", "content": "2", "tool_name": "f"},
            ],
            "tools": _TOOLS["tools"],
            "options": {"num_predict": 2, "num_ctx": 4096.0, "stop": ["a"], "seed": 1},
            "format": "json",
            "keep_alive": "5m",
            "think": False,
        },
    ),
    (
        "/api/generate",
        {"prompt": "x", "system": "y", "options": {"num_predict": 2}, "stream": False, "logprobs": True},
    ),
    ("/api/show", {"model": "pydoc", "verbose": True}),
    (
        "/completion",
        {
            "prompt": [1, "x", 2],
            "n_predict": 2,
            "n_probs": 2,
            "logit_bias": [["x", False]],
            "samplers": ["top_k"],
            "post_sampling_probs": True,
            "n_cmpl": 2,
        },
    ),
    (
        "/completion",
        {
            "prompt": ["x", {"prompt_string": "y"}],
            "n_predict": 2,
            "stream": True,
            "return_progress": True,
            "timings_per_token": True,
            "response_fields": ["content", "timings/predicted_n"],
        },
    ),
    ("/tokenize", {"content": "x", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/apply-template", {"messages": CALLED, **_TOOLS}),
)
GETS = ("/health", "/v1/models", "/metrics", "/slots", "/props", "/openapi.json", "/", "/nothing")
TOKENS = (
    b"\r\n", b"\r\n\r\n", b"Host: x\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: " + b"9" * 5000 + b"\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Origin: http://evil\r\n",
    b"Authorization: Bearer \xff\r\n",
    b"GET / HTTP/1.1\r\n", b"HTTP/9.9", b"%00", b"?" * 500, b"\0", b"ffffffffffffffff\r\n", b"0\r\n\r\n",
    b"Content-Type: text/plain\r\n", b"Content-Encoding: gzip\r\n", b"X: " + b"y" * 9000 + b"\r\n",
)  # fmt: skip
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
DOCUMENTED = {
    100,
    200,
    204,
    307,
    400,
    401,
    403,
    404,
    405,
    408,
    411,
    413,
    414,
    415,
    417,
    421,
    422,
    426,
    429,
    431,
}
_WAIT = 3.0  # seconds, after which the client leaves


class Http:
    """Requests: only documented statuses, and afterwards the same engine and a prompt /health."""

    name, seconds, n_bytes, batch = "http", 10.0, 200 << 20, 10_000

    def __init__(self, api: Api | None = None) -> None:
        self._api, self._stack = api, ExitStack()
        self._engine = 0
        self._front: psutil.Process | None = None

    def set_up(self) -> None:
        if self._api is None:
            home = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            server = self._stack.enter_context(Server(home, "-m", "pydoc", "-np", "2", "-c", "512"))
            self._api = server
            self._front = psutil.Process(server.process.pid)
            self._engine = server.engine().pid

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.15:
            request = f"GET {rng.choice(GETS)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
            return mutate.mutated(rng, request, TOKENS)
        path, body = rng.choice(BODIES)
        for _ in range(rng.choice((0, 1, 1, 2))):
            body = mutate.changed(rng, body)
        data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        if rng.random() < 0.2:
            data = mutate.mutated(rng, data, (b"[" * 9000, b"9" * 5000, b"\xff", b"1e400", b"NaN"))
        lines = (
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Connection: close",
            f"Content-Length: {len(data)}",
        )
        head = "\r\n".join((*lines, "", "")).encode()
        return mutate.mutated(rng, head, TOKENS) + data if rng.random() < 0.3 else head + data

    def run(self, data: bytes) -> str:
        assert self._api is not None
        found = self._sent(data)
        began = time.monotonic()
        assert self._api.get("/health", seconds=20).status == 200
        assert time.monotonic() - began < 5, "/health took longer than 5 s"
        if self._engine:
            assert psutil.pid_exists(self._engine), "the engine process has ended"
        statuses = {int(status) for status in _STATUS.findall(found)}
        assert statuses <= DOCUMENTED, found[:2000]
        assert b"Traceback" not in found
        return str(max(statuses, default="closed"))

    def _sent(self, data: bytes) -> bytes:
        """What the server answers, until it closes the connection or the client leaves."""
        assert self._api is not None
        found, ends = b"", time.monotonic() + _WAIT
        with (
            socket.create_connection((self._api.host, self._api.port), timeout=_WAIT) as link,
            suppress(OSError),
        ):
            link.sendall(data)
            if not _complete(data):  # otherwise both would wait for the rest
                link.shutdown(socket.SHUT_WR)
            while time.monotonic() < ends and (part := link.recv(65536)):
                found += part
        return found

    def close(self) -> None:
        self._stack.close()


def _complete(data: bytes) -> bool:
    """Whether a request has the body that it announces, and asks for the connection to be closed."""
    head, _, body = data.partition(b"\r\n\r\n")
    return head.endswith(b"Connection: close\r\nContent-Length: %d" % len(body))
