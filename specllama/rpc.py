"""RPC workers: parses lists of them, resolves addresses (ggml's RPC supports IPv4 only), and checks whether a
usable one listens there. Knows nothing of llama.cpp.

The check speaks the start of ggml's protocol over plain sockets, so that a wrong host, another version or a
web server gives an error with a reason: ggml itself aborts the process in all these cases.

Format, little-endian: a request is a command (1 byte), a size (8 bytes) and data; a response is a size
(8 bytes) and data. Source: ggml-rpc.cpp in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specllama.clock import ended, running_time, wait_until
from specllama.errors import NetworkError, ResourceError, SpecllamaError, UsageError, option

PORT = 50052
MAX_WORKERS = 16  # llama_max_devices()
_HOST = r"[A-Za-z0-9._-]{1,253}"


def endpoints(given: str | Sequence[str]) -> tuple[str, ...]:
    """Workers as "host:port", from a list or a string with commas; no port: the usual. Raises UsageError."""
    parts = given.split(",") if isinstance(given, str) else given
    parsed = [_endpoint(part) for part in parts]
    if len(parsed) > MAX_WORKERS:
        raise UsageError(f"takes {MAX_WORKERS} workers at most, not {len(parsed)}", option="rpc")
    for i, one in enumerate(parsed):
        if one in parsed[:i]:
            raise UsageError(f"names the worker {one} twice", option="rpc")
    return tuple(parsed)


def _endpoint(text: str) -> str:
    text = text.strip()
    if text.count(":") > 1:
        supported = "ggml's RPC supports IPv4 addresses and host names only"
        raise UsageError(f": {text!r} is not host:port; {supported}", option="rpc")
    match = re.fullmatch(rf"({_HOST})(?::([0-9]{{1,5}}))?", text)
    port = int(match[2] or PORT) if match else 0
    if not match or not 0 < port < 1 << 16:
        form = "host:port (or several, separated by commas)"
        raise UsageError(f"must be {form}, not {text[:80]!r}", option="rpc")
    return f"{match[1].lower()}:{port}"


def find_worker(endpoint: str) -> tuple[str, int]:
    """The IPv4 address and port of "host:port". Raises NetworkError if the name cannot be resolved."""
    host, _, port = endpoint.rpartition(":")
    try:
        addresses = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"the RPC worker {endpoint} cannot be found: {reason}"
        raise NetworkError(message, "check the name, or give its IPv4 address") from None
    return str(addresses[0][4][0]), int(port)


def listen_address(host: str, port: int) -> tuple[str, int]:
    """The IPv4 address and port at which a worker can listen; port 0 becomes a free one. Raises UsageError if
    the host is not an address of this machine, ResourceError if the port is in use or not permitted.
    """
    if not 0 <= port < 1 << 16:
        raise UsageError(f"must be from 0 to 65535, not {port}", option="port")
    if ":" in host:
        message = f"{host}: ggml's RPC supports IPv4 only"
        raise UsageError(message, "give an IPv4 address, as 127.0.0.1", option="host")
    try:
        if not re.fullmatch(_HOST, host):
            raise OSError
        address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except (OSError, UnicodeError):
        message = f"{host[:80]!r} is not an address"
        raise UsageError(message, "give an IPv4 address, as 127.0.0.1", option="host") from None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
            return str(address), int(sock.getsockname()[1])
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UsageError(f"{host} is not an address of this machine", option="host") from None
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            hint = f"choose another {option('port')}"
            raise ResourceError(f"port {port} of {address} {reason}", hint) from None


PROTOCOL = (7, 0)  # RPC_PROTO_MAJOR_VERSION, and the newest MINOR that this build's client accepts
PROBE_SECONDS = 5.0
_GET_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 11, 14, 15
_CAPABILITIES = bytes(24)  # no transports besides TCP
_MAX_DEVICES = 64
_NUDGE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Worker:
    """An idle RPC worker. endpoint: as given; address: IPv4:port; devices: (free, total) bytes of each."""

    endpoint: str
    address: str
    version: tuple[int, int, int]
    devices: tuple[tuple[int, int], ...]

    @property
    def protocol(self) -> str:
        return ".".join(map(str, self.version))


def probe(endpoint: str, seconds: float = PROBE_SECONDS) -> Worker:
    """The worker at an endpoint, within about `seconds`. Raises NetworkError unless an idle RPC worker with
    this build's protocol version responds.
    """
    deadline = running_time() + seconds
    address = find_worker(endpoint)
    with _connect(endpoint, address, deadline) as sock:
        connection = _Connection(sock, deadline)
        try:
            version = _hello(connection, endpoint, address, deadline)
            (count,) = struct.unpack("<I", connection.request(_DEVICE_COUNT, b"", 4))
            if not 0 < count <= _MAX_DEVICES:
                raise _ForeignError(struct.pack("<I", count))
            replies = (connection.request(_GET_DEVICE_MEMORY, struct.pack("<I", i), 16) for i in range(count))
            memory = tuple((free, total) for free, total in (struct.unpack("<QQ", m) for m in replies))
        except _ForeignError as error:
            raise NetworkError(f"{endpoint} is not an RPC worker: {error}", _hint(endpoint)) from None
        except TimeoutError:
            if response := connection.nudge():  # a web server waits for the end of a line
                what = f"{endpoint} is not an RPC worker: {_ForeignError(response)}"
                raise NetworkError(what, _hint(endpoint)) from None
            raise NetworkError(
                f"the RPC worker {endpoint} accepts the connection and does not answer within {seconds:g} s: "
                "it is busy with another client, hangs, or is something else",
                "a worker serves one client at a time: wait for the other one, or start a second worker "
                "there",
            ) from None
        except OSError as error:
            message = f"the RPC worker {endpoint} closed the connection: {error}"
            raise NetworkError(message, _hint(endpoint)) from None
    return Worker(endpoint, f"{address[0]}:{address[1]}", version, memory)


def probe_all(
    endpoints: Iterable[str], seconds: float = PROBE_SECONDS
) -> list[tuple[str, Worker | SpecllamaError]]:
    """The worker at each endpoint, or the error; all are probed at the same time. Never raises."""
    names = list(endpoints)
    answers: dict[str, Worker | SpecllamaError] = {}

    def probe_one(endpoint: str) -> None:
        try:
            answers[endpoint] = probe(endpoint, seconds)
        except SpecllamaError as error:
            answers[endpoint] = error

    threads = [threading.Thread(target=probe_one, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline = running_time() + 2 * seconds
    for thread in threads:
        wait_until(ended(thread), deadline - running_time())
    late = "the RPC worker {} cannot be found: its name is still being looked up"
    return [(name, answers.get(name) or NetworkError(late.format(name), _hint(name))) for name in names]


def find_workers(endpoints: Iterable[str]) -> list[Worker]:
    """All workers. Raises NetworkError for the first unusable one, UsageError for one that is there twice."""
    ready: list[Worker] = []
    for endpoint, answer in probe_all(endpoints):
        if isinstance(answer, SpecllamaError):
            raise answer
        for other in ready:
            if other.address == answer.address:
                raise UsageError(f": {other.endpoint} and {endpoint} are the same worker", option="rpc")
        ready.append(answer)
    return ready


def _connect(endpoint: str, address: tuple[str, int], deadline: float) -> socket.socket:
    try:
        return socket.create_connection(address, max(0.01, deadline - running_time()))
    except ConnectionRefusedError:
        reason = "nothing listens there"
    except TimeoutError:
        reason = "no answer; the machine is off, or a firewall is in between"
    except OSError as error:
        reason = error.strerror or str(error)
    raise NetworkError(f"the RPC worker {endpoint} cannot be reached: {reason}", _hint(endpoint))


def _hello(
    connection: _Connection, endpoint: str, address: tuple[str, int], deadline: float
) -> tuple[int, int, int]:
    """The protocol version of a compatible worker. Raises NetworkError, _ForeignError, OSError."""
    try:
        major, minor, patch = connection.request(_HELLO, _CAPABILITIES, 28)[:3]
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
    """The version of a worker of protocol 3 or older, whose HELLO has no data: else it disconnects."""
    with contextlib.suppress(_ForeignError, OSError), _connect(endpoint, address, deadline) as sock:
        major, minor, patch = _Connection(sock, deadline).request(_HELLO, b"", 3)
        return major, minor, patch
    raise NetworkError(
        f"{endpoint} is not an RPC worker, or one of another version: it closes the connection at the "
        "greeting",
        _hint(endpoint),
    )


def _hint(endpoint: str) -> str:
    port = endpoint.rpartition(":")[2]
    flag = "" if int(port) == PORT else f" --port {port}"
    return (
        f"start one there: specllama rpc-worker{flag} (it listens on 127.0.0.1 unless --host says otherwise)"
    )


class _ForeignError(Exception):
    """The response is not one of ggml's protocol."""

    def __init__(self, raw: bytes) -> None:
        web = raw.startswith((b"HTTP", b"<"))
        super().__init__("it answers as a web server" if web else f"it answers {raw[:24]!r}")


class _Connection:
    """Requests and responses over a socket until a deadline (by running_time); TimeoutError after it."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def request(self, command: int, data: bytes, size: int) -> bytes:
        """The response to a request, of `size` bytes. Raises _ForeignError for any other size."""
        self._set_timeout()
        self._sock.sendall(struct.pack("<BQ", command, len(data)) + data)
        head = self._read(8)
        if struct.unpack("<Q", head) != (size,):
            raise _ForeignError(head)
        return self._read(size)

    def nudge(self) -> bytes:
        """The response to an empty line. A busy worker reads it later as a bad request, and disconnects."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(_NUDGE_SECONDS)
            self._sock.sendall(b"\r\n\r\n")
            return self._sock.recv(64)
        return b""

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                self._set_timeout()
                part = self._sock.recv(size - len(data))
            except TimeoutError:
                if running_time() < self._deadline:  # the socket's time counts pauses of this process
                    continue
                if data:
                    raise _ForeignError(data) from None
                raise
            if not part:
                raise _ForeignError(data) if data else ConnectionError("no response")
            data += part
        return data

    def _set_timeout(self) -> None:
        left = self._deadline - running_time()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
