"""Ollama's routes. Answers are streamed by default, one JSON object per line."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from specllama.client.model_info import LoadInfo
from specllama.core.sampling.params import PARAMETERS, SamplingParams
from specllama.json_types import JsonObject
from specllama.models.details import ModelDetails
from specllama.server.dialects.ollama.requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    RefusedRequest,
    ShowRequest,
)
from specllama.server.dialects.ollama.writer import OllamaWriter, error_body, timestamp
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect, Endpoint
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.http.errors import UnsupportedError


async def version(_api: ApiRequest) -> Response:
    return JSONResponse({"version": VERSION})


async def tags(api: ApiRequest) -> Response:
    """The models on disk."""
    entries = []
    for one in await api.list_models():
        if one.on_disk:
            facts = one.info or await api.models.details(one.model)
            n_bytes = one.info.file_bytes if one.info is not None else one.model.n_bytes
            entries.append(tag(one.name, facts, n_bytes, one.model.modified))
    return JSONResponse({"models": entries})


async def running(api: ApiRequest) -> Response:
    entries, now = [], time.time()
    for one in await api.list_models():
        if one.loaded and one.info is not None:
            expires = None if one.expires_in is None else now + one.expires_in
            entries.append(running_entry(one.name, one.info, expires))
    return JSONResponse({"models": entries})


async def show(api: ApiRequest) -> Response:
    body = await api.body(ShowRequest)
    await api.find_model(body.model or body.name or None)
    service, info = api.service, api.supervisor.loaded
    facts, n_ctx = (info, info.n_ctx) if info is not None else await api.models.unloaded(service)
    modified = service.model.modified
    return JSONResponse(show_entry(service.name, facts, n_ctx, modified, api.settings.sampling))


async def chat(api: ApiRequest) -> Response:
    body = await api.body(OllamaChatRequest)
    await _info(api, body)
    return await (_answer(api, body, chat=True) if body.messages else _loaded(api, body, chat=True))


async def generate(api: ApiRequest) -> Response:
    body = await api.body(OllamaGenerateRequest)
    info = await _info(api, body)
    if not body.prompt and not body.suffix:
        return await _loaded(api, body, chat=False)
    if body.suffix and not info.details.infill:
        name = body.model or api.service.name
        raise FieldError(f'"{name}" does not support insert, its vocabulary has no tokens for it', "suffix")
    if not info.template_works:
        body.without_template()
    return await _answer(api, body, chat=False)


async def _answer(api: ApiRequest, body: OllamaRequest, chat: bool) -> Response:
    return await api.answer(body, partial(OllamaWriter, chat=chat))


def _refusal(message: str) -> Endpoint:
    """The endpoint of an unsupported operation. Reads the body, so that the client reads the error."""

    async def refuse(api: ApiRequest) -> Response:
        await api.body(RefusedRequest)
        raise UnsupportedError(message)

    return refuse


async def _info(api: ApiRequest, body: OllamaRequest) -> LoadInfo:
    """The model's description, after checks that depend on it. Raises FieldError."""
    _ = body.n_logprobs
    api.check_model(body.model or None)
    info = await api.supervisor.load()
    if body.think and not info.details.template_reasons:
        raise FieldError(f'"{body.model or api.service.name}" does not support thinking', "think")
    return info


async def _loaded(api: ApiRequest, body: OllamaRequest, chat: bool) -> Response:
    """Load or unload the model, as `keep_alive` says."""
    if body.ending == "load":
        await api.load_model()
    else:
        api.check_administers()
    api.keep_model(body.keep_alive)
    writer = OllamaWriter(body.answer_options(api.service.name), chat)
    media_type = writer.media_type if body.stream else "application/json"
    return Response(writer.loaded(body.ending), media_type=media_type)


# The JSON of /api/version, /api/tags, /api/show and /api/ps, as Ollama's clients read it.


VERSION = "0.12.0"  # of Ollama, whose API this is; clients refuse versions that they think too old
_FOR_EVER = "9999-12-31T23:59:59Z"
_OPTIONS = tuple(
    name
    for name, parameter in PARAMETERS.items()
    if parameter.stored and parameter.is_number and name not in ("max_tokens", "seed")
)
"""The parameters of a model: those that say how tokens are chosen, not where an answer ends."""
_SIZES = ((1e9, 1, "B"), (1e6, 2, "M"), (1e3, 0, "K"), (1, 0, ""))  # unit, decimals, letter


def tag(name: str, facts: LoadInfo | ModelDetails | None, n_bytes: int, modified: float) -> JsonObject:
    """One model of /api/tags. n_bytes: of its file. modified: seconds since the epoch."""
    return {**_entry(name, facts, n_bytes), "modified_at": timestamp(modified)}


def running_entry(name: str, info: LoadInfo, expires_at: float | None) -> JsonObject:
    """One model of /api/ps. expires_at: when it is unloaded, in seconds since the epoch, None for never."""
    return {
        **_entry(name, info, info.file_bytes),
        "expires_at": _FOR_EVER if expires_at is None else timestamp(expires_at),
        "size_vram": round(info.file_bytes * info.gpu_share),
        "context_length": info.n_ctx,
    }


def show_entry(
    name: str, info: LoadInfo | ModelDetails, n_ctx: int, modified: float, sampling: Mapping[str, Any]
) -> JsonObject:
    """One model, loaded or not. modified: seconds since the epoch. sampling: the server's own defaults, which
    take precedence over the model's.

    n_ctx: of the server, not of the training: clients size their prompts by it.
    """
    family, n_params, _ = _facts(info)
    arch = family or "unknown"
    own = info.sampling if isinstance(info, LoadInfo) else SamplingParams()
    params = {name: sampling.get(name, getattr(own, name)) for name in _OPTIONS}
    return {
        "modified_at": timestamp(modified),
        "template": info.template,
        "parameters": "\n".join(f"{name} {value}" for name, value in params.items()),
        "details": details(info),
        "model_info": {
            "general.architecture": arch,
            "general.basename": info.target.name if isinstance(info, LoadInfo) else name,
            "general.parameter_count": n_params,
            f"{arch}.context_length": n_ctx,
            f"{arch}.vocab_size": info.n_vocab,
        },
        "capabilities": capabilities(info),
    }


def capabilities(info: LoadInfo | ModelDetails) -> list[str]:
    """Capabilities of a model. A chat template suffices for tools: without native support they are
    described in a system message. Infill support is known only after a load.
    """
    if isinstance(info, LoadInfo):
        works, reasons, fills = info.template_works, info.details.template_reasons, info.details.infill
    else:
        works, reasons, fills = bool(info.template), info.reasons, False
    more = {"tools": works, "insert": fills, "thinking": works and reasons}
    return ["completion", *(name for name, has in more.items() if has)]


def details(facts: LoadInfo | ModelDetails | None) -> JsonObject:
    """Short description of a model, loaded or not."""
    family, params, quant = _facts(facts)
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _size(params) if params else "",
        "quantization_level": quant,
    }


def _facts(facts: LoadInfo | ModelDetails | None) -> tuple[str, int, str]:
    """(architecture, number of weights, quantisation)."""
    if isinstance(facts, LoadInfo):
        return facts.details.architecture, facts.target.params, facts.target.quant
    return (facts.architecture, facts.n_params, facts.quant) if facts is not None else ("", 0, "")


def _entry(name: str, facts: LoadInfo | ModelDetails | None, n_bytes: int) -> JsonObject:
    return {
        "name": name,
        "model": name,
        "size": n_bytes,
        "digest": hashlib.sha256(repr([name, n_bytes, *_facts(facts)]).encode()).hexdigest(),
        "details": details(facts),
    }


def _size(params: int) -> str:
    """A number of weights in Ollama's form: "134.52M"."""
    unit, decimals, letter = next(size for size in _SIZES if params >= size[0] or size[0] == 1)
    return f"{params / unit:.{decimals}f}{letter}"


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
