"""A proxy between an agent and the server. It keeps the requests and rewrites them, so that a small model
does what a test wants.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.serving import Api

Body = dict[str, Any]
_HEADERS = ("content-type", "accept", "authorization", "x-api-key", "anthropic-beta", "anthropic-version")


class RewritingProxy:
    """A context manager. rewrite: changes the body of a POST in place. sent: path and body of each POST, as
    the agent sent it. refused: path, status and body of each answer that is an error. url: without a path.
    """

    def __init__(self, api: Api, rewrite: Callable[[str, Body], None], seconds: float = 280.0) -> None:
        self.sent: list[tuple[str, Body]] = []
        self.refused: list[tuple[str, int, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                proxy.sent.append((self.path, json.loads(raw)))
                body = json.loads(raw)
                rewrite(self.path, body)
                self._pass_on(json.dumps(body).encode())

            def _pass_on(self, body: bytes | None) -> None:
                headers = {name: value for name in _HEADERS if (value := self.headers.get(name))}
                link = HTTPConnection(api.host, api.port, timeout=seconds)
                try:
                    link.request(self.command, self.path, body, headers)
                    answer = link.getresponse()
                    data, kind = answer.read(), answer.getheader("content-type") or ""
                finally:
                    link.close()
                if answer.status >= 400:
                    proxy.refused.append((self.path, answer.status, data.decode("utf-8", "replace")))
                self.send_response(answer.status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> RewritingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
