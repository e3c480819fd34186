"""Errors in the shape of Ollama's API: one text."""

from __future__ import annotations

from typing import TypedDict

from specllama.errors import NotFoundError, SpecllamaError


class OllamaErrorBody(TypedDict):
    """The body of a response, and the last line of a stream that fails."""

    error: str


def error_body(error: SpecllamaError, _request_id: str = "") -> OllamaErrorBody:
    """See ErrorBody. Clients look for "not found" when a model is not served."""
    if isinstance(error, NotFoundError) and "model" in error.details:
        name = error.details["model"].removesuffix(":latest")
        return {"error": f"model '{name}' not found: {error.message}"}
    return {"error": error.message}
