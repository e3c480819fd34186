"""Ollama's API, of which only the errors are served: its clients can show why a request fails."""

from __future__ import annotations

from typing import Any

from specllama.errors import SpecllamaError
from specllama.server.dialects.base import Dialect


def error_body(error: SpecllamaError, _request_id: str) -> dict[str, Any]:
    """See ErrorBody."""
    return {"error": error.message}


DIALECT = Dialect(error_body, prefixes=("/api",))
