"""Errors in the dialect of the path that was asked: OpenAI's object, Anthropic's, Ollama's plain text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from specllama.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    DeadlineError,
    NotFoundError,
    SpecllamaError,
    UsageError,
)

Body = dict[str, Any]
_TYPES: tuple[tuple[type[SpecllamaError], str, str | None], ...] = (
    (ContextLengthError, "exceed_context_size_error", "context_length_exceeded"),
    (BusyError, "rate_limit_error", "queue_full"),
    (AccessError, "authentication_error", "invalid_api_key"),
    (NotFoundError, "not_found_error", "model_not_found"),
    (DeadlineError, "timeout_error", "deadline_exceeded"),
    (UsageError, "invalid_request_error", None),
)
_STATUS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}


def error_body(path: str, error: SpecllamaError, status: int, request_id: str = "") -> Body:
    """What a client of this path is told."""
    for prefix, write in _DIALECTS:
        if path == prefix or path.startswith(f"{prefix}/"):
            return write(error, status, request_id)
    return _openai(error, status, request_id)


def error_bytes(path: str, error: SpecllamaError, status: int, request_id: str = "") -> bytes:
    """The same as JSON; whatever a message quotes, it is ASCII."""
    return json.dumps(error_body(path, error, status, request_id)).encode()


def _openai(error: SpecllamaError, status: int, _request_id: str) -> Body:
    kind, code = _kind(error, status)
    found = {"message": error.message, "type": kind, "param": error.details.get("param"), "code": code}
    figures = {k: error.details[k] for k in ("n_prompt_tokens", "n_ctx") if k in error.details}
    return {"error": found | figures}


def _anthropic(error: SpecllamaError, status: int, request_id: str) -> Body:
    kind = _STATUS_TYPES.get(status, "api_error")
    known = kind if kind not in ("unavailable_error", "timeout_error") else "overloaded_error"
    return {"type": "error", "error": {"type": known, "message": error.message}, "request_id": request_id}


def _ollama(error: SpecllamaError, _status: int, _request_id: str) -> Body:
    return {"error": error.message}


def _kind(error: SpecllamaError, status: int) -> tuple[str, str | None]:
    for cls, kind, code in _TYPES:
        if isinstance(error, cls) and status == error.http_status:
            return _STATUS_TYPES[status] if cls is UsageError and status in _STATUS_TYPES else kind, code
    return _STATUS_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"), None


_Writer = Callable[[SpecllamaError, int, str], Body]
_DIALECTS: tuple[tuple[str, _Writer], ...] = (("/v1/messages", _anthropic), ("/api", _ollama))


def headers(error: SpecllamaError, status: int) -> Mapping[str, str]:
    """Headers that belong to an error."""
    if status in (429, 503):
        return {"retry-after": str(error.details.get("retry_after", 1))}
    return {"www-authenticate": "Bearer"} if status == 401 else {}
