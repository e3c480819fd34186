"""Slow clients, and more connections than are allowed: raw sockets on loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn

from specllama.server.app import ERRORS
from specllama.server.http import connection
from tests.support.serving import QUESTION, SOON, Server

BRIEF = 1.0  # seconds that the clients of `brief` have
LARGE = {"messages": QUESTION, "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20}
CHAT = "/v1/chat/completions"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose clients must be quick."""
    flags = ("-np", "2", "--draft-max", "0", "-c", "16384", "--client-timeout", str(BRIEF))
    with Server(tmp_path_factory.mktemp("brief"), *flags) as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


def is_closed(link: socket.socket, seconds: float = SOON) -> bool:
    """Whether the other side closes within that time; what it says before is read and dropped."""
    link.settimeout(seconds)
    try:
        while link.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def trickle(link: socket.socket, data: bytes, seconds: float) -> bytes:
    """Send a byte now and then, for so long at most; what came back by the time the other side closed."""
    received, deadline = b"", time.monotonic() + seconds
    link.settimeout(0.1)
    for byte in data:
        assert time.monotonic() < deadline, received
        try:
            link.send(bytes([byte]))
            part = link.recv(65536)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return received
        if not part:
            return received
        received += part
    raise AssertionError(f"the server took all of it: {received!r}")


class TestSlowSenders:
    def test_an_endless_request_head_is_cut_off(self, brief: Server) -> None:
        with socket.create_connection((brief.host, brief.port)) as link:
            output = trickle(link, HEAD + b"X: " + b"y" * 10_000, SOON)
        assert output.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in output
        error = json.loads(output.partition(b"\r\n\r\n")[2])["error"]
        assert (error["type"], "head" in error["message"]) == ("timeout_error", True)

    def test_a_client_that_sends_nothing_is_disconnected(self, brief: Server) -> None:
        with socket.create_connection((brief.host, brief.port)) as link:
            assert is_closed(link)

    def test_an_endless_second_request_head_is_cut_off(self, brief: Server) -> None:
        """Keep-alive waits for a second request, not for one that arrives byte by byte."""
        with socket.create_connection((brief.host, brief.port)) as link:
            assert answer(asking(link, "/health"))[0] == 200
            assert trickle(link, HEAD + b"X: " + b"y" * 10_000, SOON).startswith(b"HTTP/1.1 408 ")

    @pytest.mark.parametrize(
        "head", [b"Content-Length: 10000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n2710\r\n"]
    )
    def test_an_endless_body_is_cut_off(self, brief: Server, head: bytes) -> None:
        with socket.create_connection((brief.host, brief.port)) as link:
            link.sendall(HEAD + head)
            output = trickle(link, b'{"prompt": "' + b"x" * 9000, SOON)
        assert output.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within" in output

    @pytest.mark.parametrize("path", [b"/nothing", b"/health", b"/v1/messages"])
    def test_an_endless_body_of_a_refused_request_is_cut_off(self, brief: Server, path: bytes) -> None:
        """It was answered already; a sender that continues slowly keeps no connection open."""
        with socket.create_connection((brief.host, brief.port)) as link:
            link.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n")
            assert trickle(link, b"x" * 10_000, SOON).startswith(b"HTTP/1.1 40")

    def test_the_server_still_answers(self, brief: Server) -> None:
        links = [socket.create_connection((brief.host, brief.port)) for _ in range(50)]
        for link in links:
            link.sendall(HEAD)
        assert brief.complete(max_tokens=2).status == 200
        assert all(is_closed(link) for link in links)
        for link in links:
            link.close()


class TestAllowedToBeSlow:
    def test_an_idle_connection_is_kept(self, brief: Server) -> None:
        """Idle for longer than a head may take."""
        with socket.create_connection((brief.host, brief.port)) as link:
            for _ in range(2):
                assert answer(asking(link, "/health"))[0] == 200
                time.sleep(BRIEF + 0.5)
            assert answer(asking(link, "/health"))[0] == 200

    def test_a_client_may_wait_for_its_answer(self, brief: Server) -> None:
        """The client has nothing to send meanwhile."""
        engine, link = brief.engine(), brief.begin(prompt="def ", max_tokens=5)
        engine.suspend()
        try:
            time.sleep(BRIEF + 0.5)
        finally:
            engine.resume()
        assert link.getresponse().status == 200

    def test_a_slow_reader_gets_the_whole_answer(self, brief: Server) -> None:
        """Takes longer than a client may leave its answer unread, but reads on."""
        link = brief.begin(CHAT, **LARGE, max_tokens=2000)
        stream, received, began = link.getresponse(), b"", time.monotonic()
        while part := stream.read(128 * 1024):
            received += part
            time.sleep(0.05)
        assert time.monotonic() - began > BRIEF
        assert len(received) > 3_000_000
        assert received.endswith(b"data: [DONE]\n\n")


def test_a_client_that_reads_nothing_is_dropped(brief: Server) -> None:
    """What was sent fills a bounded buffer; then the slot is free again, and the connection closed."""
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((brief.host, brief.port))
        body = json.dumps({**LARGE, "max_tokens": 15_000})
        link.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        brief.until(lambda: brief.n_busy() == 1)
        before = brief.samples()["specllama_generation_tokens_total"]
        brief.until(lambda: brief.n_busy() == 0, 60)
        assert 0 < brief.samples()["specllama_generation_tokens_total"] - before < 15_000
        assert is_closed(link)


@contextmanager
def served(kind: type[connection.Connection]) -> Iterator[tuple[int, threading.Event]]:
    """uvicorn with these connections over an application that answers once the event is set; its port."""
    go = threading.Event()

    async def app(scope, _receive, send) -> None:
        while scope["path"] == "/wait" and not go.is_set():
            await asyncio.sleep(0.01)
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield listener.getsockname()[1], go
    finally:
        go.set()
        server.should_exit = True
        thread.join(SOON)
        listener.close()
        assert not thread.is_alive()


class Few(connection.Connection):
    n_most = 3
    errors = ERRORS


@pytest.fixture
def links() -> Iterator[Callable[[int], socket.socket]]:
    """Connects to a port; all connections are closed at the end."""
    with ExitStack() as stack:
        address = lambda port: ("127.0.0.1", port)  # noqa: E731
        yield lambda port: stack.enter_context(socket.create_connection(address(port), timeout=SOON))


def asking(link: socket.socket, path: str) -> socket.socket:
    link.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return link


def answer(link: socket.socket) -> tuple[int, str | None, bytes]:
    """Status, Retry-After and body of what comes next."""
    response = http.client.HTTPResponse(link)
    response.begin()
    with response:
        return response.status, response.getheader("retry-after"), response.read()


OK = (200, None, b"ok")


class TestHowMany:
    def test_the_longest_idle_connection_is_closed_for_a_new_one(
        self, links, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "_SETTLED_SECONDS", 0)
        with served(Few) as (port, go):
            busy = asking(links(port), "/wait")
            idle = [links(port), links(port)]
            assert [answer(asking(link, "/")) for link in idle] == [OK, OK]
            assert answer(asking(links(port), "/")) == OK
            assert is_closed(idle[0])
            assert answer(asking(idle[1], "/")) == OK
            go.set()
            assert answer(busy) == OK

    def test_a_new_connection_is_refused_if_all_are_busy(self, links) -> None:
        with served(Few) as (port, go):
            busy = [asking(links(port), "/wait") for _ in range(3)]
            time.sleep(0.3)  # all have been read
            late = asking(links(port), "/v1/models")
            status, retry_after, body = answer(late)
            assert (status, retry_after) == (503, "1")
            assert json.loads(body)["error"]["message"] == "too many connections are open"
            assert is_closed(late)
            go.set()
            assert [answer(link) for link in busy] == [OK] * 3

    def test_a_flood_is_cut_off(self, links, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "_REFUSABLE", 2)
        with served(Few) as (port, go):
            held = [asking(links(port), "/wait") for _ in range(3)]
            silent = [links(port), links(port)]
            time.sleep(0.3)
            assert is_closed(links(port), 2)
            assert not is_closed(silent[0], 0.1)
            go.set()
            assert [answer(link) for link in held] == [OK] * 3


def test_idle_connections_block_no_client(tmp_path, links) -> None:
    """More of them than the server holds: the next client is served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 1024 <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    with Server(tmp_path, "-np", "1", "--queue", "0") as one:
        many = [links(one.port) for _ in range(600)]
        one.until(one.answers)  # who has just come is given time to ask
        assert one.complete(max_tokens=1).status == 200
        assert is_closed(many[0], 1)
        assert is_closed(many[-1], 1)
        assert not is_closed(many[300], 0.1)


def test_connections_allowed_by_the_open_file_limit() -> None:
    n = connection._allowed(100)
    assert n == 100
    assert connection._allowed(2**40) >= 1
