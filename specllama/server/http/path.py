"""Normalises request paths to the form of the routes, however a proxy or client writes them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.types import Scope

from specllama.errors import UsageError

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
