"""What the server needs of an API: its routes, the shape of its errors, and the paths that belong to it.

An endpoint gets an `ApiRequest`: the one place where the routes of all APIs read bodies, check model names
and start generations.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from specllama.client import protocol
from specllama.errors import NotFoundError
from specllama.server.dialects.fields import Model, checked
from specllama.server.dialects.writer import DialectWriter
from specllama.server.http.body import BodyReader
from specllama.server.http.errors import ErrorBody
from specllama.server.requests import CompletionSpec
from specllama.server.response import Limits, StreamingResponse
from specllama.server.service import Service
from specllama.server.supervisor import Say


class ApiRequest:
    """One HTTP request, and the operations of its endpoint. say: gets lines for the operator. bodies: reads
    the bodies of all requests.
    """

    def __init__(self, http: Request, service: Service, say: Say, bodies: BodyReader) -> None:
        self._http, self._say, self._bodies = http, say, bodies
        self.service, self.settings, self.supervisor = service, service.settings, service.supervisor

    @property
    def id(self) -> str:
        """The request's id, as in its response's headers and in the log."""
        found: str = self._http.scope.get("specllama.id", "")
        return found

    @property
    def owner(self) -> str:
        """Whose request it is: a name, not secret, of its API key; "" where the server has none."""
        found: str = self._http.scope.get("specllama.owner", "")
        return found

    @property
    def path_params(self) -> Mapping[str, Any]:
        return self._http.path_params

    @property
    def query_params(self) -> Mapping[str, str]:
        return self._http.query_params

    async def body(self, model: type[Model]) -> Model:
        """The body, parsed and checked as this model. Raises UsageError, which names the field."""
        return await self._bodies.read(self._http, partial(checked, model), self.settings.client_seconds)

    def check_model(self, name: str | None) -> None:
        """Raises NotFoundError for a model that is not served. None: the served one."""
        if name is not None and not self.settings.serves(name):
            served = ", ".join(self.settings.shown_names)
            raise NotFoundError(
                f"there is no model {name!r} here, this server has {served}", details={"model": name}
            )

    def say(self, text: str) -> None:
        """A line about this request for the operator."""
        self._say(f"{self.id} {text}")

    def log_prompt(self, prompt: Any) -> None:
        """Log a prompt if the operator wants that."""
        if self.settings.log_prompts:
            self.say(f"prompt {json.dumps(prompt)}")

    async def prompt_length(self, request: protocol.Generate) -> int:
        """Tokens of the prompt of a request with messages. Raises what generating would raise for it."""
        messages = request.messages or []
        found = await self.supervisor.query(
            lambda id_: protocol.CountTokens(id_, messages, request.variables, request.prefix, request.tools),
            protocol.TokenCount,
        )
        return found.n

    async def generate(
        self,
        specs: Sequence[CompletionSpec],
        writer: DialectWriter,
        *,
        n: int = 1,
        stream: bool = False,
        memory: bool = True,
        place: str = "",
    ) -> Response:
        """Start n texts of each spec; the response writes them as they are generated.

        memory: whether to draft from earlier texts of this client, and later ones from this text. place: see
        Service.start. Raises BusyError, EngineDiedError, ResourceError.
        """
        owned = [
            replace(
                spec,
                request=replace(
                    spec.request, owner=self.owner, memory=memory, share_cache=self.settings.share_cache
                ),
            )
            for spec in specs
        ]
        job = await self.service.start(owned, n, place)
        return StreamingResponse(
            job, writer, stream, Limits(self.settings.seconds, self.settings.client_seconds)
        )


Endpoint = Callable[[ApiRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One operation. summary: for the OpenAPI document, "" leaves it out there. body: the model of request
    bodies, None for no body. open: needs no API key.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str = ""
    body: type[BaseModel] | None = None
    open: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API. prefixes: paths below which all errors have its shape, also those of the middleware and of
    unknown routes.
    """

    error_body: ErrorBody
    routes: tuple[ApiRoute, ...] = ()
    prefixes: tuple[str, ...] = ()
