"""A real server in a subprocess on loopback, with the embedded pair, and an HTTP client for it."""

from __future__ import annotations

import http.client
import io
import json
import queue
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.command import Command

START = 60.0  # seconds: a deadline for operations that take one or two
SOON = 30.0  # seconds: a deadline for operations that take hundredths
QUESTION = [{"role": "user", "content": "What does shutil.copytree do?"}]


@dataclass(frozen=True)
class Reply:
    """The response to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events; the last one must be [DONE], and is left out."""
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == ""
        assert all(line.startswith("data: ") and "\n" not in line for line in lines), lines
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def samples_of(metrics: Reply) -> dict[str, float]:
    """Name with labels to value. The label `model` is left out, and models are added up."""
    found: dict[str, float] = {}
    for line in metrics.body.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'\bmodel="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")
            found[name] = found.get(name, 0.0) + float(value)
    return found


class KeyedConnection(http.client.HTTPConnection):
    """A connection that sends an API key with each request, "" for none."""

    key = ""

    def putrequest(self, *args: Any, **kwargs: Any) -> None:
        super().putrequest(*args, **kwargs)
        if self.key:
            self.putheader("x-api-key", self.key)


class Api:
    """A client of the server at an address. key: the API key that it sends, "" for none."""

    def __init__(self, host: str, port: int, key: str = "") -> None:
        self.host, self.port, self.key = host, port, key
        self._links: list[http.client.HTTPConnection] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def connect(self, seconds: float = START) -> http.client.HTTPConnection:
        found = KeyedConnection(self.host, self.port, timeout=seconds)
        found.key = self.key
        return found

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = START,
    ) -> Reply:
        """One request; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect(seconds)
        try:
            connection.request(method, path, data, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Reply:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any, **more: Any) -> Reply:
        return self.ask("POST", path, body, **more)

    def chat(self, messages: Any = None, **fields: Any) -> Reply:
        return self.post(
            "/v1/chat/completions", {"messages": QUESTION if messages is None else messages, **fields}
        )

    def complete(self, prompt: Any = "def read(", **fields: Any) -> Reply:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def begin(self, path: str = "/v1/completions", **fields: Any) -> http.client.HTTPConnection:
        """Send a request without waiting for the response."""
        link = self.connect()
        link.request("POST", path, json.dumps(fields).encode())
        self._links.append(link)
        return link

    def hang_up(self) -> None:
        """Close the connections of all requests that `begin` sent."""
        for link in self._links:
            link.close()
        self._links.clear()

    def answers(self) -> bool:
        """Whether the server and its engine are up."""
        try:
            return self.get("/health").status == 200
        except ConnectionError:
            return False

    def raw(self, data: bytes, seconds: float = SOON) -> bytes:
        """The bytes received until the server closes the connection, or sends nothing for `seconds`."""
        found = b""
        with socket.create_connection((self.host, self.port), timeout=seconds) as link:
            link.sendall(data)
            try:
                while part := link.recv(65536):
                    found += part
            except TimeoutError:
                pass
        return found

    def n_busy(self) -> int:
        """The number of busy slots."""
        return sum(slot["is_processing"] for slot in self.get("/slots").json)

    def until(self, what: Any, seconds: float = SOON) -> float:
        """Wait until `what()` is true. Returns the seconds that it took."""
        began = time.monotonic()
        while not what():
            assert time.monotonic() - began < seconds
            time.sleep(0.02)
        return time.monotonic() - began

    def samples(self) -> dict[str, float]:
        """The metrics: see `samples_of`."""
        return samples_of(self.get("/metrics"))


class Server(Api):
    """`specllama serve` with these flags, as a context manager. lines: its stderr so far. module: see
    Command.start.
    """

    def __init__(
        self,
        home: Path,
        *flags: str,
        env: Mapping[str, str | None] | None = None,
        calibrate: bool = False,
        module: str = "specllama",
    ) -> None:
        super().__init__("", 0)
        self.home = home
        quiet = () if calibrate else ("--no-calibrate",)
        command = Command(home)
        self.process = command.start(
            *("serve", "--port", "0", *quiet, *flags),
            env=env,
            module=module,
            fork=True,
            stdout=subprocess.DEVNULL,
        )
        self.lines: list[str] = []
        self._new_lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Server:
        found = re.search(r"at http://(\S+):(\d+)/v1", self.wait_for("serving "))
        assert found is not None
        self.host, self.port = found[1].strip("[]"), int(found[2])
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SOON)
        self.hang_up()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with io.BufferedReader(self.process.stderr) as pipe:  # type: ignore[type-var]
            for raw in pipe:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                self.lines.append(line)
                self._new_lines.put(line)
        self._new_lines.put(None)

    def said(self, *needles: str, seconds: float = SOON) -> int:
        """How many lines have all of these in them; waits until one has."""
        deadline = time.monotonic() + seconds
        while not (n := sum(all(one in line for one in needles) for line in list(self.lines))):
            if time.monotonic() > deadline:
                return 0
            time.sleep(0.01)
        return n

    def wait_for(self, needle: str, seconds: float = START) -> str:
        """The next line on stderr that contains `needle`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._new_lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {needle!r}: {self.lines[-20:]}") from None
            assert line is not None, self.lines
            if needle in line:
                return line

    def engine(self) -> psutil.Process:
        """The server's engine process."""
        found: list[psutil.Process] = []
        self.until(lambda: found.extend(psutil.Process(self.process.pid).children()) or found)
        return found[0]

    def stop(self, number: int = signal.SIGTERM, seconds: float = SOON) -> int:
        """Send a signal. Returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


def first_event(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """The response to a streaming request, after its first event."""
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.readline().startswith(b"data: ")
    return answer


def rest(answer: http.client.HTTPResponse) -> list[Any]:
    """The remaining events, without [DONE]."""
    lines: Iterator[bytes] = (line for line in answer.read().split(b"\n") if line)
    return [json.loads(line.removeprefix(b"data: ")) for line in lines if line != b"data: [DONE]"]
