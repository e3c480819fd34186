"""Access checks: the Host of a request, the Origin of a web page, the API key; and the log of requests.

Neither secrets nor texts of a client are logged. Knows no engine.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.clock import running_time
from specllama.config.defaults import UNIX, is_loopback
from specllama.errors import AccessError, SpecllamaError
from specllama.server.http.errors import ClientGoneError, ErrorResponder, HttpError
from specllama.server.http.origins import LOCAL, Origins, root_path, settle_path
from specllama.server.metrics import HttpMetrics, MetricsByOwner
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS, _MAX_AGE = "GET, HEAD, POST, DELETE, OPTIONS", "600"
_EXPOSED = "x-request-id, request-id, retry-after"


class Keys:
    """The API keys. Comparison takes constant time and covers all keys even after a match."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode("utf-8", "surrogateescape")) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, headers: Headers) -> str:
        """A name, not secret, of the key in `Authorization: Bearer` or `x-api-key`; "" for a wrong key."""
        given = []
        for name, value in headers.raw:
            if name == b"x-api-key":
                given.append(value.strip())
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given.append(value[7:].strip())
        matches = [[hmac.compare_digest(_digest(one), key) for one in given] for key in self._digests]
        return next((f"key {i}" for i, fits in enumerate(matches, 1) if any(fits)), "")


class AccessMiddleware:
    """The outermost middleware: checks access, assigns request ids, logs and counts requests.

    errors: writes refusals. paths: counted by name. open_paths: need no key and are not logged.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        metrics: MetricsByOwner[HttpMetrics],
        say: Say,
        errors: ErrorResponder,
        paths: frozenset[str],
        open_paths: frozenset[str],
    ) -> None:
        self._app, self._metrics, self._say = app, metrics, say
        self._errors, self._paths, self._open_paths = errors, paths, open_paths
        self._keys = Keys(settings.keys)
        self._open_metrics = settings.open_metrics
        self._metrics_key = Keys((settings.metrics_key,) if settings.metrics_key else ())
        self._admin_keys = Keys(settings.admin_keys or settings.keys[:1])
        local = is_loopback(settings.host) and not settings.host.startswith(UNIX)  # no page reaches a path
        self._any_host = not local and not settings.hosts
        self._hosts = {name.lower() for name in (*_LOCAL, settings.host.strip("[]"), *settings.hosts)}
        pages = LOCAL if local and not settings.keys else ()
        self._origins = Origins((*settings.origins, *pages))
        self._root = root_path(settings.root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers, began, status = Headers(scope=scope), running_time(), 0
        target = settle_path(scope, self._root)
        id_ = headers.get("x-request-id", "")
        id_ = id_ if _ID.fullmatch(id_) else f"req_{secrets.token_hex(12)}"
        scope["specllama.id"] = id_
        origin = headers.get("origin", "").rstrip("/").lower()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = MutableHeaders(raw=message.setdefault("headers", []))
                more["x-request-id"] = more["request-id"] = id_  # OpenAI's and Anthropic's name
                more["x-content-type-options"] = "nosniff"
                if origin and origin in self._origins:
                    more["access-control-allow-origin"] = headers["origin"]
                    more["access-control-expose-headers"] = _EXPOSED
                    more.add_vary_header("Origin")
            await send(message)

        async def refuse(error: SpecllamaError) -> None:
            await self._errors.response(error, scope["path"], id_)(scope, receive, send_with_headers)

        try:
            problem = self._problem(scope, headers, origin, target)
            if problem is not None:
                await refuse(problem)
            elif scope["method"] == "OPTIONS" and origin:
                await _preflight(headers, send_with_headers)
            else:
                await self._app(scope, receive, send_with_headers)
        except ClientGoneError:
            pass
        except Exception as error:  # noqa: BLE001 - the last resort; the operator gets a line
            self._say(f"{id_} {unexpected(error)}")
            if not status:
                await refuse(SpecllamaError("something unexpected went wrong"))
        finally:
            known = scope["path"] if scope["path"] in self._paths else "other"
            for metrics in self._metrics.counting(scope.get("specllama.owner", "")):
                metrics.http.labels(known, str(status or 499)).inc()
            self._log(scope, id_, status, running_time() - began)

    def _problem(self, scope: Scope, headers: Headers, origin: str, target: str) -> SpecllamaError | None:
        """Why a request is refused, None if it is not; sets scope["specllama.owner"] and
        "specllama.administers". target: host in the request target, "" for none; checked too.
        """
        host = headers.get("host", "")
        named = [host, *([target] if target else [])]
        if not self._any_host and not all(_hostname(one) in self._hosts for one in named):
            return HttpError(421, "the Host header names another server; --allowed-host NAME lets it in")
        if origin and origin not in self._origins and not _is_same(origin, host):
            return HttpError(403, "web pages from elsewhere are kept out; --allowed-origin URL lets one in")
        if not self._keys or (scope["method"] == "OPTIONS" and origin):
            return None
        scope["specllama.owner"] = owner = self._keys.owner(headers)
        scope["specllama.administers"] = bool(self._admin_keys.owner(headers))
        if scope["path"] in self._open_paths:
            return None
        if scope["path"] == "/metrics" and (self._metrics_key.owner(headers) or self._open_metrics):
            scope["specllama.owner"] = ""  # metrics of all keys
            return None
        return None if owner else AccessError("the API key is missing or wrong")

    def _log(self, scope: Scope, id_: str, status: int, seconds: float) -> None:
        if scope["path"] in self._open_paths or scope["path"] == "/metrics":
            return
        path = scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "backslashreplace")[:200]
        ended = str(status) if status else "client left"
        self._say(f"{id_} {scope['method']} {path} {ended} {seconds:.3f} s")


async def _preflight(headers: Headers, send: Send) -> None:
    """Answer a browser's preflight request; only requests from allowed origins reach it."""
    requested = headers.get("access-control-request-headers", "")
    names = ", ".join(
        n for n in map(str.strip, requested.split(",")) if re.fullmatch(r"[A-Za-z0-9-]{1,64}", n)
    )
    allowed = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": names,
        "access-control-max-age": _MAX_AGE,
    }
    if headers.get("access-control-request-private-network", "").lower() == "true":
        allowed["access-control-allow-private-network"] = "true"  # from a page elsewhere to this machine
    raw = [(k.encode(), v.encode()) for k, v in allowed.items()]
    await send({"type": "http.response.start", "status": 204, "headers": raw})
    await send({"type": "http.response.body", "body": b""})


def unexpected(error: BaseException) -> str:
    """A line about an unexpected error: its type and place, not its text."""
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" in {PurePath(frame.filename).name}, line {frame.lineno}" if frame else ""
    return f"unexpected {type(error).__name__}{where}; please report it"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_same(origin: str, host: str) -> bool:
    """Whether a page from this origin was served by this server."""
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and bool(rest) and rest == host.lower()
