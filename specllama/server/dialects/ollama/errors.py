"""Errors in the shape of Ollama's API: one text."""

from __future__ import annotations

from typing import Any

from specllama.errors import NotFoundError, SpecllamaError


def error_body(error: SpecllamaError, _request_id: str = "") -> dict[str, Any]:
    """See ErrorBody. Clients look for "not found" when a model is not served."""
    if isinstance(error, NotFoundError) and "model" in error.details:
        name = error.details["model"].removesuffix(":latest")
        return {"error": f"model '{name}' not found: {error.message}"}
    return {"error": error.message}
