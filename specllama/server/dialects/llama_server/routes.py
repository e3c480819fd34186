"""llama-server's own routes."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from specllama.client import protocol
from specllama.server.dialects.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.llama_server import shapes
from specllama.server.dialects.llama_server.requests import (
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
)
from specllama.server.dialects.openai.errors import error_body
from specllama.server.metrics import CONTENT_TYPE


async def health(api: ApiRequest) -> Response:
    """Never waits for the engine."""
    problem = api.supervisor.problem
    if problem:
        error = {"code": 503, "message": problem, "type": "unavailable_error"}
        return JSONResponse({"status": "error", "error": error}, 503, {"retry-after": "1"})
    return JSONResponse({"status": "ok"})


async def metrics(api: ApiRequest) -> Response:
    found = await api.service.read_metrics(api.owner)
    return Response(found.text(), headers={"content-type": CONTENT_TYPE})


async def props(api: ApiRequest) -> Response:
    await api.supervisor.client()
    settings = api.settings
    return JSONResponse(shapes.props(api.supervisor.info, settings.shown_names, settings.sampling))


async def slots(api: ApiRequest) -> Response:
    found = await api.supervisor.query(protocol.GetSlots, protocol.Slots)
    return JSONResponse(shapes.slots(found, api.supervisor.info, api.owner))


async def tokenize(api: ApiRequest) -> Response:
    body = await api.body(TokenizeRequest)
    parts: list[bytes] = []
    await api.supervisor.collect(
        lambda id_: protocol.Tokenize(
            id_, body.content, body.add_special, body.parse_special, body.with_pieces
        ),
        protocol.Tokenized,
        lambda found: parts.append(shapes.tokens(found, body.with_pieces)),
    )
    return Response(b'{"tokens":[' + b",".join(filter(None, parts)) + b"]}", media_type="application/json")


async def detokenize(api: ApiRequest) -> Response:
    body = await api.body(DetokenizeRequest)
    parts: list[bytes] = []
    await api.supervisor.collect(
        lambda id_: protocol.Detokenize(id_, body.tokens),
        protocol.Detokenized,
        lambda found: parts.append(shapes.inside_string(found.text)),
    )
    return Response(b'{"content":"' + b"".join(parts) + b'"}', media_type="application/json")


async def apply_template(api: ApiRequest) -> Response:
    body = await api.body(TemplateRequest)
    api.check_model(body.model)
    messages, prefix = body.parts()
    variables = {**api.settings.variables, **body.variables()}
    parts: list[bytes] = []
    await api.supervisor.collect(
        lambda id_: protocol.Render(id_, messages, variables, prefix),
        protocol.Rendered,
        lambda found: parts.append(shapes.inside_string(found.prompt)),
    )
    return Response(b'{"prompt":"' + b"".join(parts) + b'"}', media_type="application/json")


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/health", health, "Whether the engine answers", open=True),
        ApiRoute("GET", "/v1/health", health, open=True),
        ApiRoute("GET", "/metrics", metrics, "Figures for Prometheus"),
        ApiRoute("GET", "/props", props, "The server's settings"),
        ApiRoute("GET", "/slots", slots, "What each slot is doing"),
        ApiRoute("POST", "/tokenize", tokenize, "The ids of a text", TokenizeRequest),
        ApiRoute("POST", "/detokenize", detokenize, "The text of ids", DetokenizeRequest),
        ApiRoute("POST", "/apply-template", apply_template, "The prompt of a conversation", TemplateRequest),
    ),
)
