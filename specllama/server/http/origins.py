"""Origins of web pages that may use the server, as patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.types import Scope

from specllama.errors import UsageError

LOCAL = (
    *(f"{scheme}://{host}:*" for scheme in ("http", "https") for host in ("localhost", "127.0.0.1", "[::1]")),
    *(f"{scheme}://*.localhost:*" for scheme in ("http", "https")),
    "app://*",
    "tauri://*",
    "vscode-webview://*",
)
"""Pages and programs with pages on this machine."""
_PATTERN = re.compile(
    r"(?:([a-z][a-z0-9+.-]*|\*)://)?(\*|(?:\*\.)?[^\s/:*?#@\[\]]+|\[[0-9a-f:.]+\])?(?::(\d{1,5}|\*))?"
)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@]*?)(?::(\d{1,5}))?")
_PORTS = {"http": "80", "https": "443"}
_FORM = (
    "an origin is https://example.org, http://localhost:3000, app://, or has * for any part; * alone is all"
)


class Origins:
    """patterns: as in `_FORM`; without a scheme, http and https. Raises UsageError for invalid ones."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._all = "*" in (pattern.strip() for pattern in patterns)
        self._null = "null" in (pattern.strip() for pattern in patterns)
        self._patterns = [_parsed(p) for p in patterns if p.strip() not in ("*", "null")]

    def __contains__(self, origin: str) -> bool:
        origin = origin.strip().rstrip("/").lower()
        if self._all or origin == "null":
            return self._all or self._null
        match = _ORIGIN.fullmatch(f"{origin}//" if origin.endswith(":") else origin)
        if match is None:
            return False
        scheme, host, port = match[1], match[2], match[3] or _PORTS.get(match[1], "")
        return any(_fits(pattern, scheme, host, port) for pattern in self._patterns)


def _parsed(pattern: str) -> tuple[tuple[str, ...], str, str]:
    """(Schemes, host, port) of a pattern, "*" for any. Raises UsageError."""
    text = pattern.strip().lower()
    match = _PATTERN.fullmatch(text if text.endswith("://") else text.rstrip("/"))
    scheme, host, port = match.groups() if match else (None, None, None)
    valid = port in (None, "*") or 0 < int(port) < 2**16
    if not match or (host is None and (scheme is None or port is not None)) or not valid:
        raise UsageError(f"{pattern[:200]!r} is no origin", _FORM, option="allowed_origin")
    if host is None and scheme in _PORTS:
        raise UsageError(f"{pattern[:200]!r} is no origin, it names no host", _FORM, option="allowed_origin")
    schemes = ("http", "https") if scheme is None else (scheme,)
    return schemes, _ascii(host or "*"), port or ("*" if host in (None, "*") else "")


def _fits(pattern: tuple[tuple[str, ...], str, str], scheme: str, host: str, port: str) -> bool:
    schemes, name, wanted = pattern
    if "*" not in schemes and scheme not in schemes:
        return False
    if wanted not in ("*", port) and (wanted or port != _PORTS.get(scheme, "")):
        return False
    if name.startswith("*."):
        return host.endswith(name[1:])
    return name in ("*", host)


def _ascii(host: str) -> str:
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return host


_SLASHES = re.compile("/{2,}")


def root_path(given: str) -> str:
    """The path under which a proxy serves this server, "" for the root. Raises UsageError."""
    path = _SLASHES.sub("/", f"/{given.strip()}").rstrip("/")
    if "//" in given or not re.fullmatch(r"(/[\w.~%!$&'()*+,;=:@-]+)*", path):
        raise UsageError(f"must be a path such as /llm, not {given[:200]!r}", option="root_path")
    return path


def settle_path(scope: Scope, root: str) -> str:
    """Normalise the path of a request: without root, scheme, host, repeated slashes and a final slash.
    Returns the host of an absolute target, "" for others.
    """
    path, host = scope["path"], ""
    if path[:8].lower().startswith(("http://", "https://")):
        try:
            parts = urlsplit(path)
            host, path = parts.netloc, parts.path
        except ValueError:
            host, path = "?", "/"
    path = _SLASHES.sub("/", path)
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    scope["path"] = path.rstrip("/") or "/"
    return host
