"""A real router before several servers of the tests: smg or vllm-router, which scripts/agents installs."""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import FOLDER, MODEL
from tests.support.serving import QUESTION, Api, Server

_PROGRAMS = FOLDER / "python-routers" / "bin"
_CHECKS = (
    "--health-check-endpoint", "/health/ready", "--health-check-interval-secs", "1",
    "--health-failure-threshold", "1", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "2",
    "--cb-success-threshold", "1",
)  # fmt: skip
SECONDS = 240.0  # a deadline for what takes five, on a busy machine


@dataclass(frozen=True)
class Kind:
    """A program, and the flags by which it keeps a conversation on one server. anonymous: whether it passes
    requests without a model, and routes of specllama alone.
    """

    program: str
    flags: tuple[str, ...]
    anonymous: bool


SMG = Kind("smg", ("launch", "--policy", "cache_aware"), False)
VLLM_ROUTER = Kind("vllm-router", ("--policy", "sticky_least_loaded"), True)


def needs(kind: Kind) -> pytest.MarkDecorator:
    """The mark of tests of this router."""
    missing = not (_PROGRAMS / kind.program).exists()
    return pytest.mark.skipif(missing, reason=f"there is no {kind.program}: scripts/agents installs it")


class Workers:
    """Two servers under the same name. All are ended at the end of the block."""

    def __init__(self, home: Path, *flags: str) -> None:
        self._home, self._flags, self._n = home, ("--draft-max", "4", "-np", "4", *flags), 0
        self.servers: list[Server] = []

    def __enter__(self) -> Workers:
        self.servers += [self._started(), self._started()]
        for server in self.servers:
            server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.__exit__()

    def restart(self, i: int) -> None:
        """Start a server at the port of one that has ended."""
        port = self.servers[i].port
        self.servers[i].__exit__()
        self.servers[i] = self._started("--port", str(port))
        self.servers[i].__enter__()

    def _started(self, *flags: str) -> Server:
        self._n += 1
        home = self._home / f"server-{self._n}"
        home.mkdir()
        return Server(home, *self._flags, *flags)


class _JsonConnection(http.client.HTTPConnection):
    """A connection whose requests name their type, which smg asks for."""

    def putrequest(self, *args: Any, **kwargs: Any) -> None:
        super().putrequest(*args, **kwargs)
        self.putheader("content-type", "application/json")


class Router(Api):
    """A router over the workers, as a context manager. key: of the workers, "" for none. log: its own."""

    def __init__(self, kind: Kind, home: Path, workers: Workers, key: str = "") -> None:
        super().__init__("127.0.0.1", _free_port())
        self._bearer = {"authorization": f"Bearer {key}"} if key else {}
        self.kind, self.log = kind, home / f"{kind.program}.log"
        urls = [server.url for server in workers.servers]
        line = [
            str(_PROGRAMS / kind.program), *kind.flags, *_CHECKS, "--host", self.host, "--port",
            str(self.port), "--prometheus-port", str(_free_port()), "--worker-urls", *urls,
            *(("--api-key", key) if key else ()),
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(line, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self) -> Router:
        try:
            self.wait_for_workers(2)
            self.until(self._answers, SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self.hang_up()

    def connect(self, seconds: float = SECONDS) -> http.client.HTTPConnection:
        return _JsonConnection(self.host, self.port, timeout=seconds)

    def wait_for_workers(self, n: int) -> None:
        """Wait until it sends requests to so many workers."""
        deadline = time.monotonic() + SECONDS
        while self._n_workers() != n:
            assert self._process.poll() is None, self.log.read_text("utf-8", "replace")[-2000:]
            assert time.monotonic() < deadline, self.log.read_text("utf-8", "replace")[-2000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        """It may know that a server is ready before it knows its models."""
        body = {"model": MODEL, "messages": QUESTION, "max_tokens": 1}
        return self.post("/v1/chat/completions", body, headers=self._bearer).status == 200

    def _n_workers(self) -> int:
        try:
            return int(self.get("/readiness").json.get("healthy_workers", 0))
        except (OSError, ValueError):
            return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
