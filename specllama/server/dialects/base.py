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
from specllama.client.model_info import LoadInfo
from specllama.server.dialects.fields import Model, checked
from specllama.server.dialects.writer import DialectWriter
from specllama.server.http.body import BodyReader
from specllama.server.http.errors import ErrorBody, ForbiddenError
from specllama.server.models import ListedModel, ModelPool
from specllama.server.requests import CompletionSpec
from specllama.server.response import Limits, StreamingResponse
from specllama.server.service import Service
from specllama.server.supervisor import Say, Supervisor


class ApiRequest:
    """One HTTP request, and the operations of its endpoint. models: of the server. say: gets lines for the
    operator. bodies: reads the bodies of all requests.

    It is about one model: the one that `check_model` or the query `?model=` names, else the one in memory.
    """

    def __init__(self, http: Request, models: ModelPool, say: Say, bodies: BodyReader) -> None:
        self._http, self._say, self._bodies = http, say, bodies
        self.models, self.settings = models, models.settings
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        """The model of this request. Raises NotFoundError."""
        if self._service is None:
            self.check_model(None)
        assert self._service is not None
        return self._service

    @property
    def supervisor(self) -> Supervisor:
        """The engine of the model; its queries load the model, and keep it in memory until they are answered.
        Raises NotFoundError.
        """
        return self.service.supervisor

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
    def administers(self) -> bool:
        """Whether it may do what others notice, such as unloading a model."""
        return not self.settings.keys or bool(self._http.scope.get("specllama.administers"))

    def header(self, name: str) -> str:
        """A header of the request, with commas between its values; "" where there is none."""
        return ",".join(self._http.headers.getlist(name))

    @property
    def path_params(self) -> Mapping[str, Any]:
        return self._http.path_params

    @property
    def query_params(self) -> Mapping[str, str]:
        return self._http.query_params

    async def body(self, model: type[Model]) -> Model:
        """The body, parsed and checked as this model. Raises UsageError, which names the field."""
        found = await self._bodies.read(self._http, partial(checked, model), self.settings.client_seconds)
        await self.models.look_up(getattr(found, "model", None))
        return found

    def check_model(self, name: str | None) -> None:
        """Make this request one about the model that the field `model` of its body names. None: the one that
        the query names, else the one in memory. Raises NotFoundError for one that is not served.
        """
        self._service = self.models.service(self.query_params.get("model") if name is None else name)

    async def find_model(self, name: str | None) -> None:
        """`check_model` for a name that is not the field `model` of a body."""
        await self.models.look_up(name)
        self.check_model(name)

    async def list_models(self) -> list[ListedModel]:
        """All models: those in memory first, then the others on disk, then those that are only known."""
        return await self.models.listed()

    async def load_model(self) -> LoadInfo:
        """Wait until the model is in memory. Returns its description. Raises what loading it raises."""
        await self.supervisor.client()
        return self.supervisor.info

    def keep_model(self, seconds: float | None) -> None:
        """Unload the model when nobody has used it for so many seconds, None for never. No effect on the one
        model of a server that holds it alone, and where the key may not do that: clients send such times
        without being told to.
        """
        if self.administers:
            self.models.keep(self.service, seconds)

    def unload_model(self) -> None:
        """Unload the model as soon as nobody uses it. Raises ForbiddenError for a key that may not do that,
        UsageError for a model that the server holds alone.
        """
        self.check_administers()
        self.models.unload(self.service)

    def check_administers(self) -> None:
        """Raises ForbiddenError for a key that may not unload models."""
        if not self.administers:
            raise ForbiddenError("this key may not unload models: others use them too")

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

        They wait until the model is in memory. memory: whether to draft from earlier texts of this client,
        and later ones from this text. place: see Service.start. Raises BusyError, ResourceError; the response
        raises what loading raises.
        """
        owned = [replace(spec, request=self._owned(spec.request, memory)) for spec in specs]
        job = self.service.start(owned, n, place, getattr(self._http.state, "body_bytes", 0))
        return StreamingResponse(
            job, writer, stream, Limits(self.settings.seconds, self.settings.client_seconds)
        )

    def _owned(self, request: protocol.Generate, memory: bool) -> protocol.Generate:
        """The request with what does not depend on its body. memory: see `generate`."""
        settings, infill = self.settings, request.infill
        if infill is not None:
            infill = replace(infill, suffix_first=settings.spm_infill)
        return replace(
            request, owner=self.owner, memory=memory, share_cache=settings.share_cache, infill=infill
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
