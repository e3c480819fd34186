"""llama-server's own routes; those of OpenAI's API that it has too are in openai/routes.py."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from pydantic import Field
from starlette.responses import JSONResponse, Response

from specllama.client import protocol
from specllama.errors import EngineDiedError, ResourceError, SpecllamaError
from specllama.server.dialects.llama_server import shapes, slot_actions
from specllama.server.dialects.llama_server.completion import InfillRequest, NativeRequest, NativeWriter
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect, Endpoint
from specllama.server.dialects.shared.chat_fields import TemplateInput
from specllama.server.dialects.shared.fields import AtMost, RequestBody
from specllama.server.dialects.shared.sampling_fields import ModelName
from specllama.server.dialects.shared.writer import error_body
from specllama.server.http.body import MAX_VALUES
from specllama.server.http.errors import UnsupportedError
from specllama.server.metrics import CONTENT_TYPE

_PEEK_SECONDS = 1.0  # longest wait of /props for the engine's own figures


class TokenizeRequest(RequestBody):
    """with_pieces: each token's text next to its id."""

    model: ModelName | None = None
    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(RequestBody):
    """tokens: ids of the model's vocabulary."""

    model: ModelName | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AtMost(MAX_VALUES)]


class TemplateRequest(TemplateInput):
    """The conversation of /apply-template."""


async def completion(api: ApiRequest) -> Response:
    return await _answer(api, await api.body(NativeRequest))


async def infill(api: ApiRequest) -> Response:
    return await _answer(api, await api.body(InfillRequest))


async def _answer(api: ApiRequest, body: NativeRequest) -> Response:
    api.check_model(body.model)
    supervisor = api.supervisor

    def facts() -> tuple[Sequence[int], Sequence[str]]:
        info = supervisor.info
        return info.end_ids, info.drafters if body.speculation.enabled else ()

    return await api.answer(body, lambda options: NativeWriter(options, body.native_options(facts)))


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


# Routes that load and unload models, and those that download known ones.


class ModelRequest(RequestBody):
    """The body of these routes."""

    model: Annotated[str, Field(max_length=512)]


async def load(api: ApiRequest) -> Response:
    """Answers when the model is loaded."""
    body = await api.body(ModelRequest)
    api.check_model(body.model, exact=True)
    await api.load_model()
    return JSONResponse({"success": True})


async def unload(api: ApiRequest) -> Response:
    """Running requests finish first."""
    body = await api.body(ModelRequest)
    api.check_model(body.model, exact=True)
    api.unload_model()
    return JSONResponse({"success": True})


async def pull(api: ApiRequest) -> Response:
    """Answers at once; the list of models shows the progress."""
    body = await api.body(ModelRequest)
    api.pull_model(body.model, stop=False)
    return JSONResponse({"success": True})


async def stop_pull(api: ApiRequest) -> Response:
    """Bytes received are kept, and a later download resumes."""
    body = await api.body(ModelRequest)
    api.pull_model(body.model, stop=True)
    return JSONResponse({"success": True})


# Routes that llama-server has and this server does not: clients get an error that says so.


_NO_EMBEDDINGS = "this server generates text; it makes no embeddings"
_NO_RANKING = "this server generates text; it ranks no documents"
_NO_SOUND = "this server transcribes no sound"
_NO_ADAPTERS = "LoRA adapters are loaded at the start (--lora), and are the same for all requests"
_REASONS: Mapping[tuple[str, str], str] = {
    ("POST", "/embedding"): _NO_EMBEDDINGS,
    ("POST", "/embeddings"): _NO_EMBEDDINGS,
    ("POST", "/v1/embeddings"): _NO_EMBEDDINGS,
    ("POST", "/rerank"): _NO_RANKING,
    ("POST", "/reranking"): _NO_RANKING,
    ("POST", "/v1/rerank"): _NO_RANKING,
    ("POST", "/v1/reranking"): _NO_RANKING,
    ("POST", "/audio/transcriptions"): _NO_SOUND,
    ("POST", "/v1/audio/transcriptions"): _NO_SOUND,
    ("POST", "/props"): "settings cannot be changed while the server runs; its flags set them",
    ("GET", "/lora-adapters"): _NO_ADAPTERS,
    ("POST", "/lora-adapters"): _NO_ADAPTERS,
    ("POST", "/v1/chat/completions/control"): "an answer cannot be changed while it is written",
}


def _refusing(error: UnsupportedError) -> Endpoint:
    async def refuse(_api: ApiRequest) -> Response:
        raise error

    return refuse


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
        ApiRoute("POST", "/models/load", load, "Load a model", ModelRequest),
        ApiRoute("POST", "/models/unload", unload, "Unload a model", ModelRequest),
        ApiRoute("POST", "/models/pull", pull, "Download a known model", ModelRequest),
        ApiRoute("POST", "/models/pull/stop", stop_pull, "End that", ModelRequest),
        *slot_actions.ROUTES,
        *(ApiRoute(*at, _refusing(UnsupportedError(reason))) for at, reason in _REASONS.items()),
    ),
)
