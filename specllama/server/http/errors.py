"""Converts an exception to a response: status, headers and body.

The type of an error determines its status: the table is in specllama/errors.py, and errors of HTTP itself are
here. The body has the shape of the API that the path belongs to; this module knows no API.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.errors import SpecllamaError, UsageError

_LINGER_SECONDS = 2.0  # for the rest of a body that is not read
_DISCARDED = 32 * 1024 * 1024  # bytes of it
ErrorBody = Callable[[SpecllamaError, str], Mapping[str, Any]]
"""From an error and the request's id to the JSON object that an API's clients expect."""


class HttpError(UsageError):
    """An error of HTTP itself, such as a path without a route. For headers, `details` may have "allow", the
    methods of a path, and "accept-encoding", the encodings that are known.
    """

    def __init__(self, status: int, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, details=details)
        self.http_status = status  # type: ignore[misc]


class ClientGoneError(Exception):
    """The client has closed the connection: no response can be sent."""


class UnreadResponse(Response):
    """A response to a request whose body is still arriving. Reads and drops the rest for a while, since many
    clients read no response before they have sent everything.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        on_demand = b"100-continue" in dict(scope["headers"]).get(b"expect", b"").lower()
        await send({"type": "http.response.body", "body": self.body, "more_body": not on_demand})
        if on_demand:  # the client sends its body only if asked
            return
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while size <= _DISCARDED:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        await send({"type": "http.response.body", "body": b""})


class ErrorResponder:
    """Writes errors in the shape of the API that a path belongs to.

    shapes: (prefix, body); a prefix matches itself and paths below it. default: for all other paths.
    """

    def __init__(self, default: ErrorBody, shapes: Sequence[tuple[str, ErrorBody]] = ()) -> None:
        self._default, self._shapes = default, tuple(shapes)

    def response(
        self, error: SpecllamaError, path: str = "", request_id: str = "", close: bool = False
    ) -> Response:
        """close: the connection is closed after it, as after a body that was not read completely."""
        write = next((w for p, w in self._shapes if path == p or path.startswith(f"{p}/")), self._default)
        content = json.dumps(write(error, request_id)).encode()  # ASCII, whatever characters the message has
        status = error.http_status
        headers = {"content-type": "application/json", **_headers(error)}
        unread = status in (413, 415)
        if close or unread or status == 408:
            headers["connection"] = "close"
        return (UnreadResponse if unread else Response)(content, status, headers)


def _headers(error: SpecllamaError) -> Mapping[str, str]:
    status = error.http_status
    if status in (429, 503):
        return {"retry-after": str(error.details.get("retry_after", 1))}
    if status == 401:
        return {"www-authenticate": "Bearer"}
    if status == 501:
        return {"x-should-retry": "false"}  # OpenAI's and Anthropic's SDKs ask again after any other 5xx
    return {name: error.details[name] for name in ("allow", "accept-encoding") if name in error.details}
