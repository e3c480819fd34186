"""Errors in the shape of Anthropic's API."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from specllama.errors import ContextLengthError, SpecllamaError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesErrorDetails(TypedDict):
    """What SDKs react to. unsupported: fields of the request."""

    error_code: str
    unsupported: list[str]


class MessagesError(TypedDict):
    """details: for a conversation that the server should store."""

    type: str
    message: str
    details: NotRequired[MessagesErrorDetails]


class MessagesErrorBody(TypedDict):
    """The body of a response, and the data of an event."""

    type: str
    error: MessagesError
    request_id: str


def error_body(error: SpecllamaError, request_id: str) -> MessagesErrorBody:
    """See ErrorBody."""
    status = error.http_status
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    shown: MessagesError = {"type": kind, "message": _message(error)}
    if "error_code" in error.details:
        details = error.details
        shown["details"] = {"error_code": details["error_code"], "unsupported": details["unsupported"]}
    return {"type": "error", "error": shown, "request_id": request_id}


def _message(error: SpecllamaError) -> str:
    """Claude Code recognises a prompt that is too long by these words, and shortens the conversation."""
    if not isinstance(error, ContextLengthError):
        return error.message
    n, n_ctx = error.details.get("n_prompt_tokens"), error.details.get("n_ctx")
    figures = "" if n is None else f"{n} tokens > {n_ctx} maximum; "
    return f"prompt is too long: {figures}{error.message}"
