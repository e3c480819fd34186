"""Ollama's routes. Answers are streamed by default, one JSON object per line."""

from __future__ import annotations

import time

from starlette.responses import JSONResponse, Response

from specllama.client.model_info import LoadInfo
from specllama.server.dialects.ollama import shapes
from specllama.server.dialects.ollama.requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    RefusedRequest,
    ShowRequest,
)
from specllama.server.dialects.ollama.writer import OllamaResponseOptions, OllamaWriter, error_body
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect, Endpoint
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.http.errors import UnsupportedError
from specllama.server.requests import CompletionSpec


async def version(_api: ApiRequest) -> Response:
    return JSONResponse({"version": shapes.VERSION})


async def tags(api: ApiRequest) -> Response:
    """The models on disk."""
    entries = []
    for one in await api.list_models():
        if one.on_disk:
            facts = one.info or await api.models.details(one.model)
            n_bytes = one.info.file_bytes if one.info is not None else one.model.n_bytes
            entries.append(shapes.tag(one.name, facts, n_bytes, one.model.modified))
    return JSONResponse({"models": entries})


async def running(api: ApiRequest) -> Response:
    entries, now = [], time.time()
    for one in await api.list_models():
        if one.loaded and one.info is not None:
            expires = None if one.expires_in is None else now + one.expires_in
            entries.append(shapes.running(one.name, one.info, expires))
    return JSONResponse({"models": entries})


async def show(api: ApiRequest) -> Response:
    body = await api.body(ShowRequest)
    await api.find_model(body.model or body.name or None)
    service, info = api.service, api.supervisor.loaded
    facts, n_ctx = (info, info.n_ctx) if info is not None else await api.models.unloaded(service)
    modified = service.model.modified
    return JSONResponse(shapes.show(service.name, facts, n_ctx, modified, api.settings.sampling))


async def chat(api: ApiRequest) -> Response:
    body = await api.body(OllamaChatRequest)
    writer = OllamaWriter(_options(api, body, chat=True))
    await _info(api, body)
    if not body.messages:
        return await _loaded(api, writer, body)
    request = body.request(api.settings.sampling, api.settings.variables)
    api.log_chat(request)
    fields, reasoning = body.limits.fields, body.shown_reasoning
    return await api.answer([CompletionSpec(request, 0, True, reasoning, fields)], writer, body)


async def generate(api: ApiRequest) -> Response:
    body = await api.body(OllamaGenerateRequest)
    writer = OllamaWriter(_options(api, body, chat=False))
    info = await _info(api, body)
    if not body.prompt and not body.suffix:
        return await _loaded(api, writer, body)
    if body.suffix and not info.details.infill:
        raise FieldError(
            f'"{writer.options.model}" does not support insert, its vocabulary has no tokens for it', "suffix"
        )
    request = body.request(api.settings.sampling, api.settings.variables, info.template_works)
    api.log_prompt(body.prompt)
    spec = CompletionSpec(request, splits=request.chat is not None, fields=body.limits.fields)
    return await api.answer([spec], writer, body)


def _refusal(message: str) -> Endpoint:
    """The endpoint of an unsupported operation. Reads the body, so that the client reads the error."""

    async def refuse(api: ApiRequest) -> Response:
        await api.body(RefusedRequest)
        raise UnsupportedError(message)

    return refuse


async def _info(api: ApiRequest, body: OllamaRequest) -> LoadInfo:
    """The model's description, after checks that depend on it. Raises FieldError."""
    api.check_model(body.model or None)
    info = await api.supervisor.load()
    if body.think and not info.details.template_reasons:
        raise FieldError(f'"{body.model or api.service.name}" does not support thinking', "think")
    return info


async def _loaded(api: ApiRequest, writer: OllamaWriter, body: OllamaRequest) -> Response:
    """Load or unload the model, as `keep_alive` says."""
    if body.ending == "load":
        await api.load_model()
    else:
        api.check_administers()
    api.keep_model(body.keep_alive)
    media_type = writer.media_type if body.stream else "application/json"
    return Response(writer.loaded(body.ending), media_type=media_type)


def _options(api: ApiRequest, body: OllamaRequest, chat: bool) -> OllamaResponseOptions:
    name, logprobs = body.model or api.service.name, body.n_logprobs is not None
    return OllamaResponseOptions(name, chat, logprobs, body.speculation.enabled, body.ignored_fields)


_HERE = "models are managed by the commands of specllama"
_PULL = _refusal(f"pull is not offered here: {_HERE}, see `specllama pull`")
_EMBED = _refusal("embeddings are not offered: specllama writes text")
_OTHER = _refusal(f"this is not offered here: {_HERE}")
DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/api/version", version, "The version of Ollama's API"),
        ApiRoute("GET", "/api/tags", tags, "The models that are served, as Ollama lists them"),
        ApiRoute("GET", "/api/ps", running, "The models in memory"),
        ApiRoute("POST", "/api/show", show, "What a model is and can do", ShowRequest),
        ApiRoute("POST", "/api/chat", chat, "Answer a conversation, as Ollama does", OllamaChatRequest),
        ApiRoute("POST", "/api/generate", generate, "Answer a prompt, as Ollama does", OllamaGenerateRequest),
        ApiRoute("POST", "/api/pull", _PULL),
        ApiRoute("POST", "/api/embed", _EMBED),
        ApiRoute("POST", "/api/embeddings", _EMBED),
        ApiRoute("POST", "/api/push", _OTHER),
        ApiRoute("POST", "/api/create", _OTHER),
        ApiRoute("POST", "/api/copy", _OTHER),
        ApiRoute("DELETE", "/api/delete", _OTHER),
    ),
    prefixes=("/api",),
)
