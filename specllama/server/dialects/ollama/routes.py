"""Ollama's routes. Streams are the default, and one JSON object a line."""

from __future__ import annotations

from starlette.responses import JSONResponse, PlainTextResponse, Response

from specllama.client.model_info import LoadInfo
from specllama.server.dialects.base import ApiRequest, ApiRoute, Dialect, Endpoint
from specllama.server.dialects.fields import FieldError
from specllama.server.dialects.ollama import shapes
from specllama.server.dialects.ollama.errors import error_body
from specllama.server.dialects.ollama.requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    RefusedRequest,
    ShowRequest,
)
from specllama.server.dialects.ollama.writer import OllamaResponseOptions, OllamaWriter
from specllama.server.http.errors import UnsupportedError
from specllama.server.requests import CompletionSpec

_LATEST = ":latest"


async def root(_api: ApiRequest) -> Response:
    return PlainTextResponse("specllama is running")


async def version(_api: ApiRequest) -> Response:
    return JSONResponse({"version": shapes.VERSION})


async def tags(api: ApiRequest) -> Response:
    return JSONResponse(shapes.tags(api.supervisor.loaded, api.settings.shown_names, api.service.created))


async def running(api: ApiRequest) -> Response:
    if api.supervisor.problem:
        return JSONResponse({"models": []})
    return JSONResponse(shapes.running(api.supervisor.info, [api.settings.name]))


async def show(api: ApiRequest) -> Response:
    body = await api.body(ShowRequest)
    _check_model(api, body.model or body.name)
    await api.supervisor.client()
    return JSONResponse(shapes.show(api.supervisor.info, api.service.created, api.settings.sampling))


async def chat(api: ApiRequest) -> Response:
    body = await api.body(OllamaChatRequest)
    writer = OllamaWriter(_options(api, body, chat=True))
    await _info(api, body)
    if not body.messages:
        return _loaded(writer, body)
    request = body.request(api.settings.sampling, api.settings.variables)
    api.log_prompt(request.messages)
    return await _answer(api, body, writer, CompletionSpec(request, splits=True))


async def generate(api: ApiRequest) -> Response:
    body = await api.body(OllamaGenerateRequest)
    writer = OllamaWriter(_options(api, body, chat=False))
    info = await _info(api, body)
    if not body.prompt and not body.suffix:
        return _loaded(writer, body)
    if body.suffix and not info.infill:
        raise FieldError(
            f'"{writer.options.model}" does not support insert, its vocabulary has no tokens for it', "suffix"
        )
    request = body.request(api.settings.sampling, api.settings.variables, info.template_works)
    api.log_prompt(body.prompt)
    return await _answer(api, body, writer, CompletionSpec(request, splits=request.messages is not None))


def _refusal(message: str) -> Endpoint:
    """The endpoint of an operation that is not offered. Its body is read, so that the client reads why."""

    async def refuse(api: ApiRequest) -> Response:
        await api.body(RefusedRequest)
        raise UnsupportedError(message)

    return refuse


def _check_model(api: ApiRequest, name: str | None) -> None:
    """See ApiRequest.check_model. A name may have the tag `latest`, and "" is none."""
    if name and not api.settings.serves(name):
        name = name.removesuffix(_LATEST)
    api.check_model(name or None)


async def _info(api: ApiRequest, body: OllamaRequest) -> LoadInfo:
    """What is loaded, after a check of what depends on it. Raises FieldError."""
    _check_model(api, body.model)
    await api.supervisor.client()
    info = api.supervisor.info
    if body.think and not info.template_reasons:
        raise FieldError(f'"{body.model or api.settings.name}" does not support thinking', "think")
    if (body.options.num_ctx or 0) > info.n_ctx:
        api.say(f"num_ctx {body.options.num_ctx} is above the context of {info.n_ctx} tokens, which stays")
    return info


def _loaded(writer: OllamaWriter, body: OllamaRequest) -> Response:
    media_type = writer.media_type if body.stream else "application/json"
    return Response(writer.loaded(body.ending), media_type=media_type)


async def _answer(
    api: ApiRequest, body: OllamaRequest, writer: OllamaWriter, spec: CompletionSpec
) -> Response:
    return await api.generate([spec], writer, stream=body.stream, memory=body.speculation.memory)


def _options(api: ApiRequest, body: OllamaRequest, chat: bool) -> OllamaResponseOptions:
    return OllamaResponseOptions(
        body.model or api.settings.name, chat, body.logprobs, body.speculation.enabled
    )


_HERE = "models are managed by the commands of specllama"
_PULL = _refusal(f"pull is not offered here: {_HERE}, see `specllama pull`")
_EMBED = _refusal("embeddings are not offered: specllama writes text")
_OTHER = _refusal(f"this is not offered here: {_HERE}")
DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/", root, open=True),
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
