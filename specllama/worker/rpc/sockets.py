"""TCP connections that llama.cpp has opened in this process, found among the open files by their port.

ggml's RPC sets no timeouts: if the other machine loses power, it waits forever. TCP keepalive, switched on
here, makes the system detect that.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

_IDLE_SECONDS, _EVERY_SECONDS, _TIMES = 15, 5, 3  # a dead machine is detected after half a minute
_Address = tuple[str, int]


def connections_to(addresses: set[str]) -> Iterator[socket.socket]:
    """Duplicates of the connections to any of these addresses (IPv4:port). The originals stay open."""
    for sock, _, peer in _all():
        if peer is not None and f"{peer[0]}:{peer[1]}" in addresses:
            yield sock


def listener(port: int) -> socket.socket | None:
    """The socket that listens on a port, as a duplicate; None if there is none."""
    return next((s.dup() for s, own, peer in _all() if peer is None and own[1] == port), None)


def clients(port: int) -> list[str]:
    """The IPv4 addresses of the clients connected to a listening port."""
    return [peer[0] for _, own, peer in _all() if peer is not None and own[1] == port]


def lost(addresses: set[str]) -> set[str]:
    """The addresses to which there is no open connection any more."""
    alive = set()
    for sock in connections_to(addresses):
        try:
            ended = sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            ended = False
        except OSError:
            ended = True
        if not ended:
            alive.add(":".join(map(str, sock.getpeername())))
    return addresses - alive


def keep_alive(sock: socket.socket) -> None:
    """Let a connection fail about half a minute after the other machine has died. For a listener this applies
    to the connections that it accepts.
    """
    tcp = socket.IPPROTO_TCP
    options = (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPALIVE", _IDLE_SECONDS),  # its name on macOS
        ("TCP_KEEPINTVL", _EVERY_SECONDS),
        ("TCP_KEEPCNT", _TIMES),
        ("TCP_USER_TIMEOUT", 1000 * (_IDLE_SECONDS + _TIMES * _EVERY_SECONDS)),
    )
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            if hasattr(socket, name):
                sock.setsockopt(tcp, getattr(socket, name), value)


def _all() -> Iterator[tuple[socket.socket, _Address, _Address | None]]:
    """(duplicate, own address, peer address) of all IPv4 stream sockets of this process. Each duplicate is
    closed after its iteration.
    """
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # closed by now
        try:
            sock = socket.socket(fileno=copy)
        except OSError:  # not a socket
            os.close(copy)
            continue
        with sock:
            if (sock.family, sock.type) != (socket.AF_INET, socket.SOCK_STREAM):
                continue
            peer: _Address | None = None
            with contextlib.suppress(OSError):
                peer = sock.getpeername()
            with contextlib.suppress(OSError):
                yield sock, sock.getsockname(), peer
