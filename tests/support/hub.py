"""A hub on loopback with the endpoints of the real one over real HTTP, with faults to switch on.

Two servers: the hub itself, and a content host to which it redirects for files in large-file storage, as the
real one does. All requests are recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_CHUNK = 16 << 10


@dataclass
class Faults:
    """The faults in effect. Lists are consumed, one entry per request.

    cut: bytes of content after which the connection is closed, for each response. rate: bytes per second.
    no_range: ranges are ignored. etag: sent by the content host instead of the real one. content: sent
    instead of the file. hang: seconds before a response. statuses, api_statuses: of the next requests for
    content and for metadata; a pair is (status, Retry-After). no_redirect: the hub sends content itself.
    no_length: content has no Content-Length. no_hashes: listings have no hashes, as those of some mirrors,
    and with "names" no sizes either. html: every response is an HTML page. small_buffers: send buffers are
    small, so that `rate` is accurate.
    """

    cut: list[int] = field(default_factory=list)
    rate: float = 0.0
    no_range: bool = False
    etag: str = ""
    content: bytes | None = None
    hang: float = 0.0
    statuses: list[int | tuple[int, int]] = field(default_factory=list)
    api_statuses: list[int | tuple[int, int]] = field(default_factory=list)
    no_redirect: bool = False
    no_length: bool = False
    html: bool = False
    small_buffers: bool = False
    no_hashes: str = ""


@dataclass
class Repo:
    """A repository.

    files: path to content. plain: paths that are not in large-file storage. overrides: fields of a file in
    the listing, by path, instead of the real ones.
    """

    files: dict[str, bytes]
    commit: str = "a" * 40
    branches: dict[str, str] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    licence: str = "apache-2.0"
    gated: bool = False
    private: bool = False
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    _hashed: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def sha(self, revision: str) -> str | None:
        known = {"main": self.commit, self.commit: self.commit, **self.branches}
        return known.get(revision) or (revision if revision in self.branches.values() else None)

    def etag(self, path: str) -> str:
        data = self.files[path]
        if self._hashed.get(path, (None, ""))[0] is not data:
            is_git = path in self.plain
            digest = hashlib.sha1(b"blob %d\0" % len(data) + data) if is_git else hashlib.sha256(data)
            self._hashed[path] = data, digest.hexdigest()
        return self._hashed[path][1]


@dataclass(frozen=True)
class RecordedRequest:
    """A request that was received. host: "hub" or "content"."""

    host: str
    method: str
    path: str
    headers: Mapping[str, str]


class LocalHub:
    """The two servers. token: gives access to gated and private repositories. sent: bytes of content."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults = Faults()
        self.token = "hf_of_somebody_who_may"
        self.requests: list[RecordedRequest] = []
        self.sent = 0
        self._lock = threading.Lock()
        self._hub, self._content = _Server(self, "hub"), _Server(self, "content")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._hub.server_port}"

    @property
    def content_url(self) -> str:
        return f"http://localhost:{self._content.server_port}"

    def environ(self, **more: str) -> dict[str, str | None]:
        """The environment of a command that uses this hub only."""
        proxies = dict.fromkeys(
            ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        )
        unset = dict.fromkeys(("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_HOME", "XDG_CACHE_HOME"))
        return {**proxies, **unset, "HF_ENDPOINT": self.endpoint, "NO_PROXY": "*", **more}

    def content_requests(self) -> list[RecordedRequest]:
        """The requests to the content host."""
        return [a for a in self.requests if a.host == "content"]

    def start(self) -> None:
        for server in (self._hub, self._content):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        for server in (self._hub, self._content):
            server.shutdown()
            server.server_close()

    def record(self, request: RecordedRequest) -> None:
        with self._lock:
            self.requests.append(request)

    def count(self, n_bytes: int) -> None:
        with self._lock:
            self.sent += n_bytes


@contextlib.contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A running hub."""
    hub = LocalHub()
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, hub: LocalHub, kind: str) -> None:
        self.hub, self.kind = hub, kind
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that disconnected


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self) -> None:
        if self.server.hub.faults.small_buffers:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        super().setup()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        headers = {name.title(): value for name, value in self.headers.items()}
        hub.record(RecordedRequest(self.server.kind, self.command, path, headers))
        if hub.faults.hang:
            time.sleep(hub.faults.hang)
        if hub.faults.html:
            self.respond(200, b"<!DOCTYPE html><html>Welcome to the hotel's network</html>", {}, "text/html")
            return
        if self.server.kind == "content":
            self.content(path)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.info(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self.tree(match[1], match[2])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        else:
            self.respond(404, b'{"error": "Not Found"}', {})

    # Responses of the hub

    def info(self, name: str, revision: str) -> None:
        if self.fails(self.server.hub.faults.api_statuses):
            return
        found = self.repo(name, revision, content=False)
        if found is None:
            return
        repo, sha = found
        siblings = []
        for path in repo.files:
            entry: dict[str, Any] = {"rfilename": path, "size": len(repo.files[path]), "blobId": "b" * 40}
            if path in repo.plain:
                entry["blobId"] = repo.etag(path)
            else:
                entry["lfs"] = {"size": len(repo.files[path]), "sha256": repo.etag(path), "pointerSize": 134}
            if self.server.hub.faults.no_hashes:
                entry = {"rfilename": path}
                if self.server.hub.faults.no_hashes != "names":
                    entry["size"] = len(repo.files[path])
            siblings.append(entry | repo.overrides.get(path, {}))
        for path, override in repo.overrides.items():
            if path not in repo.files:
                siblings.append({"rfilename": path, **override})
        body = {
            "_id": "0" * 24, "id": name, "modelId": name, "sha": sha, "private": repo.private,
            "gated": "manual" if repo.gated else False, "disabled": False, "tags": [], "downloads": 0,
            "likes": 0, "cardData": {"license": repo.licence}, "siblings": siblings,
        }  # fmt: skip
        self.respond(200, json.dumps(body).encode(), {})

    def tree(self, name: str, revision: str) -> None:
        found = self.repo(name, revision, content=False)
        if found is None:
            return
        repo, _ = found
        rows = []
        for path, data in repo.files.items():
            row: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": "b" * 40}
            if path not in repo.plain:
                row["lfs"] = {"oid": repo.etag(path), "size": len(data), "pointerSize": 134}
            rows.append(row)
        self.respond(200, json.dumps(rows).encode(), {})

    def resolve(self, name: str, revision: str, path: str) -> None:
        found = self.repo(name, revision, content=True)
        if found is None:
            return
        repo, sha = found
        if path not in repo.files:
            self.respond(404, b"Entry not found", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
            return
        headers = {"X-Repo-Commit": sha, "ETag": f'"{repo.etag(path)}"'}
        if path in repo.plain or self.server.hub.faults.no_redirect:
            self.send(repo.files[path], headers)
            return
        headers["X-Linked-ETag"] = f'"{repo.etag(path)}"'
        headers["X-Linked-Size"] = str(len(repo.files[path]))
        headers["Location"] = f"{self.server.hub.content_url}/{name}/{path}?signature=secret"
        self.respond(302, b"", headers)

    def repo(self, name: str, revision: str, content: bool) -> tuple[Repo, str] | None:
        """(repository, commit) if the client may access it; None after an error response."""
        hub, repo = self.server.hub, self.server.hub.repos.get(name)
        given = self.headers.get("Authorization")
        if given is not None and given != f"Bearer {hub.token}":
            message = "Invalid credentials in Authorization header"
            self.respond(401, b'{"error": "Invalid"}', {"X-Error-Message": message})
            return None
        if repo is None or (repo.private and given is None):
            # Without a login the hub does not reveal whether it exists.
            status = 404 if given is not None else 401
            self.respond(status, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return None
        if content and repo.gated and given is None:
            self.respond(401, b"Access to it is restricted", {"X-Error-Code": "GatedRepo"})
            return None
        sha = repo.sha(revision)
        if sha is None:
            self.respond(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
            return None
        return repo, sha

    # Content

    def content(self, path: str) -> None:
        _, user, name, file = path.split("/", 3)
        repo = self.server.hub.repos[f"{user}/{name}"]
        etag = self.server.hub.faults.etag or f'"content-{repo.etag(file)[:16]}"'
        self.send(repo.files[file], {"ETag": etag})

    def send(self, data: bytes, headers: dict[str, str]) -> None:
        faults = self.server.hub.faults
        if self.fails(faults.statuses):
            return
        data = data if faults.content is None else faults.content
        status, start, end = 200, 0, len(data)
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        unchanged = self.headers.get("If-Range") in (None, headers["ETag"])
        if wanted and not faults.no_range and unchanged:
            start, end = int(wanted[1]), min(int(wanted[2]) + 1 if wanted[2] else len(data), len(data))
            if start >= len(data):
                self.respond(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        if not faults.no_range:
            headers["Accept-Ranges"] = "bytes"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if faults.no_length:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "GET":
            self.send_body(memoryview(data)[start:end])

    def send_body(self, data: memoryview) -> None:
        faults, began, done = self.server.hub.faults, time.monotonic(), 0
        limit = faults.cut.pop(0) if faults.cut else len(data) + 1
        chunk = _CHUNK if faults.rate else 1 << 20
        while done < len(data):
            if done >= limit:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            piece = data[done : min(done + chunk, limit)]
            self.wfile.write(piece)
            done += len(piece)
            self.server.hub.count(len(piece))
            if faults.rate:
                time.sleep(max(0.0, began + done / faults.rate - time.monotonic()))

    def fails(self, statuses: list[int | tuple[int, int]]) -> bool:
        """Whether a fault was sent instead of the response."""
        if not statuses:
            return False
        status = statuses.pop(0)
        code, after = status if isinstance(status, tuple) else (status, None)
        self.respond(code, b"later", {} if after is None else {"Retry-After": str(after)})
        return True

    def respond(
        self, status: int, body: bytes, headers: Mapping[str, str], kind: str = "application/json"
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, **headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
