"""The OpenAPI document, generated from the routes and the pydantic models of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable

import specllama
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.base import ApiRoute

_PATH_PARAMETER = re.compile(r"\{(\w+)[:}]")
_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "the request cannot be used", 401: "no key or a wrong one", 404: "no such model or route",
    408: "the body came too slowly", 413: "the body is too large", 429: "the queue is full",
    500: "the engine refused", 501: "the model or this server cannot do that",
    503: "there is no engine at this moment", 504: "it took too long",
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


def document(routes: Iterable[ApiRoute], keyed: bool) -> JsonObject:
    """The document, with all routes that have a summary. keyed: whether clients need a key."""
    schemas: JsonObject = {"Error": _ERROR}
    paths: dict[str, dict[str, JsonObject]] = {}
    for route in routes:
        if route.summary:
            path = route.path.replace(":path}", "}")
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
    api: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": "specllama", "version": specllama.__version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if keyed:
        api["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        api["security"] = [{"key": []}]
    return api


def _operation(route: ApiRoute, schemas: JsonObject) -> JsonObject:
    """One operation; adds the schemas that it refers to to `schemas`."""
    refused = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    responses: dict[str, JsonObject] = {"200": {"description": "done"}}
    responses |= {str(status): {"description": text, "content": refused} for status, text in _ERRORS.items()}
    operation: JsonObject = {"summary": route.summary, "responses": responses}
    if route.open:
        operation["security"] = []
    if names := _PATH_PARAMETER.findall(route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.body is not None:
        schema = route.body.model_json_schema(ref_template=_REF, by_alias=True)
        schemas |= schema.pop("$defs", {})
        schemas[route.body.__name__] = schema
        content = {"schema": {"$ref": _REF.format(model=route.body.__name__)}}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation
