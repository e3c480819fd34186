"""The OpenAI API's routes."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from specllama.server.dialects.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.openai.chat import ChatWriter
from specllama.server.dialects.openai.chat_request import ChatRequest
from specllama.server.dialects.openai.completions import CompletionWriter
from specllama.server.dialects.openai.completions_request import CompletionRequest
from specllama.server.dialects.openai.errors import error_body
from specllama.server.dialects.openai.models import model_entry, model_list
from specllama.server.dialects.openai.sampling_fields import SamplingFields
from specllama.server.dialects.openai.writer import ResponseOptions
from specllama.server.requests import CompletionSpec


async def chat(api: ApiRequest) -> Response:
    wanted = await api.body(ChatRequest)
    api.check_model(wanted.model)
    request = wanted.generation(api.settings.sampling, api.settings.variables)
    api.log_prompt(request.messages)
    writer = ChatWriter(_options(api, wanted, wanted.logprobs))
    specs = [CompletionSpec(request, splits=True)]
    return await api.generate(
        specs, writer, n=wanted.n, stream=wanted.stream, memory=wanted.speculation.memory
    )


async def completions(api: ApiRequest) -> Response:
    wanted = await api.body(CompletionRequest)
    api.check_model(wanted.model)
    requests = wanted.generations(api.settings.sampling)
    api.log_prompt(wanted.prompt)
    writer = CompletionWriter(_options(api, wanted, wanted.logprobs is not None))
    specs = [CompletionSpec(request, i) for i, request in enumerate(requests)]
    return await api.generate(
        specs, writer, n=wanted.n, stream=wanted.stream, memory=wanted.speculation.memory
    )


async def models(api: ApiRequest) -> Response:
    return JSONResponse(model_list(api.supervisor.loaded, api.settings.shown_names, api.service.created))


async def model(api: ApiRequest) -> Response:
    name = api.path_params["name"]
    api.check_model(name)
    return JSONResponse(model_entry(api.supervisor.loaded, name, api.service.created))


def _options(api: ApiRequest, wanted: SamplingFields, logprobs: bool) -> ResponseOptions:
    return ResponseOptions(
        model=wanted.model or api.settings.name,
        logprobs=logprobs,
        usage_chunk=wanted.stream_options.include_usage,
        trace=wanted.speculation.trace,
        speculate=wanted.speculation.enabled,
    )


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/v1/models", models, "The models that are served"),
        ApiRoute("GET", "/v1/models/{name:path}", model, "One model"),
        ApiRoute("POST", "/v1/chat/completions", chat, "Answer a conversation", ChatRequest),
        ApiRoute("POST", "/v1/completions", completions, "Continue a prompt", CompletionRequest),
    ),
)
