"""The application: all dialects, their routes and errors. Knows no sockets and no signals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specllama.errors import SpecllamaError
from specllama.server import openapi, page
from specllama.server.dialects import lm_studio
from specllama.server.dialects.anthropic import routes as anthropic
from specllama.server.dialects.llama_server import routes as llama_server
from specllama.server.dialects.ollama import routes as ollama
from specllama.server.dialects.openai import routes as openai
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Shared
from specllama.server.http.access import AccessMiddleware
from specllama.server.http.errors import ErrorResponder, MethodError, NoRouteError
from specllama.server.models import ModelPool
from specllama.server.service import DiskScopes
from specllama.server.supervisor import Say

DIALECTS = (openai.DIALECT, llama_server.DIALECT, anthropic.DIALECT, lm_studio.DIALECT, ollama.DIALECT)
"""Errors on paths of no dialect have the shape of the first one; the first prefix of a path decides."""


async def _document(api: ApiRequest) -> Response:
    return JSONResponse(openapi.document(ROUTES, keyed=bool(api.settings.keys)))


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
    shared = Shared(DiskScopes(models.settings, say))
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
    """The path has no route, or not with this method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        return await _on_error(request, NoRouteError(f"there is no {request.method} {path} here"))
    allowed = {"allow": (error.headers or {}).get("Allow", "")}
    return await _on_error(request, MethodError(f"{path} does not take {request.method}", details=allowed))
