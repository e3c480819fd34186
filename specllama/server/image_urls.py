"""Gets images that requests name by their address, where --allow-image-urls allows it.

A client must not reach through the server what only the server can reach: a host is resolved once, each of
its addresses must be public, and the connection goes to one of these, redirects included. Proxies of the
environment are not used, since they would resolve the name themselves.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2

import specllama
from specllama.clock import running_time
from specllama.errors import UsageError, quoted
from specllama.images import MAX_BYTES

MAX_REDIRECTS = 5
_MAX_URL = 8192  # characters
_SECONDS, _QUIET_SECONDS = 30.0, 10.0  # of a request, and without a byte
_HEADERS = {
    "Accept": "image/png, image/jpeg, image/webp, image/gif, image/bmp",
    "Accept-Encoding": "identity",
    "User-Agent": f"specllama/{specllama.__version__}",
    "Connection": "close",
}
_HINT = "send the image itself, as data:image/png;base64,…"
IsAllowed = Callable[[str], bool]


def is_public(address: str) -> bool:
    """Whether an IP address can be reached by everybody: none of a private network, of this machine or link,
    and none that stands for such a one in IPv6.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip.sixtofour is not None or ip.teredo is not None or ip not in _UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


_UNICAST = ipaddress.IPv6Network("2000::/3")


class _UnreadError(Exception):
    """Why an image is not read, in words."""


class ImageFetcher:
    """Gets images. is_allowed: whether an IP address may be connected to. seconds: for one image."""

    def __init__(self, is_allowed: IsAllowed = is_public, seconds: float = _SECONDS) -> None:
        self._is_allowed, self._seconds = is_allowed, seconds

    def get(self, url: str) -> bytes:
        """The bytes at an address, of at most MAX_BYTES. Raises UsageError for all that goes wrong: the
        client has named what cannot be read.
        """
        deadline = running_time() + self._seconds
        try:
            for _ in range(MAX_REDIRECTS + 1):
                parsed = _parsed(url)
                data, location = self._response(parsed, deadline)
                if location is None:
                    return data
                url = str(parsed.join(location))
            raise _UnreadError(f"there are more than {MAX_REDIRECTS} redirects")
        except _UnreadError as error:
            why = str(error)
        except httpcore2.TimeoutException:
            why = "it takes too long"
        except socket.gaierror:
            why = "there is no such host"
        except httpcore2.ProtocolError:
            why = "what answers there is no web server"
        except (httpcore2.NetworkError, OSError) as error:
            cause = error.__context__ or error
            why = getattr(cause, "strerror", None) or "the connection ended"
            if isinstance(cause, ssl.SSLError):
                why = "its certificate is not accepted, or it knows no TLS"
        except (httpx2.InvalidURL, ValueError):
            why = "this is no address on the web"
        raise UsageError(f"the image at {quoted(url)} cannot be read: {why}", _HINT) from None

    def _response(self, url: httpx2.URL, deadline: float) -> tuple[bytes, str | None]:
        """(content, None), or (nothing, where it is instead). Raises _UnreadError, what httpcore2 raises."""
        quiet = dict.fromkeys(("connect", "read", "write", "pool"), _QUIET_SECONDS)
        headers: list[tuple[bytes | str, bytes | str]] = [("Host", url.netloc), *_HEADERS.items()]
        core = httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path or b"/"
        )
        backend = _CheckedBackend(self._is_allowed, deadline)
        with (
            httpcore2.ConnectionPool(
                ssl_context=ssl.create_default_context(), network_backend=backend
            ) as pool,
            pool.stream("GET", core, headers=headers, extensions={"timeout": quiet}) as response,
        ):
            given = {key.lower(): value.decode("latin-1") for key, value in response.headers}
            if response.status in (301, 302, 303, 307, 308) and b"location" in given:
                return b"", given[b"location"][:_MAX_URL]
            if response.status != 200:
                raise _UnreadError(f"the server answers {response.status}")
            if given.get(b"content-encoding", "identity") != "identity":
                raise _UnreadError("it is sent compressed, which was not asked for")
            data = bytearray()
            for part in response.iter_stream():
                data += part
                if len(data) > MAX_BYTES:
                    raise _UnreadError(f"it has more than {MAX_BYTES // 1000**2} MB")
        return bytes(data), None


def _parsed(url: str) -> httpx2.URL:
    """Raises _UnreadError, InvalidURL."""
    if len(url) > _MAX_URL:
        raise _UnreadError(f"the address has more than {_MAX_URL} characters")
    parsed = httpx2.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise _UnreadError("only http and https are read")
    return parsed


class _CheckedBackend(httpcore2.SyncBackend):
    """Connects to allowed addresses alone. deadline: of the request, by running_time."""

    def __init__(self, is_allowed: IsAllowed, deadline: float) -> None:
        self._is_allowed, self._deadline = is_allowed, deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(one[4][0]) for one in resolved))
        for address in addresses:
            if not self._is_allowed(address):
                name = f"{host} ({address})" if host != address else host
                raise _UnreadError(f"{name} is not a public address")
        stream = super().connect_tcp(addresses[0], port, timeout, local_address, socket_options)
        return _TimedStream(stream, self._deadline)


class _TimedStream(httpcore2.NetworkStream):
    """A connection whose reads end at the deadline, however slowly bytes arrive."""

    def __init__(self, inner: httpcore2.NetworkStream, deadline: float) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._deadline - running_time()
        if left <= 0:
            raise httpcore2.ReadTimeout
        return self._inner.read(max_bytes, left if timeout is None else min(timeout, left))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
