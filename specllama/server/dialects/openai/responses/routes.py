"""The routes of /v1/responses."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.errors import UsageError
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.responses.writer import ResponseFields, ResponsesWriter, echo_json
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute
from specllama.server.requests import CompletionSpec


class NotStoredError(UsageError):
    http_status = 404


class _KeptResponse(Response):
    """A response whose items are kept even if the client disconnects before its end."""

    def __init__(self, response: Response, writer: ResponsesWriter) -> None:
        super().__init__(media_type=response.media_type)
        self._response, self._writer = response, writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._writer.keep_items()


async def respond(api: ApiRequest) -> Response:
    recent, owner = api.recent_items, api.owner
    body = await api.body(ResponsesRequest, partial(recent.resolved, owner))
    api.check_model(body.model)
    request = body.generation(api.settings.sampling, api.settings.variables)
    api.log_chat(request)
    fields = ResponseFields(
        body.model or api.service.name,
        echo_json(body.echo(api.settings.sampling)),
        body.request_tools.names,
        bool(body.speculation.trace),
        body.timings_per_token,
        body.return_progress,
        body.speculation.enabled,
        body.ignored_fields,
        partial(recent.add, owner) if body.store else lambda _: None,
    )
    writer = ResponsesWriter(fields)
    specs = [CompletionSpec(request, 0, True, body.shown_reasoning, body.limits.fields)]
    return _KeptResponse(await api.answer(specs, writer, body), writer)


async def stored(api: ApiRequest) -> Response:
    """Raises NotStoredError."""
    id_ = str(api.path_params["name"])[:80]
    raise NotStoredError(
        f"there is no response {id_!r}: responses are not stored here, they are only sent to whoever asks"
    )


ROUTES = (
    ApiRoute("POST", "/v1/responses", respond, "Answer a conversation of items", ResponsesRequest),
    ApiRoute("POST", "/responses", respond),
    ApiRoute("GET", "/v1/responses/{name}", stored),
    ApiRoute("DELETE", "/v1/responses/{name}", stored),
)
