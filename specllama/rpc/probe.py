"""Whether what answers at an address is an RPC worker that can be used.

Speaks the opening of ggml's protocol over plain sockets, so that a wrong host, another version or a web
server is an error with a reason: ggml itself ends the process on all of them.

Little-endian: a request is a command (1 byte), a size (8), data; an answer is a size (8), data. Read in
ggml-rpc.cpp of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from specllama.errors import NetworkError, SpecllamaError, UsageError
from specllama.rpc.endpoints import PORT, find_worker

PROTOCOL = (7, 0)  # RPC_PROTO_MAJOR_VERSION, and the newest MINOR that this build's client takes
PROBE_SECONDS = 5.0
_GET_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 11, 14, 15
_CAPABILITIES = bytes(24)  # of transports beyond TCP: none
_MAX_DEVICES = 64
_NUDGE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Worker:
    """An idle RPC worker. endpoint: as it was named; address: IPv4:port; devices: (free, total) bytes of
    each.
    """

    endpoint: str
    address: str
    version: tuple[int, int, int]
    devices: tuple[tuple[int, int], ...]

    @property
    def protocol(self) -> str:
        return ".".join(map(str, self.version))


def probe(endpoint: str, seconds: float = PROBE_SECONDS) -> Worker:
    """What answers at an endpoint, within about so many seconds. Raises NetworkError where that is no idle
    RPC worker of this build's version.
    """
    deadline = time.monotonic() + seconds
    address = find_worker(endpoint)
    with _connect(endpoint, address, deadline) as sock:
        talk = _Talk(sock, deadline)
        try:
            version = _hello(talk, endpoint, address, deadline)
            (count,) = struct.unpack("<I", talk.ask(_DEVICE_COUNT, b"", 4))
            if not 0 < count <= _MAX_DEVICES:
                raise _ForeignError(struct.pack("<I", count))
            asked = (talk.ask(_GET_DEVICE_MEMORY, struct.pack("<I", i), 16) for i in range(count))
            memory = tuple((free, total) for free, total in (struct.unpack("<QQ", m) for m in asked))
        except _ForeignError as error:
            raise NetworkError(f"{endpoint} is no RPC worker: {error}", _hint(endpoint)) from None
        except TimeoutError:
            raise _silent(talk, endpoint, seconds) from None
        except OSError as error:
            raise NetworkError(
                f"the RPC worker {endpoint} broke the connection off: {error}", _hint(endpoint)
            ) from None
    return Worker(endpoint, f"{address[0]}:{address[1]}", version, memory)


def probe_all(
    wanted: Iterable[str], seconds: float = PROBE_SECONDS
) -> list[tuple[str, Worker | SpecllamaError]]:
    """What answers at each of several endpoints, asked at the same time, in their order. Never raises."""
    names = list(wanted)
    found: dict[str, Worker | SpecllamaError] = {}

    def ask(endpoint: str) -> None:
        try:
            found[endpoint] = probe(endpoint, seconds)
        except SpecllamaError as error:
            found[endpoint] = error

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2 * seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = "the RPC worker {} cannot be found: its name is still being looked up"
    return [(name, found.get(name) or NetworkError(late.format(name), _hint(name))) for name in names]


def find_workers(wanted: Iterable[str]) -> list[Worker]:
    """All of several workers. Raises NetworkError for the first that is none, UsageError where two names mean
    the same one.
    """
    ready: list[Worker] = []
    for endpoint, found in probe_all(wanted):
        if isinstance(found, SpecllamaError):
            raise found
        for other in ready:
            if other.address == found.address:
                raise UsageError(f": {other.endpoint} and {endpoint} are the same worker", option="rpc")
        ready.append(found)
    return ready


def _connect(endpoint: str, address: tuple[str, int], deadline: float) -> socket.socket:
    try:
        return socket.create_connection(address, max(0.01, deadline - time.monotonic()))
    except ConnectionRefusedError:
        why = "nothing listens there"
    except TimeoutError:
        why = "no answer; the machine is off, or a firewall is between"
    except OSError as error:
        why = error.strerror or str(error)
    raise NetworkError(f"the RPC worker {endpoint} cannot be reached: {why}", _hint(endpoint))


def _hello(talk: _Talk, endpoint: str, address: tuple[str, int], deadline: float) -> tuple[int, int, int]:
    """The version of a worker that fits. Raises NetworkError, _ForeignError, TimeoutError, OSError."""
    try:
        major, minor, patch = talk.ask(_HELLO, _CAPABILITIES, 28)[:3]
    except ConnectionError:
        major, minor, patch = _old_version(endpoint, address, deadline)
    if major == PROTOCOL[0] and minor <= PROTOCOL[1]:
        return major, minor, patch
    raise NetworkError(
        f"the RPC worker {endpoint} speaks version {major}.{minor}.{patch} of ggml's protocol, this build "
        f"{PROTOCOL[0]}.{PROTOCOL[1]}",
        "install the same specllama on both machines",
    )


def _old_version(endpoint: str, address: tuple[str, int], deadline: float) -> tuple[int, int, int]:
    """Up to version 3 the greeting was empty, and a worker hangs up at another one."""
    with contextlib.suppress(_ForeignError, OSError), _connect(endpoint, address, deadline) as sock:
        major, minor, patch = _Talk(sock, deadline).ask(_HELLO, b"", 3)
        return major, minor, patch
    raise NetworkError(
        f"{endpoint} is no RPC worker, or one of another version: it hangs up at the greeting",
        _hint(endpoint),
    )


def _silent(talk: _Talk, endpoint: str, seconds: float) -> NetworkError:
    """What takes the connection and says nothing: a web server that waits for the end of a line, or a worker
    with another client.
    """
    if said := talk.nudge():
        return NetworkError(f"{endpoint} is no RPC worker: {_ForeignError(said)}", _hint(endpoint))
    return NetworkError(
        f"the RPC worker {endpoint} takes the connection and does not answer within {seconds:g} s: it is "
        "busy with another client, hangs, or is something else",
        "a worker serves one client at a time: wait for the other one, or start a second worker there",
    )


def _hint(endpoint: str) -> str:
    port = endpoint.rpartition(":")[2]
    flag = "" if int(port) == PORT else f" --port {port}"
    return (
        f"start one there: specllama rpc-worker{flag} (it listens on 127.0.0.1 unless --host says otherwise)"
    )


class _ForeignError(Exception):
    """Bytes that no RPC worker sends."""

    def __init__(self, raw: bytes) -> None:
        web = raw.startswith((b"HTTP", b"<"))
        super().__init__("it answers as a web server" if web else f"it answers {raw[:24]!r}")


class _Talk:
    """Requests and answers over a connection until a deadline; TimeoutError beyond it."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def ask(self, command: int, data: bytes, size: int) -> bytes:
        """The answer to a request, of so many bytes. Raises _ForeignError where it is another one."""
        self._wait()
        self._sock.sendall(struct.pack("<BQ", command, len(data)) + data)
        head = self._read(8)
        if struct.unpack("<Q", head) != (size,):
            raise _ForeignError(head)
        return self._read(size)

    def nudge(self) -> bytes:
        """What an end of line makes it say. A busy worker finds a broken request later, and hangs up."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(_NUDGE_SECONDS)
            self._sock.sendall(b"\r\n\r\n")
            return self._sock.recv(64)
        return b""

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                self._wait()
                part = self._sock.recv(size - len(data))
            except TimeoutError:
                if data:
                    raise _ForeignError(data) from None
                raise
            if not part:
                raise _ForeignError(data) if data else ConnectionError("it hung up")
            data += part
        return data

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
