"""The routes of /v1/responses."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.responses import Response

from specllama.errors import UsageError
from specllama.server.dialects.base import ApiRequest, ApiRoute
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.responses.writer import ResponseFields, ResponsesWriter, echo_json
from specllama.server.requests import CompletionSpec

_SHOWN = 10  # types of tools in a line of the log


class NotStoredError(UsageError):
    http_status = 404


async def respond(api: ApiRequest) -> Response:
    body = await api.body(ResponsesRequest)
    api.check_model(body.model)
    tools = body.flat_tools
    request = body.generation(api.settings.sampling, api.settings.variables)
    if tools.dropped:
        api.say(f"left out tools of types that do not run here: {_types(tools.dropped)}")
    api.log_prompt(request.messages)
    fields = ResponseFields(
        body.model or api.service.name,
        echo_json(body.echo(api.settings.sampling)),
        tools.names,
        body.speculation.trace,
        body.timings_per_token,
        body.return_progress,
        body.speculation.enabled,
        body.ignored_fields,
    )
    specs = [CompletionSpec(request, splits=True, fields=body.limits.fields)]
    return await api.answer(specs, ResponsesWriter(fields), body)


async def stored(api: ApiRequest) -> Response:
    """Raises NotStoredError."""
    id_ = str(api.path_params["name"])[:80]
    raise NotStoredError(
        f"there is no response {id_!r}: responses are not stored here, they are only sent to whoever asks"
    )


def _types(found: Sequence[str]) -> str:
    """Types that a client has sent, fit for the log."""
    different = list(dict.fromkeys(found))
    shown = ", ".join(json.dumps(kind[:40])[1:-1] for kind in different[:_SHOWN])
    return f"{shown}, …" if len(different) > _SHOWN else shown


ROUTES = (
    ApiRoute("POST", "/v1/responses", respond, "Answer a conversation of items", ResponsesRequest),
    ApiRoute("GET", "/v1/responses/{name}", stored),
    ApiRoute("DELETE", "/v1/responses/{name}", stored),
)
