"""The OpenAI API's routes. llama-server has them without /v1 too, and counts the tokens of a prompt."""

from __future__ import annotations

import datetime
from functools import partial

from starlette.responses import JSONResponse, Response

from specllama.json_types import JsonObject
from specllama.server.dialects.openai.completions import (
    ChatRequest,
    ChatWriter,
    CompletionRequest,
    CompletionWriter,
    ControlRequest,
    OpenAIWriter,
)
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.responses.writer import ResponsesWriter, echo_json
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.shared.embedding import EmbeddingsRequest, embeddings
from specllama.server.dialects.shared.sampling_fields import SamplingFields
from specllama.server.dialects.shared.writer import AnswerOptions, error_body
from specllama.server.http.errors import HttpError
from specllama.server.models import ListedModel, listed


async def chat(api: ApiRequest) -> Response:
    return await _answer(api, await api.body(ChatRequest), ChatWriter)


async def completions(api: ApiRequest) -> Response:
    return await _answer(api, await api.body(CompletionRequest), CompletionWriter)


async def _answer(api: ApiRequest, body: SamplingFields, writer: type[OpenAIWriter]) -> Response:
    if body.verbose is None:
        body.verbose = api.settings.verbose
    return await api.answer(body, writer)


async def respond(api: ApiRequest) -> Response:
    recent, owner, defaults = api.recent_items, api.owner, api.settings.sampling
    body = await api.body(ResponsesRequest, partial(recent.resolved, owner))
    keep = partial(recent.add, owner) if body.store else lambda _: None

    def writer(options: AnswerOptions) -> ResponsesWriter:
        return ResponsesWriter(options, echo_json(body.echo(defaults)), body.request_tools.names, keep)

    return await api.answer(body, writer)


async def control(api: ApiRequest) -> Response:
    """End the reasoning of a running answer, as llama-server does. Raises HttpError."""
    body = await api.body(ControlRequest)
    job = api.running(body.id)
    if job is None:
        id_ = body.id[:80]
        raise HttpError(404, f"no answer with the id {id_!r} is being written", {"param": "id"})
    if not job.controlled:
        why = "reasoning control is not enabled for this answer: ask for it with reasoning_control: true"
        return JSONResponse({"success": False, "message": why})
    job.end_reasoning()
    return JSONResponse({"success": True})


async def stored(api: ApiRequest) -> Response:
    id_ = str(api.path_params["name"])[:80]
    why = "responses are not stored here, they are only sent to whoever asks"
    raise HttpError(404, f"there is no response {id_!r}: {why}")


async def models(api: ApiRequest) -> Response:
    """The models on disk; with ?known=true also models that are only known."""
    known = api.query_params.get("known", "").lower() in ("1", "true", "yes")
    listing = await api.models.listed()
    shown = [one for one in listing if known or one.on_disk] or listing[:1]
    entries = [model_entry(one) for one in shown]
    for one, entry in zip(shown, entries, strict=True):
        if known and (fits := api.models.fits(one)) is not None:
            entry["fits"] = fits
    first, last = shown[0].name, shown[-1].name
    return JSONResponse(
        {"object": "list", "data": entries, "has_more": False, "first_id": first, "last_id": last}
    )


async def model(api: ApiRequest) -> Response:
    name = api.path_params["name"]
    await api.find_model(name)
    return JSONResponse(model_entry(listed(api.service, name)))


async def _length(api: ApiRequest, model: type[ChatRequest | ResponsesRequest]) -> Response:
    body = await api.body(model)
    api.check_model(body.model)
    await api.read_images(body)
    body.generations(api.settings.sampling, api.settings.variables)  # raises the same errors
    n = await api.prompt_length(body.chat_input(api.settings.variables))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n})


def model_entry(model: ListedModel) -> JsonObject:
    """One model, as both OpenAI's and Anthropic's clients read it, with llama-server's `meta`, and the context
    size under the names used by vLLM's and OpenRouter's clients. `status`: whether it is in memory; during a
    load, the part being loaded and its progress; for a model not on disk, the command that downloads it, and
    the progress of a download.
    """
    info, created = model.info, model.created
    entry: JsonObject = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "specllama",
        "type": "model",
        "display_name": info.target.name if info is not None else model.name,
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).isoformat(),
        "status": _status(model),
        "meta": _meta(model),
    }
    if info is not None:
        entry["max_model_len"] = entry["context_length"] = info.n_ctx
        inputs = ["text", "image"] if info.vision else ["text"]
        entry["architecture"] = {"input_modalities": inputs, "output_modalities": ["text"]}
    return entry


def _status(model: ListedModel) -> JsonObject:
    status: JsonObject = {"value": model.state or "not downloaded"}
    if model.loading is not None:
        status["loading"], status["progress"] = model.loading[0], round(model.loading[1], 4)
    if not model.on_disk:
        status["pull"] = f"specllama pull {model.model.pull}"
    if (pull := model.pull) is not None:
        status["download"] = {
            "done": pull.done, "total": pull.total, "error": pull.error, "running": pull.running,
        }  # fmt: skip
    return status


def _meta(model: ListedModel) -> JsonObject:
    info = model.info
    kind: JsonObject = {"embeds": True} if model.embeds else {}
    if info is None:
        if model.on_disk:
            return {"size": model.model.n_bytes} | kind
        about = kind | ({"about_size": model.model.guessed_bytes} if model.model.guessed_bytes else {})
        return about | {"is_head": True} if model.model.is_head else about
    return {
        "n_vocab": info.n_vocab,
        "n_ctx": info.n_ctx,
        "n_ctx_train": info.n_ctx_train,
        "n_params": info.target.params,
        "size": info.file_bytes,
        **kind,
    }


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/v1/models", models, "The models that are served"),
        ApiRoute("GET", "/v1/models/{name:path}", model, "One model"),
        ApiRoute("POST", "/v1/chat/completions", chat, "Answer a conversation", ChatRequest),
        ApiRoute(
            "POST", "/v1/chat/completions/control", control, "End the reasoning of an answer", ControlRequest
        ),
        ApiRoute("POST", "/v1/completions", completions, "Continue a prompt", CompletionRequest),
        ApiRoute("POST", "/v1/responses", respond, "Answer a conversation of items", ResponsesRequest),
        ApiRoute("POST", "/responses", respond),
        ApiRoute("POST", "/v1/embeddings", embeddings, "Vectors of texts", EmbeddingsRequest),
        ApiRoute("GET", "/v1/responses/{name}", stored),
        ApiRoute("DELETE", "/v1/responses/{name}", stored),
        ApiRoute("GET", "/models", models),
        ApiRoute("GET", "/models/{name:path}", model),
        ApiRoute("POST", "/chat/completions", chat),
        *(
            ApiRoute("POST", f"{at}/{kind}/input_tokens", partial(_length, model=model))
            for at in ("", "/v1")
            for kind, model in (("chat/completions", ChatRequest), ("responses", ResponsesRequest))
        ),
    ),
)
