"""RPC workers before llama.cpp is involved: endpoints, addresses to listen at, and the probe."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from specllama import rpc as module
from specllama.errors import NetworkError, ResourceError, UsageError
from specllama.rpc import Worker, endpoints, find_workers, listen_address, probe, probe_all
from specllama.worker import rpc as sockets

Serve = Callable[[socket.socket], None]
Version = tuple[int, int, int]


@contextmanager
def server(serve: Serve) -> Iterator[str]:
    """A server on loopback that calls `serve` with every connection; yields its endpoint."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            accepted.append(connection)
            threading.Thread(target=serve_quietly, args=(connection,), daemon=True).start()

    def serve_quietly(connection: socket.socket) -> None:
        with suppress(OSError, struct.error):
            serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for connection in accepted:
            connection.close()


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data


def rpc_server(version: Version = (7, 0, 0), memory: tuple[tuple[int, int], ...] = ((3, 4),)) -> Serve:
    """The start of ggml's protocol, as the server in ggml-rpc.cpp speaks it."""

    def serve(connection: socket.socket) -> None:
        while True:
            command, size = struct.unpack("<BQ", exactly(connection, 9))
            data = exactly(connection, size)
            if command == 14:
                if size != 24:
                    return connection.close()
                answer = bytes(version) + bytes(25)
            elif command == 15:
                answer = struct.pack("<I", len(memory))
            else:
                assert command == 11
                answer = struct.pack("<QQ", *memory[struct.unpack("<I", data)[0]])
            connection.sendall(struct.pack("<Q", len(answer)) + answer)

    return serve


def old_server(connection: socket.socket) -> None:
    """Version 3: the greeting is empty, and any other closes the connection."""
    command, size = struct.unpack("<BQ", exactly(connection, 9))
    if (command, size) == (14, 0):
        connection.sendall(struct.pack("<QBBB", 3, 3, 6, 1))
    connection.close()


def sends(data: bytes) -> Serve:
    return lambda connection: connection.sendall(data)


def sends_slowly(connection: socket.socket) -> None:
    for byte in struct.pack("<Q", 28) * 40:
        connection.sendall(bytes([byte]))
        time.sleep(0.2)


def hangs_up(connection: socket.socket) -> None:
    connection.close()


def hangs_up_later(connection: socket.socket) -> None:
    exactly(connection, 33)
    connection.sendall(struct.pack("<Q", 28) + b"\7\0\0" + bytes(25))
    connection.close()


class TestNames:
    @pytest.mark.parametrize(
        ("given", "completed"),
        [
            ("10.0.0.2:50053", ("10.0.0.2:50053",)),
            ("Box", ("box:50052",)),
            (" a.local:1 , b:65535", ("a.local:1", "b:65535")),
            (["a:1", "b"], ("a:1", "b:50052")),
        ],
    )
    def test_a_list_is_split_and_completed(self, given: str | list[str], completed: tuple[str, ...]) -> None:
        assert endpoints(given) == completed

    @pytest.mark.parametrize(
        "given",
        [
            *("", " ", ",", "a:1,", "a:", ":50052", "a:0", "a:65536", "a:-1", "a:1.5", "a:x", "a b:1"),
            *("::1", "[::1]:50052", "http://a:1", "a:1/x", "a:1;b:2", "ä:1", "a\0:1", "a:٣", "x" * 254),
            ",".join(f"a:{n}" for n in range(1, 18)),
            "a:1,A:1",
        ],
    )
    def test_rejects_a_malformed_list(self, given: str) -> None:
        with pytest.raises(UsageError) as caught:
            endpoints(given)
        assert caught.value.option == "rpc"
        assert len(caught.value.message) < 200


class TestListening:
    def test_a_local_address_and_a_free_port_are_found(self) -> None:
        host, port = listen_address("localhost", 0)
        assert host == "127.0.0.1"
        assert 0 < port < 65536
        assert listen_address("0.0.0.0", port) == ("0.0.0.0", port)

    def test_rejects_a_port_in_use(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ResourceError, match=f"port {port} of 127.0.0.1 is in use"):
                listen_address("127.0.0.1", port)

    @pytest.mark.parametrize(
        ("host", "port"),
        [
            *(("127.0.0.1", 65536), ("127.0.0.1", -1), ("", 50052), ("::1", 50052), ("[::]", 50052)),
            *(
                ("192.0.2.1", 50052),
                ("no such host", 50052),
                ("a\0b", 50052),
                ("x" * 300, 50052),
                ("*", 50052),
            ),
        ],
    )
    def test_rejects_an_address_of_another_machine(self, host: str, port: int) -> None:
        with pytest.raises(UsageError):
            listen_address(host, port)


class TestProbe:
    def test_finds_a_worker(self) -> None:
        with server(rpc_server(memory=((5, 8), (2**40, 2**41)))) as endpoint:
            worker = probe(endpoint.replace("127.0.0.1", "localhost"))
        assert worker.endpoint.startswith("localhost:")
        assert worker.address == endpoint
        assert worker.protocol == "7.0.0"
        assert worker.devices == ((5, 8), (2**40, 2**41))

    def test_a_pause_of_this_process_is_not_the_workers_silence(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The time of sockets goes on during a pause; that of the process does not."""
        monkeypatch.setattr(module, "running_time", lambda: 0.0)
        serve = rpc_server()

        def late(connection: socket.socket) -> None:
            time.sleep(0.5)
            serve(connection)

        with server(late) as endpoint:
            assert probe(endpoint, 0.1).endpoint == endpoint

    def test_accepts_a_newer_patch_version(self) -> None:
        with server(rpc_server((7, 0, 9))) as endpoint:
            assert probe(endpoint).version == (7, 0, 9)

    @pytest.mark.parametrize(
        ("serve", "needle"),
        [
            (rpc_server((7, 1, 0)), "speaks version 7.1.0 of ggml's protocol, this build 7.0"),
            (rpc_server((8, 0, 0)), "speaks version 8.0.0"),
            (rpc_server((6, 9, 9)), "speaks version 6.9.9"),
            (old_server, "speaks version 3.6.1"),
            (rpc_server(memory=()), "not an RPC worker"),
            (hangs_up, "closes the connection at the greeting"),
            (hangs_up_later, "closed the connection"),
            (sends(b"SSH-2.0-OpenSSH_9.2\r\n"), "not an RPC worker: it answers b'SSH-2.0-'"),
            (sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not an RPC worker: it answers as a web server"),
            (sends(b"220\r\n"), "not an RPC worker: it answers b'220"),
            (sends(struct.pack("<Q", 1 << 62)), "not an RPC worker"),
            (sends_slowly, "not an RPC worker: it answers"),
            (sends(b""), "does not answer within 0.5 s: it is busy"),
        ],
        ids=lambda value: value[:24] if isinstance(value, str) else "",
    )
    def test_rejects_everything_else_in_time_and_with_a_reason(self, serve: Serve, needle: str) -> None:
        with server(serve) as endpoint:
            started = time.monotonic()
            with pytest.raises(NetworkError) as caught:
                probe(endpoint, seconds=0.5)
            assert time.monotonic() - started < 30
        assert needle in caught.value.message
        assert endpoint in caught.value.message
        assert caught.value.hint

    def test_recognises_a_web_server_that_waits_for_the_end_of_a_line(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
            threading.Thread(target=web.serve_forever, daemon=True).start()
            with pytest.raises(NetworkError, match="it answers as a web server"):
                probe(f"127.0.0.1:{web.server_port}", seconds=0.5)
            web.shutdown()

    def test_a_closed_port_is_an_error(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            endpoint = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(NetworkError, match="cannot be reached: nothing listens there") as caught:
            probe(endpoint)
        assert f"specllama rpc-worker --port {endpoint.rpartition(':')[2]} " in caught.value.hint

    @pytest.mark.parametrize("name", ["no-such-host.invalid", "..", "-"])
    def test_an_unknown_name_is_an_error(self, name: str) -> None:
        with pytest.raises(NetworkError, match="cannot be found"):
            probe(f"{name}:50052")

    def test_several_workers_are_probed_at_once(self) -> None:
        with server(rpc_server()) as good, server(sends(b"")) as silent:
            started = time.monotonic()
            answers = probe_all([silent, good, "no-such-host.invalid:1"], seconds=1)
            assert time.monotonic() - started < 30
        assert [name for name, _ in answers] == [silent, good, "no-such-host.invalid:1"]
        assert [type(answer) for _, answer in answers] == [NetworkError, Worker, NetworkError]

    def test_rejects_one_worker_under_two_names(self) -> None:
        with server(rpc_server()) as endpoint:
            port = endpoint.rpartition(":")[2]
            with pytest.raises(UsageError, match="the same worker"):
                find_workers([endpoint, f"localhost:{port}"])


class TestSockets:
    """Duplicates of open sockets, found by port; the originals stay open."""

    def test_both_ends_are_found_and_kept_alive(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            listener = sockets.open_listener(port)
            assert listener is not None
            with listener:
                sockets.keep_alive(listener)
            assert sockets.clients(port) == []
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted, _ = listening.accept()
                with accepted:
                    assert sockets.clients(port) == ["127.0.0.1"]
                    for sock in sockets.connections_to({f"127.0.0.1:{port}"}):
                        sockets.keep_alive(sock)
                    for end in (client, accepted):  # a listener's options are those of what it accepts
                        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
                    client.sendall(b"x")
                    assert accepted.recv(1) == b"x"

    def test_a_lost_connection_is_detected(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            with socket.create_connection(listening.getsockname()) as client:
                accepted, _ = listening.accept()
                client.setblocking(True)
                assert sockets.lost({address, "127.0.0.1:1"}) == {"127.0.0.1:1"}
                accepted.sendall(b"x")
                assert sockets.lost({address}) == set()
                assert client.recv(1) == b"x"
                accepted.close()
                assert client.recv(1) == b""
                assert sockets.lost({address}) == {address}
            assert sockets.lost({address}) == {address}

    def test_without_sockets_nothing_is_found(self) -> None:
        assert sockets.open_listener(1) is None
        assert list(sockets.connections_to({"127.0.0.1:1"})) == []

    def test_no_file_descriptor_is_leaked(self) -> None:
        before = set(os.listdir("/dev/fd"))
        for _ in range(3):
            sockets.clients(1)
        assert len(os.listdir("/dev/fd")) == len(before)
