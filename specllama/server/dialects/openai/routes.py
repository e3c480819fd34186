"""The OpenAI API's routes. llama-server has them without /v1 too, and counts the tokens of a prompt."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from specllama.server.dialects.openai.chat import ChatRequest, ChatWriter
from specllama.server.dialects.openai.completions import CompletionRequest, CompletionWriter
from specllama.server.dialects.openai.models import model_entry, model_list
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.responses.routes import ROUTES as RESPONSES
from specllama.server.dialects.openai.writer import ResponseOptions
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.shared.openai_errors import error_body
from specllama.server.dialects.shared.sampling_fields import SamplingFields
from specllama.server.models import listed
from specllama.server.requests import CompletionSpec


async def chat(api: ApiRequest) -> Response:
    body = await api.body(ChatRequest)
    api.check_model(body.model)
    _set_defaults(api, body)
    request = body.generation(api.settings.sampling, api.settings.variables)
    api.log_chat(request)
    writer = ChatWriter(_options(api, body, body.n_logprobs is not None))
    specs = [CompletionSpec(request, 0, True, body.shown_reasoning, body.limits.fields)]
    return await api.answer(specs, writer, body, n=body.n)


async def completions(api: ApiRequest) -> Response:
    body = await api.body(CompletionRequest)
    api.check_model(body.model)
    _set_defaults(api, body)
    requests = body.generations(api.settings.sampling)
    api.log_prompt(body.prompt)
    writer = CompletionWriter(_options(api, body, body.n_logprobs is not None))
    specs = [CompletionSpec(one, i, fields=body.limits.fields) for i, one in enumerate(requests)]
    return await api.answer(specs, writer, body, n=body.n)


async def models(api: ApiRequest) -> Response:
    """The models on disk; with ?known=true also models that are only known."""
    known = api.query_params.get("known", "").lower() in ("1", "true", "yes")
    listing = await api.list_models()
    shown = [one for one in listing if known or one.on_disk] or listing[:1]
    return JSONResponse(model_list(shown, api.models.fits if known else lambda _: None))


async def model(api: ApiRequest) -> Response:
    name = api.path_params["name"]
    await api.find_model(name)
    return JSONResponse(model_entry(listed(api.service, name)))


async def chat_length(api: ApiRequest) -> Response:
    return await _length(api, await api.body(ChatRequest))


async def responses_length(api: ApiRequest) -> Response:
    return await _length(api, await api.body(ResponsesRequest))


async def _length(api: ApiRequest, body: ChatRequest | ResponsesRequest) -> Response:
    api.check_model(body.model)
    body.generation(api.settings.sampling, api.settings.variables)  # raises the same errors
    n = await api.prompt_length(body.chat_input(api.settings.variables))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n})


def _options(api: ApiRequest, body: SamplingFields, logprobs: bool) -> ResponseOptions:
    return ResponseOptions(
        model=body.model or api.service.name,
        logprobs=logprobs,
        usage_chunk=body.stream_options.include_usage,
        trace=bool(body.speculation.trace),
        timings=body.timings_per_token,
        progress=body.return_progress,
        verbose=bool(body.verbose),
        speculate=body.speculation.enabled,
        ignored=body.ignored_fields,
    )


def _set_defaults(api: ApiRequest, body: SamplingFields) -> None:
    """Set the field that has a default of the server."""
    if body.verbose is None:
        body.verbose = api.settings.verbose


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/v1/models", models, "The models that are served"),
        ApiRoute("GET", "/v1/models/{name:path}", model, "One model"),
        ApiRoute("POST", "/v1/chat/completions", chat, "Answer a conversation", ChatRequest),
        ApiRoute("POST", "/v1/completions", completions, "Continue a prompt", CompletionRequest),
        *RESPONSES,
        ApiRoute("GET", "/models", models),
        ApiRoute("GET", "/models/{name:path}", model),
        ApiRoute("POST", "/chat/completions", chat),
        *(ApiRoute("POST", f"{at}/chat/completions/input_tokens", chat_length) for at in ("", "/v1")),
        *(ApiRoute("POST", f"{at}/responses/input_tokens", responses_length) for at in ("", "/v1")),
    ),
)
