"""A small server on loopback with a plain OpenAI API over real HTTP, and faults to switch on."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Faults:
    """What goes wrong.

    statuses: of the next answers; a pair is a status and its Retry-After. healthy: answers before the faults
    begin. ending: of a stream: "" a good one, "error", "cut", "foreign" (no JSON), "page" (no stream at all).
    hang: seconds before an answer. uncounted: no usage. redirect: where all requests are sent. models: the
    body of /models instead of the usual one.
    """

    healthy: int = 0
    statuses: list[int | tuple[int, str]] = field(default_factory=list)
    ending: str = ""
    hang: float = 0.0
    uncounted: bool = False
    redirect: str = ""
    models: Any = None


class OpenAIServer:
    """The server. prefix: of the API's routes. key: the API key, "" for none. asked: the bodies of requests.
    running: requests whose answer has not ended, which they are not once a client can know. most: the largest
    number of requests that ran at once.
    """

    def __init__(self, prefix: str = "/v1", key: str = "", n_tokens: int = 5) -> None:
        self.prefix, self.key, self.n_tokens = prefix, key, n_tokens
        self.faults = Faults()
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.running = self.most = 0
        self.lock = threading.Lock()
        self._server = _Server(self)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return self.root + self.prefix

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close the server and all its connections."""
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()


@contextlib.contextmanager
def openai_server(**how: Any) -> Iterator[OpenAIServer]:
    """A running server."""
    one = OpenAIServer(**how)
    one.start()
    try:
        yield one
    finally:
        one.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64

    def __init__(self, owner: OpenAIServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner
        self.links: set[Any] = set()

    def hang_up(self) -> None:
        for link in list(self.links):
            with contextlib.suppress(OSError):
                link.shutdown(2)

    def handle_error(self, *_: Any) -> None:
        pass  # clients leave


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.links.add(self.connection)

    def finish(self) -> None:
        self.server.links.discard(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        o = self.server.owner
        if self._refused():
            return
        if self.path != f"{o.prefix}/models":
            self._json(404, {"error": {"message": "no such route"}})
            return
        listed = {"object": "list", "data": [{"id": "small", "object": "model", "owned_by": "somebody"}]}
        found = listed if o.faults.models is None else o.faults.models
        if isinstance(found, bytes):
            self._send(200, found, "text/html")
        else:
            self._json(200, found)

    def do_POST(self) -> None:
        o = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        with o.lock:
            o.asked.append(body)
            o.running += 1
            o.most = max(o.most, o.running)
            ill = len(o.asked) > o.faults.healthy
            status = o.faults.statuses.pop(0) if ill and o.faults.statuses else 200
        self._running = True
        try:
            self._answer(body, status, o.faults if ill else Faults())
        finally:
            self._ended()

    def _ended(self) -> None:
        """Count the request as ended; before the client has what tells it so, as its next one may follow."""
        if self._running:
            self._running = False
            with self.server.owner.lock:
                self.server.owner.running -= 1

    def _refused(self) -> bool:
        o = self.server.owner
        o.paths.append(self.path)
        o.keys.append(self.headers.get("Authorization", ""))
        if o.faults.redirect:
            self._send(307, b"", "text/plain", {"Location": o.faults.redirect + self.path})
        elif o.key and self.headers.get("Authorization") != f"Bearer {o.key}":
            self._json(401, {"error": {"message": "Incorrect API key provided."}})
        else:
            return False
        return True

    def _answer(self, body: Mapping[str, Any], status: int | tuple[int, str], faults: Faults) -> None:
        code, after = status if isinstance(status, tuple) else (status, "")
        time.sleep(faults.hang)
        if code != 200 or faults.ending == "page":
            self._ended()
        if code != 200:
            self._json(code, {"error": {"message": "not now"}}, {"Retry-After": after} if after else {})
        elif faults.ending == "page":
            self._send(200, b"<html>", "text/html")
        else:
            self._stream(body, faults)

    def _stream(self, body: Mapping[str, Any], faults: Faults) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chat = "messages" in body
        n = min(self.server.owner.n_tokens, body["max_tokens"])
        if chat:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for i in range(n):
            time.sleep(0.003)
            text = f" w{i}"
            part: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            self._event({"choices": [{"index": 0, "finish_reason": None, **part}]})
            if i == n // 2 and faults.ending:
                self._break(faults.ending)
                return
        self._ended()
        last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        self._event({"choices": [{"index": 0, "finish_reason": "length", **last}]})
        if not faults.uncounted:
            self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": n}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _break(self, how: str) -> None:
        self._ended()
        if how == "error":
            self._event({"error": {"message": "the engine died", "code": 500}})
            self._chunk(b"data: [DONE]\n\n")
        elif how == "foreign":
            self._chunk(b"data: what?\n\n")
        if how != "cut":
            self._chunk(b"")
        self.close_connection = True

    def _event(self, chunk: Mapping[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, found: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps(found).encode(), "application/json", headers)

    def _send(self, status: int, data: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
