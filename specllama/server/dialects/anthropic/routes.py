"""The Anthropic API's routes."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from specllama.server.dialects.anthropic.request import CountRequest, MessagesRequest
from specllama.server.dialects.anthropic.writer import MessageWriter, error_body
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect


async def messages(api: ApiRequest) -> Response:
    body = await api.body(MessagesRequest)
    body.check_roles(api.header("anthropic-beta"))
    return await api.answer(body, MessageWriter)


async def count_tokens(api: ApiRequest) -> Response:
    body = await api.body(CountRequest)
    body.check_roles(api.header("anthropic-beta"))
    api.check_model(body.model)
    return JSONResponse({"input_tokens": await api.prompt_length(body.chat_input(api.settings.variables))})


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("POST", "/v1/messages", messages, "Answer a conversation", MessagesRequest),
        ApiRoute("POST", "/v1/messages/count_tokens", count_tokens, "The length of its prompt", CountRequest),
    ),
    prefixes=("/v1/messages",),
)
