"""llama-server's own routes; those of OpenAI's API that it has too are in openai/routes.py."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from starlette.responses import JSONResponse, Response

from specllama.client import protocol
from specllama.errors import EngineDiedError, ResourceError, SpecllamaError
from specllama.server.dialects.llama_server import models, shapes, slot_actions
from specllama.server.dialects.llama_server import requests as unsupported
from specllama.server.dialects.llama_server.completion import (
    InfillRequest,
    NativeOptions,
    NativeRequest,
    NativeWriter,
)
from specllama.server.dialects.llama_server.requests import (
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
)
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.shared.openai_errors import error_body
from specllama.server.metrics import CONTENT_TYPE
from specllama.server.requests import CompletionSpec

_PEEK_SECONDS = 1.0  # longest wait of /props for the engine's own figures


async def completion(api: ApiRequest) -> Response:
    return await _answer(api, await api.body(NativeRequest))


async def infill(api: ApiRequest) -> Response:
    return await _answer(api, await api.body(InfillRequest))


async def _answer(api: ApiRequest, body: NativeRequest) -> Response:
    api.check_model(body.model)
    requests = body.generations(api.settings.sampling)
    api.log_prompt(body.shown)
    speculation, supervisor = body.speculation, api.supervisor

    def facts() -> tuple[Sequence[int], Sequence[str]]:
        info = supervisor.info
        return info.end_ids, info.drafters if speculation.enabled else ()

    options = NativeOptions(
        model=body.model or api.service.name,
        stream=body.stream,
        final_probs=body.post_sampling_probs,
        return_tokens=body.return_tokens,
        return_progress=body.return_progress,
        timings_per_token=body.timings_per_token,
        trace=bool(speculation.trace),
        speculate=speculation.enabled,
        several=len(requests) * body.n_cmpl > 1,
        fields=body.response_fields or (),
        ignored=body.ignored_fields,
        model_facts=facts,
    )
    specs = [CompletionSpec(request, i, fields=body.limits.fields) for i, request in enumerate(requests)]
    return await api.answer(specs, NativeWriter(options), body, n=body.n_cmpl, supersedes=body.supersedes)


async def health(api: ApiRequest) -> Response:
    """Never waits for the engine. Requests without a valid key see no details on a server with keys."""
    known = bool(api.owner) or not api.settings.keys
    problem = api.supervisor.problem if known else api.supervisor.public_problem
    if problem:
        error = {"code": 503, "message": problem, "type": "unavailable_error"}
        return JSONResponse({"status": "error", "error": error}, 503, {"retry-after": "1"})
    return JSONResponse({"status": "ok"})


async def metrics(api: ApiRequest) -> Response:
    text = await api.models.metrics(api.owner, api.query_params.get("model"))
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def props(api: ApiRequest) -> Response:
    info = await api.supervisor.load()
    sleeps = api.service.lease.state == "unloaded"
    times: Sequence[tuple[int, float]] = ()
    if not sleeps:
        with contextlib.suppress(SpecllamaError, TimeoutError):
            state = await api.supervisor.peek(protocol.GetSlots, protocol.Slots, _PEEK_SECONDS)
            times = state.decode_seconds
    return JSONResponse(shapes.props(info, api.service.names, api.settings.sampling, times, sleeps))


async def slots(api: ApiRequest) -> Response:
    """An unloaded model has none, nor has one that is being unloaded meanwhile."""
    lease = api.service.lease
    if not lease.has_engine:
        return JSONResponse([])
    try:
        await api.supervisor.engine()
        state = await api.supervisor.peek(protocol.GetSlots, protocol.Slots)
    except EngineDiedError:
        if lease.has_engine:
            raise
        return JSONResponse([])
    if api.query_params.get("fail_on_no_slot") and all(slot.id is not None for slot in state.slots):
        raise ResourceError("no slot is free", "ask again later")
    return JSONResponse(shapes.slots(state, api.supervisor.info, api.owner))


async def tokenize(api: ApiRequest) -> Response:
    body = await api.body(TokenizeRequest)
    api.check_model(body.model)
    parts: list[bytes] = []
    await api.supervisor.collect(
        lambda id_: protocol.Tokenize(
            id_, body.content, body.add_special, body.parse_special, body.with_pieces
        ),
        protocol.Tokenized,
        lambda part: parts.append(shapes.tokens(part, body.with_pieces)),
    )
    return Response(b'{"tokens":[' + b",".join(filter(None, parts)) + b"]}", media_type="application/json")


async def detokenize(api: ApiRequest) -> Response:
    body = await api.body(DetokenizeRequest)
    api.check_model(body.model)
    parts: list[bytes] = []
    await api.supervisor.collect(
        lambda id_: protocol.Detokenize(id_, body.tokens),
        protocol.Detokenized,
        lambda part: parts.append(shapes.inside_string(part.text)),
    )
    return Response(b'{"content":"' + b"".join(parts) + b'"}', media_type="application/json")


async def apply_template(api: ApiRequest) -> Response:
    body = await api.body(TemplateRequest)
    api.check_model(body.model)
    chat = body.chat_input(api.settings.variables)
    parts: list[bytes] = []
    await api.supervisor.collect(
        partial(protocol.Render, chat=chat),
        protocol.Rendered,
        lambda part: parts.append(shapes.inside_string(part.prompt)),
    )
    return Response(b'{"prompt":"' + b"".join(parts) + b'"}', media_type="application/json")


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/health", health, "Whether the engine answers", open=True),
        ApiRoute("GET", "/v1/health", health, open=True),
        ApiRoute("POST", "/completion", completion, "Continue a prompt", NativeRequest),
        ApiRoute("POST", "/completions", completion),
        ApiRoute("POST", "/infill", infill, "Fill a gap in a text", InfillRequest),
        ApiRoute("GET", "/metrics", metrics, "Figures for Prometheus"),
        ApiRoute("GET", "/props", props, "The server's settings"),
        ApiRoute("GET", "/slots", slots, "What each slot is doing"),
        ApiRoute("POST", "/tokenize", tokenize, "The ids of a text", TokenizeRequest),
        ApiRoute("POST", "/detokenize", detokenize, "The text of ids", DetokenizeRequest),
        ApiRoute("POST", "/apply-template", apply_template, "The prompt of a conversation", TemplateRequest),
        *models.ROUTES,
        *slot_actions.ROUTES,
        *unsupported.ROUTES,
    ),
)
