"""The routes: what each asks of the service, and which writer answers. Knows no sockets and no signals."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specllama.client import protocol as m
from specllama.errors import NotFoundError, SpecllamaError, UsageError
from specllama.server import openapi
from specllama.server.dialects import errors
from specllama.server.dialects.base import DialectWriter
from specllama.server.dialects.fields import Model
from specllama.server.dialects.llama_server import routes as llama_server
from specllama.server.dialects.llama_server.requests import (
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
)
from specllama.server.dialects.openai.chat import ChatWriter
from specllama.server.dialects.openai.chat_request import ChatRequest
from specllama.server.dialects.openai.completions import CompletionWriter
from specllama.server.dialects.openai.completions_request import CompletionRequest
from specllama.server.dialects.openai.sampling_fields import SamplingFields
from specllama.server.dialects.openai.writer import ResponseOptions
from specllama.server.http.access import AccessMiddleware
from specllama.server.http.body import read
from specllama.server.metrics import CONTENT_TYPE
from specllama.server.requests import CompletionSpec
from specllama.server.response import Limits, StreamingResponse
from specllama.server.service import Service
from specllama.server.settings import ANY_NAME
from specllama.server.supervisor import Say

_LOOK_SECONDS = 1.0  # that a scrape waits for the engine's own figures
Endpoint = Callable[[Request], Awaitable[Response]]


class Routes:
    """The endpoints over one service. say: gets lines for the operator."""

    def __init__(self, service: Service, say: Say) -> None:
        self._service, self._say = service, say
        self._settings, self._supervisor = service.settings, service.supervisor
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        asked = await self._read(request, ChatRequest)
        self._check_name(asked.model)
        wanted = asked.generation(dict(self._settings.sampling), dict(self._settings.variables))
        self._log_prompt(request, wanted.messages)
        shape = self._shape(asked, asked.logprobs)
        return await self._answer(request, asked, ChatWriter(shape), [CompletionSpec(wanted, splits=True)])

    async def completions(self, request: Request) -> Response:
        asked = await self._read(request, CompletionRequest)
        self._check_name(asked.model)
        wanted = asked.generations(dict(self._settings.sampling))
        self._log_prompt(request, asked.prompt)
        shape = self._shape(asked, asked.logprobs is not None)
        each = [CompletionSpec(one, i) for i, one in enumerate(wanted)]
        return await self._answer(request, asked, CompletionWriter(shape), each)

    async def models(self, _request: Request) -> Response:
        return JSONResponse(
            llama_server.models(self._supervisor.loaded, self._names, self._created, self._created_at)
        )

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._check_name(name)
        shown = llama_server.model(self._supervisor.loaded, name, self._created, self._created_at)
        return JSONResponse(shown)

    async def health(self, _request: Request) -> Response:
        problem = self._supervisor.problem
        if problem:
            error = {"code": 503, "message": problem, "type": "unavailable_error"}
            return JSONResponse({"status": "error", "error": error}, 503, {"retry-after": "1"})
        return JSONResponse({"status": "ok"})

    async def metrics(self, _request: Request) -> Response:
        metrics, supervisor = self._service.metrics, self._supervisor
        metrics.up.set(not supervisor.problem)
        metrics.restarts.set(supervisor.restarts)
        if not supervisor.problem:
            try:
                found = await supervisor.ask(m.GetSlots, m.Slots, _LOOK_SECONDS)
                metrics.kv.set(found.n_used / max(1, found.n_ctx))
            except (SpecllamaError, TimeoutError):
                pass  # the last one stays
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def props(self, _request: Request) -> Response:
        await self._supervisor.client()
        info = self._supervisor.info
        return JSONResponse(llama_server.props(info, self._names, self._settings.sampling))

    async def slots(self, _request: Request) -> Response:
        found = await self._supervisor.ask(m.GetSlots, m.Slots)
        return JSONResponse(llama_server.slots(found, self._supervisor.info))

    async def tokenize(self, request: Request) -> Response:
        asked = await self._read(request, TokenizeRequest)
        found = await self._supervisor.ask(
            lambda id_: m.Tokenize(id_, asked.content, asked.add_special, asked.parse_special),
            m.Tokenized,
        )
        return JSONResponse(llama_server.tokens(found, asked.with_pieces))

    async def detokenize(self, request: Request) -> Response:
        asked = await self._read(request, DetokenizeRequest)
        found = await self._supervisor.ask(lambda id_: m.Detokenize(id_, asked.tokens), m.Detokenized)
        return JSONResponse({"content": found.text})

    async def apply_template(self, request: Request) -> Response:
        asked = await self._read(request, TemplateRequest)
        self._check_name(asked.model)
        messages, prefix = asked.parts()
        variables = dict(self._settings.variables) | asked.variables()
        found = await self._supervisor.ask(lambda id_: m.Render(id_, messages, variables, prefix), m.Rendered)
        return JSONResponse({"prompt": found.prompt})

    async def openapi(self, _request: Request) -> Response:
        return JSONResponse(openapi.document(bool(self._settings.keys)))

    @property
    def _names(self) -> Sequence[str]:
        return [n for n in self._settings.names if n != ANY_NAME] or [self._settings.name]

    @property
    def _created_at(self) -> str:
        return datetime.datetime.fromtimestamp(self._created, datetime.UTC).isoformat()

    def _shape(self, asked: SamplingFields, logprobs: bool) -> ResponseOptions:
        speculation = asked.speculation
        return ResponseOptions(
            model=asked.model or self._settings.name,
            logprobs=logprobs,
            usage_chunk=asked.stream_options.include_usage,
            trace=speculation.trace,
            speculate=speculation.enabled,
        )

    async def _read(self, request: Request, model: type[Model]) -> Model:
        return await read(request, model, self._settings.client_seconds)

    async def _answer(
        self,
        request: Request,
        asked: SamplingFields,
        writer: DialectWriter,
        prompts: Sequence[CompletionSpec],
    ) -> Response:
        owner = request.scope.get("specllama.owner", "") if asked.speculation.memory else None
        theirs = [replace(one, request=replace(one.request, owner=owner)) for one in prompts]
        job = await self._service.start(theirs, asked.n)
        limits = Limits(self._settings.seconds, self._settings.client_seconds)
        return StreamingResponse(job, writer, asked.stream, limits)

    def _check_name(self, name: str | None) -> None:
        if name is not None and not self._settings.serves(name):
            served = ", ".join(self._names)
            raise NotFoundError(f"there is no model {name!r} here, this server has {served}")

    def _log_prompt(self, request: Request, prompt: Any) -> None:
        if self._settings.log_prompts:
            self._say(f"{request.scope['specllama.id']} prompt {json.dumps(prompt)}")


def build(service: Service, say: Say) -> Starlette:
    """The application over a service."""
    at = Routes(service, say)
    table: Sequence[tuple[str, str, Endpoint]] = (
        ("GET", "/health", at.health),
        ("GET", "/v1/health", at.health),
        ("GET", "/metrics", at.metrics),
        ("GET", "/v1/models", at.models),
        ("GET", "/v1/models/{name:path}", at.model),
        ("POST", "/v1/chat/completions", at.chat),
        ("POST", "/v1/completions", at.completions),
        ("GET", "/props", at.props),
        ("GET", "/slots", at.slots),
        ("POST", "/tokenize", at.tokenize),
        ("POST", "/detokenize", at.detokenize),
        ("POST", "/apply-template", at.apply_template),
        ("GET", "/openapi.json", at.openapi),
    )
    paths = frozenset(path for _, path, _ in table if "{" not in path)
    return Starlette(
        routes=[Route(path, endpoint, methods=[method]) for method, path, endpoint in table],
        middleware=[Middleware(AccessMiddleware, service.settings, service.metrics, say, paths)],
        exception_handlers={SpecllamaError: _on_error, HTTPException: _on_http},
    )


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SpecllamaError)
    return _refusal(request, error, error.http_status)


async def _on_http(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    path, status = request.url.path, error.status_code
    if status == 404:
        return _refusal(request, UsageError(f"there is no {request.method} {path} here"), status)
    response = _refusal(request, UsageError(f"{path} does not take {request.method}"), status)
    response.headers.update(error.headers or {})
    return response


def _refusal(request: Request, error: SpecllamaError, status: int) -> Response:
    body = errors.error_bytes(request.scope["path"], error, status, request.scope.get("specllama.id", ""))
    headers = {"content-type": "application/json", **errors.headers(error, status)}
    if status in (408, 413):
        headers["connection"] = "close"
    return Response(body, status, headers)
