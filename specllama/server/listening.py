"""The socket that a server listens on: of an address and a port, of a path (`unix:PATH`), or one that systemd
has opened; and messages to systemd. Knows no HTTP.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from specllama.config.defaults import UNIX
from specllama.config.text_file import expanded
from specllama.errors import NotFoundError, ResourceError, SpecllamaError, UsageError, option
from specllama.text.terminal import printable

_BACKLOG = 1024
_INHERITED = 3  # the file descriptor of the first socket that systemd passes, see sd_listen_fds(3)
_PROBE_SECONDS = 2.0  # for the owner of a unix socket to accept a connection
_PRIVATE, _PUBLIC = 0o177, 0o111  # umasks of socket files
_FORMS = "such as 127.0.0.1, ::1, 0.0.0.0 or unix:PATH"


@contextlib.contextmanager
def listening(
    host: str, port: int, seconds: float, keyed: bool, inherited: socket.socket | None = None
) -> Iterator[tuple[socket.socket, str]]:
    """A listening socket and its URL, `unix:PATH` for the socket of a path, which is removed at the end.

    seconds: after which the system closes connections on which sent bytes stay unread. keyed: whether clients
    need a key: without, only this user may connect to a path. inherited: used instead of the address. Raises
    UsageError for an address that this machine does not have, NotFoundError for a path whose directory does
    not exist, ResourceError for what is in use.
    """
    path = ""
    if inherited is not None:
        listener = inherited
    elif host.startswith(UNIX):
        path = str(expanded(host.removeprefix(UNIX)).absolute())
        listener = _of_path(path, _PUBLIC if keyed else _PRIVATE)
    else:
        listener = _of_address(host, port)
    with listener:
        made = os.stat(path).st_ino if path else 0
        try:
            if listener.family != getattr(socket, "AF_UNIX", None) and hasattr(socket, "TCP_USER_TIMEOUT"):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds) + 1)
            listener.setblocking(False)
            yield listener, _url(listener, host)
        finally:
            with contextlib.suppress(OSError):
                if path and os.stat(path).st_ino == made:  # else another server has it by now
                    os.unlink(path)


def _url(listener: socket.socket, host: str) -> str:
    if listener.family == getattr(socket, "AF_UNIX", None):
        return UNIX + os.fsdecode(listener.getsockname())
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def inherited_socket() -> socket.socket | None:
    """The socket that systemd passes, None for none. Raises UsageError unless it is one, and listens."""
    meant, n = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    if meant != str(os.getpid()) or n in ("", "0"):
        return None
    if n != "1":
        raise UsageError(f"LISTEN_FDS has {printable(n)[:20]} sockets", "its unit needs one ListenStream")
    try:
        os.set_inheritable(_INHERITED, False)
        passed = socket.socket(fileno=_INHERITED)
        if passed.type == socket.SOCK_STREAM and passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return passed
        passed.close()
    except OSError:
        pass
    raise UsageError("LISTEN_FDS has no listening socket", "its unit needs ListenStream, Accept=no")


def host_of(inherited: socket.socket) -> str:
    """Its address, as the option --host has it."""
    name = inherited.getsockname()
    return str(name[0]) if isinstance(name, tuple) else UNIX + os.fsdecode(name)


def notify(state: str) -> None:
    """Send a state such as READY=1 to systemd, if it asks for that: see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] in ("/", "@") and address[1:]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def check_form(host: str) -> None:
    """Raises UsageError for what has not the form of an address; what a name leads to is seen later."""
    plain = host.strip("[]")
    if host not in (plain, f"[{plain}]") and not host.startswith(UNIX):
        raise _no_host(host)
    try:
        if not plain.strip("0123456789."):
            socket.inet_aton(plain)
        elif ":" in plain and not host.startswith(UNIX):
            ipaddress.ip_address(plain)
    except (OSError, ValueError):
        raise _no_host(host) from None


def _no_host(host: str) -> UsageError:
    why = f": {printable(host)[:80]} is no IP address, and no name that leads to one"
    return UsageError(why, _FORMS, option="host")


def addresses(host: str, port: int = 0) -> Sequence[Any]:
    """What a host leads to, as getaddrinfo has it. Raises UsageError where it leads to nothing."""
    try:
        return socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise _no_host(host) from None


def _of_address(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = addresses(host, port)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _no_socket(error, host, port) from None
    return listener


def _no_socket(error: OSError, host: str, port: int) -> SpecllamaError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return ResourceError(f"{where} is in use", f"choose another {option('port')}, or 0 for any")
    if error.errno == errno.EACCES:
        return ResourceError(f"{where} is not for this user", f"choose {option('port')} from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f": {host} is no address of this machine", _FORMS, option="host")
    return ResourceError(f"{where} cannot be served: {error.strerror or error}")


def _of_path(path: str, umask: int) -> socket.socket:
    if sys.platform == "win32":
        raise UsageError("this system has no unix sockets", option="host")
    listener, before = socket.socket(socket.AF_UNIX), os.umask(umask)
    try:
        _remove_unused(path)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        shown = printable(path)
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(f"the directory of {shown} does not exist") from None
        if error.errno is None:  # Python's own check
            raise UsageError(
                f"{shown} has {len(os.fsencode(path))} bytes, too many for a socket",
                "100 are few enough",
                option="host",
            ) from None
        why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        hint = f"choose another path: {option('host')} unix:PATH"
        raise ResourceError(f"no socket can be made at {shown}: {why}", hint) from None
    finally:
        os.umask(before)
    return listener


def _remove_unused(path: str) -> None:
    """Remove the socket of a killed server. Raises OSError for one in use, and for what is no socket."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "there is something else")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except TimeoutError:
            raise OSError(errno.EADDRINUSE, "in use") from None
        else:
            raise OSError(errno.EADDRINUSE, "in use")
