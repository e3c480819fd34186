"""The OpenAPI document, made of the same models that requests are checked with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

import specllama
from specllama.server.dialects.llama_server.requests import (
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
)
from specllama.server.dialects.openai.chat_request import ChatRequest
from specllama.server.dialects.openai.completions_request import CompletionRequest

_REF = "#/components/schemas/{model}"
_POSTS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("/v1/chat/completions", "Answer a conversation", ChatRequest),
    ("/v1/completions", "Go on behind a prompt", CompletionRequest),
    ("/tokenize", "The ids of a text", TokenizeRequest),
    ("/detokenize", "The text of ids", DetokenizeRequest),
    ("/apply-template", "The prompt that messages make", TemplateRequest),
)
_GETS = (
    ("/health", "Whether the engine answers"),
    ("/metrics", "Figures for Prometheus"),
    ("/v1/models", "The model that is served"),
    ("/v1/models/{name}", "One model"),
    ("/props", "What the server was started with"),
    ("/slots", "What each slot is doing"),
    ("/openapi.json", "This document"),
)
_ERRORS = {
    400: "the request cannot be used", 401: "no key or a wrong one", 404: "no such model or route",
    408: "the body came too slowly", 413: "the body is too large", 429: "the queue is full",
    500: "the engine refused", 503: "there is no engine at this moment", 504: "it took too long",
}  # fmt: skip
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(keyed: bool) -> dict[str, Any]:
    """keyed: whether clients need a key."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for path, summary in _GETS:
        paths[path] = {"get": _operation(summary, path in ("/health",))}
        if "{name}" in path:
            parameter = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            paths[path]["get"]["parameters"] = [parameter]
    for path, summary, model in _POSTS:
        schema = model.model_json_schema(ref_template=_REF, by_alias=True)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
        body = {"schema": {"$ref": _REF.format(model=model.__name__)}}
        paths[path] = {"post": _operation(summary)}
        paths[path]["post"]["requestBody"] = {"required": True, "content": {"application/json": body}}
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "specllama", "version": specllama.__version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if keyed:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _operation(summary: str, open_: bool = False) -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    answers = {str(status): {"description": text, "content": refused} for status, text in _ERRORS.items()}
    operation = {"summary": summary, "responses": {"200": {"description": "done"}, **answers}}
    return operation | ({"security": []} if open_ else {})
