"""Anthropic's API, of which only the errors are served: its clients can show why a request fails."""

from __future__ import annotations

from typing import Any

from specllama.errors import SpecllamaError
from specllama.server.dialects.base import Dialect

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "overloaded_error",
}


def error_body(error: SpecllamaError, request_id: str) -> dict[str, Any]:
    """See ErrorBody."""
    shown = {"type": _TYPES.get(error.http_status, "api_error"), "message": error.message}
    return {"type": "error", "error": shown, "request_id": request_id}


DIALECT = Dialect(error_body, prefixes=("/v1/messages",))
