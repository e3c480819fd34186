"""What the server needs of an API: its routes, the shape of its errors, and the paths that belong to it.

An endpoint gets an `ApiRequest`: the one place where the routes of all APIs read bodies, check model names
and start generations.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from specllama.client import protocol
from specllama.client.model_info import LoadInfo
from specllama.server.dialects.conversation import ReadConversation
from specllama.server.dialects.fields import Model, checked
from specllama.server.dialects.recent_items import RecentItems
from specllama.server.dialects.writer import DialectWriter
from specllama.server.disk_scopes import DiskScopes
from specllama.server.http.body import BodyReader
from specllama.server.http.errors import ErrorBody, ForbiddenError
from specllama.server.models import ListedModel, ModelPool
from specllama.server.requests import CompletionSpec
from specllama.server.response import Limits, StreamingResponse
from specllama.server.service import Service
from specllama.server.supervisor import Say, Supervisor

_MAX_NOTED = 1024  # fields whose names are kept


class MemoryChoice(Protocol):
    """What a body says of speculation."""

    memory: bool


class GeneratingBody(Protocol):
    """The fields of bodies that ask for texts, in all APIs. kept: whether the prompt and the text may be
    written to the disk. keep_alive: seconds, negative for ever.
    """

    @property
    def stream(self) -> bool: ...

    @property
    def speculation(self) -> MemoryChoice: ...

    @property
    def kept(self) -> bool: ...

    @property
    def keep_alive(self) -> float | None: ...

    @property
    def num_ctx(self) -> int | None: ...


class Shared:
    """What all requests share. bodies: reads their bodies. noted: fields that were said to have no effect.
    scopes: whose prompts on disk are whose.
    """

    def __init__(self, scopes: DiskScopes) -> None:
        self.scopes = scopes
        self.bodies, self.recent_items = BodyReader(), RecentItems()
        self.noted = set[str]()


class ApiRequest:
    """One HTTP request, and the operations of its endpoint. models: of the server. say: gets lines for the
    operator. recent_items: items of the latest answers of /v1/responses.

    It is about one model: the one that `check_model` or the query `?model=` names, else the one in memory.
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
    def slot_folder(self) -> str | None:
        """See DiskScopes.folder."""
        return self._shared.scopes.folder(self.owner)

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

    async def body(
        self, model: type[Model], prepared: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: data
    ) -> Model:
        """The body, parsed and checked as this model; what of it has no effect is logged. prepared: applied
        to it before the check. Raises UsageError, which names the field.
        """
        bodies, seconds = self._shared.bodies, self.settings.client_seconds
        found = await bodies.read(self._http, lambda data: checked(model, prepared(data)), seconds)
        self._note(found.ignored_fields)
        turns = getattr(found, "turns", None)
        if isinstance(turns, ReadConversation) and turns.note:
            self.say(turns.note)
        await self.models.look_up(getattr(found, "model", None) or None)
        return found

    def _note(self, ignored: Sequence[str]) -> None:
        """Log fields that have no effect, each once."""
        noted = self._shared.noted
        new = [name for name in ignored if name not in noted]
        if new and len(noted) < _MAX_NOTED:
            noted.update(new)
            self.say(f"no effect here: {json.dumps(new)[1:-1]}")

    def check_model(self, name: str | None, exact: bool = False) -> None:
        """Make this request one about the model that the field `model` of its body names. None and "": the
        one that the query names, else the one in memory. exact: whether it must have that name, also where
        the server holds one model that answers to others. Raises NotFoundError for one that is not served.
        """
        self._service = self.models.service(name or self.query_params.get("model") or None, exact)

    async def find_model(self, name: str | None) -> None:
        """`check_model` for a name that is not the field `model` of a body, and must be exact."""
        await self.models.look_up(name or None)
        self.check_model(name, exact=True)

    async def list_models(self) -> list[ListedModel]:
        """All models: those in memory first, then the others on disk, then those that are only known."""
        return await self.models.listed()

    async def load_model(self) -> LoadInfo:
        """Wait until the model is in memory. Returns its description. Raises what loading it raises."""
        await self.supervisor.client()
        return self.supervisor.info

    def keep_model(self, keep_alive: float | None) -> None:
        """Unload the model when nobody has used it for so many seconds, never where they are negative; None
        changes nothing. No effect on the one model of a server that holds it alone, and where the key may not
        do that: clients send such times without being told to.
        """
        if keep_alive is not None and self.administers:
            self.models.keep(self.service, keep_alive if keep_alive >= 0 else None)

    def unload_model(self) -> None:
        """Unload the model as soon as nobody uses it. Raises ForbiddenError for a key that may not do that,
        UsageError for a model that the server holds alone.
        """
        self.check_administers()
        self.models.unload(self.service)

    def pull_model(self, name: str, stop: bool) -> None:
        """Begin to download a known model, or stop that. Raises ForbiddenError for a key that may not, and
        what ModelPool.pull raises.
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
        """Log a prompt if the operator wants that."""
        if self.settings.log_prompts:
            self.say(f"prompt {json.dumps(prompt)}")

    def log_chat(self, request: protocol.Generate) -> None:
        """Log the messages of a chat if the operator wants that."""
        if request.chat is not None:
            self.log_prompt(request.chat.messages)

    async def prompt_length(self, chat: protocol.ChatInput) -> int:
        """Tokens of the prompt of a chat. Raises what generating would raise for it."""
        question = partial(protocol.CountTokens, chat=chat)
        found = await self.supervisor.query(question, protocol.TokenCount)
        return found.n

    async def answer(
        self,
        specs: Sequence[CompletionSpec],
        writer: DialectWriter,
        body: GeneratingBody,
        *,
        n: int = 1,
        place: str = "",
    ) -> Response:
        """Start n texts of each spec; the response writes them as they are generated, as the body wants it.

        They wait until the model is in memory. place: see Service.start. Raises BusyError, ResourceError; the
        response raises what loading raises.
        """
        info, memory = self.supervisor.loaded, body.speculation.memory
        if info is not None and (body.num_ctx or 0) > info.n_ctx:
            self.say(f"num_ctx {body.num_ctx} is above the context of {info.n_ctx} tokens, which stays")
        owned = [replace(spec, request=self._owned(spec.request, memory, body.kept)) for spec in specs]
        job = self.service.start(owned, n, place, getattr(self._http.state, "body_bytes", 0))
        self.keep_model(body.keep_alive)
        return StreamingResponse(
            job, writer, body.stream, Limits(self.settings.seconds, self.settings.client_seconds)
        )

    @property
    def disk_scope(self) -> str:
        """See protocol.Generate."""
        return self._shared.scopes.of(self.owner)

    def _owned(self, request: protocol.Generate, memory: bool, kept: bool) -> protocol.Generate:
        """The request with what does not depend on its API. memory, kept: see `protocol.Generate`."""
        settings, prompt = self.settings, request.prompt
        if isinstance(prompt, protocol.Infill):
            prompt = replace(prompt, suffix_first=settings.spm_infill)
        return replace(
            request,
            owner=self.owner,
            memory=memory,
            share_cache=settings.share_cache,
            prompt=prompt,
            disk_scope=self.disk_scope,
            kept=kept,
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
