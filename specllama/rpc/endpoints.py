"""Parses lists of RPC workers and resolves addresses. ggml's RPC supports IPv4 only.

Knows nothing of the protocol (rpc/probe.py) and nothing of llama.cpp.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Sequence

from specllama.errors import NetworkError, ResourceError, UsageError, option

PORT = 50052
MAX_WORKERS = 16  # llama_max_devices()
_HOST = r"[A-Za-z0-9._-]{1,253}"


def endpoints(given: str | Sequence[str]) -> tuple[str, ...]:
    """Workers as "host:port", from a comma-separated string or a list; the port may be omitted. Raises
    UsageError.
    """
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
        raise NetworkError(
            f"the RPC worker {endpoint} cannot be found: {reason}", "check the name, or give its IPv4 address"
        ) from None
    return str(addresses[0][4][0]), int(port)


def listen_address(host: str, port: int) -> tuple[str, int]:
    """The IPv4 address and port at which a worker can listen; port 0 becomes a free one. Raises UsageError if
    the host is not an address of this machine, ResourceError if the port is in use or not permitted.
    """
    if not 0 <= port < 1 << 16:
        raise UsageError(f"must be from 0 to 65535, not {port}", option="port")
    if ":" in host:
        raise UsageError(
            f"{host}: ggml's RPC supports IPv4 only", "give an IPv4 address, as 127.0.0.1", option="host"
        )
    try:
        if not re.fullmatch(_HOST, host):
            raise OSError
        address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except (OSError, UnicodeError):
        raise UsageError(
            f"{host[:80]!r} is not an address", "give an IPv4 address, as 127.0.0.1", option="host"
        ) from None
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
