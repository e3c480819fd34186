"""The interface between the server and a dialect: routes, error shape, path prefixes.

An endpoint gets an `ApiRequest`, through which the routes of all APIs read bodies, resolve model names and
start generations.
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
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.conversation import ReadConversation
from specllama.server.dialects.shared.fields import Model, checked
from specllama.server.dialects.shared.generating_body import GeneratingBody
from specllama.server.dialects.shared.recent_items import RecentItems
from specllama.server.dialects.shared.tools import RequestTools
from specllama.server.events import DialectWriter
from specllama.server.http.body import BodyReader
from specllama.server.http.errors import ErrorBody, ForbiddenError
from specllama.server.models import ListedModel, ModelPool
from specllama.server.requests import CompletionSpec
from specllama.server.response import Limits, StreamingResponse
from specllama.server.service import DiskScopes, Service
from specllama.server.supervisor import Say, Supervisor

_MAX_NOTED = 1024  # fields whose names are kept


class Shared:
    """State shared by all requests. bodies: reads request bodies. noted: ignored fields already logged.
    scopes: access to prompts on disk.
    """

    def __init__(self, scopes: DiskScopes) -> None:
        self.scopes = scopes
        self.bodies, self.recent_items = BodyReader(), RecentItems()
        self.noted = set[str]()


class ApiRequest:
    """One HTTP request, and the operations available to its endpoint. models: of the server. say: gets lines
    for the operator. recent_items: items of the latest answers of /v1/responses.

    It refers to one model: the one named by `check_model` or the query `?model=`, otherwise the one in
    memory.
    """

    def __init__(self, http: Request, models: ModelPool, say: Say, shared: Shared) -> None:
        self._http, self._say, self._shared = http, say, shared
        self.models, self.settings = models, models.settings
        self.recent_items = shared.recent_items
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
        """The engine of the model; queries load the model and keep it loaded until they are answered.
        Raises NotFoundError.
        """
        return self.service.supervisor

    @property
    def id(self) -> str:
        """The request's id, as in the response headers and the log."""
        id_: str = self._http.scope.get("specllama.id", "")
        return id_

    @property
    def owner(self) -> str:
        """The name, not secret, of the request's API key; "" on a server without keys."""
        owner: str = self._http.scope.get("specllama.owner", "")
        return owner

    @property
    def slot_folder(self) -> str | None:
        """See DiskScopes.folder."""
        return self._shared.scopes.folder(self.owner)

    @property
    def administers(self) -> bool:
        """Whether the request may do what affects others, such as unloading a model."""
        return not self.settings.keys or bool(self._http.scope.get("specllama.administers"))

    def header(self, name: str) -> str:
        """A header of the request, repeated values joined by commas; "" if absent."""
        return ",".join(self._http.headers.getlist(name))

    @property
    def path_params(self) -> Mapping[str, Any]:
        return self._http.path_params

    @property
    def query_params(self) -> Mapping[str, str]:
        return self._http.query_params

    async def body(
        self, model: type[Model], prepared: Callable[[JsonObject], JsonObject] = lambda data: data
    ) -> Model:
        """The body, parsed and validated as this model; logs fields without effect. prepared: applied
        before validation. Raises UsageError, which names the field.
        """
        bodies, seconds = self._shared.bodies, self.settings.client_seconds
        body = await bodies.read(self._http, lambda data: checked(model, prepared(data)), seconds)
        self._note(body.ignored_fields)
        for read in (getattr(body, "turns", None), getattr(body, "request_tools", None)):
            if isinstance(read, (ReadConversation, RequestTools)) and read.note:
                self.say(read.note)
        await self.models.look_up(getattr(body, "model", None) or None)
        return body

    def _note(self, ignored: Sequence[str]) -> None:
        """Log fields without effect, each once."""
        noted = self._shared.noted
        new = [name for name in ignored if name not in noted]
        if new and len(noted) < _MAX_NOTED:
            noted.update(new)
            self.say(f"no effect here: {json.dumps(new)[1:-1]}")

    def check_model(self, name: str | None, exact: bool = False) -> None:
        """Select the model named by the body's field `model`. None and "" select the one named by the query,
        otherwise the one in memory. exact: require this name, also on a server of a single model that accepts
        others. Raises NotFoundError for a model that is not served.
        """
        self._service = self.models.service(name or self.query_params.get("model") or None, exact)

    async def find_model(self, name: str | None) -> None:
        """`check_model` for a name from elsewhere than the field `model`, which must be exact."""
        await self.models.look_up(name or None)
        self.check_model(name, exact=True)

    async def list_models(self) -> list[ListedModel]:
        """All models: loaded ones first, then others on disk, then models that are only known."""
        return await self.models.listed()

    async def load_model(self) -> LoadInfo:
        """Load the model. Returns its description. Raises errors of the load."""
        await self.supervisor.client()
        return self.supervisor.info

    def keep_model(self, keep_alive: float | None) -> None:
        """Set the model's idle time in seconds, negative for ever; None changes nothing. Has no effect on
        a server of a single model, nor for a key that may not unload: clients send such times by default.
        """
        if keep_alive is not None and self.administers:
            self.models.keep(self.service, keep_alive if keep_alive >= 0 else None)

    def unload_model(self) -> None:
        """Unload the model as soon as it is idle. Raises ForbiddenError for a key that may not,
        UsageError on a server of a single model.
        """
        self.check_administers()
        self.models.unload(self.service)

    def pull_model(self, name: str, stop: bool) -> None:
        """Start or stop the download of a known model. Raises ForbiddenError for a key that may not, and
        errors of ModelPool.pull.
        """
        self.check_administers("download")
        self.models.pull(name, stop)

    def check_administers(self, what: str = "unload") -> None:
        """Raises ForbiddenError for a key that may not unload or download models."""
        if not self.administers:
            raise ForbiddenError(f"this key may not {what} models: others use them too")

    def say(self, text: str) -> None:
        """A line about this request for the operator."""
        self._say(f"{self.id} {text}")

    def log_prompt(self, prompt: Any) -> None:
        """Log a prompt if the settings ask for it."""
        if self.settings.log_prompts:
            self.say(f"prompt {json.dumps(prompt)}")

    def log_chat(self, request: protocol.Generate) -> None:
        """Log the messages of a chat if the operator wants that."""
        if request.chat is not None:
            self.log_prompt(request.chat.messages)

    async def prompt_length(self, chat: protocol.ChatInput) -> int:
        """Number of tokens of the prompt of a chat. Raises the errors that generating would raise."""
        question = partial(protocol.CountTokens, chat=chat)
        count = await self.supervisor.query(question, protocol.TokenCount)
        return count.n

    async def answer(
        self,
        specs: Sequence[CompletionSpec],
        writer: DialectWriter,
        body: GeneratingBody,
        *,
        n: int = 1,
        supersedes: str = "",
    ) -> Response:
        """Start n texts of each spec; the response streams them or sends them whole, as the body asks.

        They wait until the model is loaded. supersedes: see Service.start. Raises BusyError, ResourceError;
        the response raises errors of the load.
        """
        info = self.supervisor.loaded
        if info is not None and (body.num_ctx or 0) > info.n_ctx:
            self.say(f"num_ctx {body.num_ctx} is above the context of {info.n_ctx} tokens, which stays")
        owned = [replace(spec, request=self._owned(spec.request, body)) for spec in specs]
        job = self.service.start(owned, n, supersedes, getattr(self._http.state, "body_bytes", 0))
        self.keep_model(body.keep_alive)
        return StreamingResponse(
            job, writer, body.stream, Limits(self.settings.seconds, self.settings.client_seconds)
        )

    @property
    def disk_scope(self) -> str:
        """See protocol.Generate."""
        return self._shared.scopes.of(self.owner)

    def _owned(self, request: protocol.Generate, body: GeneratingBody) -> protocol.Generate:
        """The request with the fields that do not depend on its API."""
        settings, prompt, reuse = self.settings, request.prompt, body.cache.reuse
        if isinstance(prompt, protocol.Infill):
            prompt = replace(prompt, suffix_first=settings.spm_infill)
        return replace(
            request,
            owner=self.owner,
            memory=body.speculation.memory,
            share_cache=settings.share_cache,
            prompt=prompt,
            disk_scope=self.disk_scope if reuse else "",
            reuse=reuse,
            kept=body.kept and reuse,
        )


Endpoint = Callable[[ApiRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One operation. summary: for the OpenAPI document, "" omits it. body: model of the request body,
    None without one. open: needs no API key.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str = ""
    body: type[BaseModel] | None = None
    open: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API. prefixes: paths below which all errors have its shape, including those of the middleware
    and of unknown routes.
    """

    error_body: ErrorBody
    routes: tuple[ApiRoute, ...] = ()
    prefixes: tuple[str, ...] = ()
