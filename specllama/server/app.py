"""The application: all dialects, their routes and errors, and the OpenAPI document.

Knows no sockets and no signals.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import specllama
from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject
from specllama.server import page
from specllama.server.dialects import anthropic, lm_studio, ollama
from specllama.server.dialects.llama_server import routes as llama_server
from specllama.server.dialects.openai import routes as openai
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Shared
from specllama.server.http.access import AccessMiddleware
from specllama.server.http.errors import ErrorResponder, HttpError
from specllama.server.models import ModelPool
from specllama.server.service import DiskScopes
from specllama.server.supervisor import Say

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
    """The OpenAPI document, with all routes that have a summary. keyed: whether clients need a key."""
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


DIALECTS = (openai.DIALECT, llama_server.DIALECT, anthropic.DIALECT, lm_studio.DIALECT, ollama.DIALECT)
"""Errors on paths of no dialect have the shape of the first one; the first prefix of a path decides."""


async def _document(api: ApiRequest) -> Response:
    return JSONResponse(document(ROUTES, keyed=bool(api.settings.keys)))


ROUTES = (
    *(route for dialect in DIALECTS for route in dialect.routes),
    ApiRoute("GET", "/openapi.json", _document, "This document"),
    *page.ROUTES,
)
ERRORS = ErrorResponder(
    DIALECTS[0].error_body, [(p, dialect.error_body) for dialect in DIALECTS for p in dialect.prefixes]
)


def build(models: ModelPool, say: Say) -> Starlette:
    """The application that serves these models. say: gets lines for the operator."""
    paths = frozenset(r.path for r in ROUTES if "{" not in r.path)
    open_paths = frozenset(r.path for r in ROUTES if r.open)
    middleware = Middleware(AccessMiddleware, models.settings, models.http, say, ERRORS, paths, open_paths)
    shared = Shared(DiskScopes(models.settings, say), models.settings)
    made = Starlette(
        routes=[Route(r.path, _endpoint(r, models, say, shared), methods=[r.method]) for r in ROUTES],
        middleware=[middleware],
        exception_handlers={SpecllamaError: _on_error, HTTPException: _on_routing_error},
    )
    made.router.redirect_slashes = False  # paths are settled before, and a redirect would lose https
    return made


def _endpoint(
    route: ApiRoute, models: ModelPool, say: Say, shared: Shared
) -> Callable[[Request], Awaitable[Response]]:
    async def respond(http: Request) -> Response:
        await models.look_up(http.query_params.get("model") or None)
        return await route.endpoint(ApiRequest(http, models, say, shared))

    return respond


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SpecllamaError)
    return ERRORS.response(error, request.scope["path"], request.scope.get("specllama.id", ""))


async def _on_routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        return await _on_error(request, HttpError(404, f"there is no {request.method} {path} here"))
    allowed = {"allow": (error.headers or {}).get("Allow", "")}
    return await _on_error(request, HttpError(405, f"{path} does not take {request.method}", allowed))
