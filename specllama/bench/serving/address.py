"""Where a server is: what people write for it, brought into one form. Asks nobody."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from specllama.errors import UsageError

_HINT = "for example http://127.0.0.1:8080 or https://host/v1"
_ROUTES = ("/chat/completions", "/completions", "/models")
_MOST = 2048  # characters


@dataclass(frozen=True, slots=True)
class Address:
    """root: scheme, host and port, without a slash behind it. bases: where the API may be, in order."""

    root: str
    bases: tuple[str, ...]
    loopback: bool


def address(text: str) -> Address:
    """What a URL means, with or without scheme, /v1 and route. Raises UsageError."""
    text = text.strip()
    if not text:
        raise UsageError("--server needs the URL of a server", _HINT)
    if len(text) > _MOST or not text.isprintable() or any(c.isspace() for c in text):
        raise UsageError("--server is no URL: it has blanks, control characters or no end", _HINT)
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"--server is no URL: {error}", _HINT) from None
    if "@" in parts.netloc:  # the message must not repeat what is in front of it
        raise UsageError("--server has a user or password in it", "a key goes into SPECLLAMA_API_KEY")
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"--server has to begin with http:// or https://, not {parts.scheme}://", _HINT)
    if not host or port == 0:
        raise UsageError(f"--server names no {'port' if host else 'host'}: {text}", _HINT)
    if parts.query or parts.fragment:
        raise UsageError("--server has something behind ? or #, an API's address has not", _HINT)
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route)
    root = f"{parts.scheme}://{parts.netloc}"
    ends = ("",) if path.endswith("/v1") else ("/v1", "") if path else ("/v1",)
    return Address(root, tuple(f"{root}{path}{end}" for end in ends), _is_loopback(host))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
