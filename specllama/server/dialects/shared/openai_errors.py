"""Errors in the shape of the OpenAI API, with llama-server's additions for a prompt that is too long."""

from __future__ import annotations

from collections.abc import Mapping

from specllama.core.sampling.params import PARAMETERS
from specllama.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    DeadlineError,
    NotFoundError,
    NotSupportedError,
    SpecllamaError,
)
from specllama.json_types import JsonObject

_CODES: Mapping[type[SpecllamaError], str] = {
    ContextLengthError: "context_length_exceeded",
    BusyError: "queue_full",
    AccessError: "invalid_api_key",
    NotFoundError: "model_not_found",
    DeadlineError: "deadline_exceeded",
    NotSupportedError: "unsupported",
}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}


def error_body(error: SpecllamaError, _request_id: str = "") -> JsonObject:
    """See ErrorBody."""
    status = error.http_status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if isinstance(error, ContextLengthError):
        kind = "exceed_context_size_error"
    sampling = error.option if error.option in PARAMETERS else None
    shown: JsonObject = {
        "message": error.message,
        "type": kind,
        "param": error.details.get("param") or sampling,
        "code": next((code for cls, code in _CODES.items() if isinstance(error, cls)), None),
    }
    if "n_prompt_tokens" in error.details:
        shown["n_prompt_tokens"] = error.details["n_prompt_tokens"]
    if "n_ctx" in error.details:
        shown["n_ctx"] = error.details["n_ctx"]
    return {"error": shown}
