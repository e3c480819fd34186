"""What an API is to the rest of the server: routes, the shape of its errors, and the paths that are its own.

An endpoint gets an `ApiRequest`: the one place where the routes of all APIs read bodies, check model names
and start answers.
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

from specllama.errors import NotFoundError
from specllama.server.dialects.fields import Model, checked
from specllama.server.dialects.writer import DialectWriter
from specllama.server.http import body
from specllama.server.http.errors import ErrorBody
from specllama.server.requests import CompletionSpec
from specllama.server.response import Limits, StreamingResponse
from specllama.server.service import Service
from specllama.server.supervisor import Say


class ApiRequest:
    """One HTTP request, and what its endpoint may do for it. say: gets lines for the operator."""

    def __init__(self, http: Request, service: Service, say: Say) -> None:
        self._http, self._say = http, say
        self.service, self.settings, self.supervisor = service, service.settings, service.supervisor

    @property
    def path_params(self) -> Mapping[str, Any]:
        return self._http.path_params

    async def body(self, model: type[Model]) -> Model:
        """The body as this model. Raises UsageError, which names the field."""
        return await body.read(self._http, partial(checked, model), self.settings.client_seconds)

    def check_model(self, name: str | None) -> None:
        """Raises NotFoundError for a model that is not served; None is the one that is."""
        if name is not None and not self.settings.serves(name):
            served = ", ".join(self.settings.shown_names)
            raise NotFoundError(f"there is no model {name!r} here, this server has {served}")

    def log_prompt(self, prompt: Any) -> None:
        """Log a prompt if the operator wants that."""
        if self.settings.log_prompts:
            self._say(f"{self._http.scope['specllama.id']} prompt {json.dumps(prompt)}")

    async def generate(
        self,
        specs: Sequence[CompletionSpec],
        writer: DialectWriter,
        *,
        n: int = 1,
        stream: bool = False,
        memory: bool = True,
    ) -> Response:
        """Start n texts of each spec; the response writes them as they come.

        memory: whether earlier texts of this client may serve as drafts, and this one for later ones. Raises
        BusyError, EngineDiedError, ResourceError.
        """
        owner = self._http.scope.get("specllama.owner", "") if memory else None
        owned = [replace(spec, request=replace(spec.request, owner=owner)) for spec in specs]
        job = await self.service.start(owned, n)
        return StreamingResponse(
            job, writer, stream, Limits(self.settings.seconds, self.settings.client_seconds)
        )


Endpoint = Callable[[ApiRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One operation. summary: for the OpenAPI document, "" leaves it out there. body: what requests must
    hold, None where they need no body. open: no key is needed.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str = ""
    body: type[BaseModel] | None = None
    open: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API. prefixes: paths on which all errors have its shape, also those of middleware and of routes
    that do not exist.
    """

    error_body: ErrorBody
    routes: tuple[ApiRoute, ...] = ()
    prefixes: tuple[str, ...] = ()
