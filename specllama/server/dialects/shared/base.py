"""The interface between the server and a dialect: routes, error shape, path prefixes.

An endpoint gets an `ApiRequest`, through which the routes of all APIs read bodies, resolve model names and
start generations.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from specllama.client import protocol
from specllama.client.model_info import LoadInfo
from specllama.config.options import as_flag
from specllama.config.text_file import MAX_BYTES
from specllama.json_types import JsonObject
from specllama.models.projectors import no_projector
from specllama.models.resolve import Library
from specllama.server.dialects.shared.conversation import ReadConversation
from specllama.server.dialects.shared.fields import Model, checked
from specllama.server.dialects.shared.image_parts import BodyImages, ImageReader
from specllama.server.dialects.shared.sampling_fields import GenerationFields
from specllama.server.dialects.shared.tools import RequestTools
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter
from specllama.server.events import to_json
from specllama.server.http.body import IMAGE_BYTES, BodyReader
from specllama.server.http.errors import ClientGoneError, ErrorBody, HttpError
from specllama.server.models import ModelPool
from specllama.server.requests import RequestStream, StreamingResponse, disconnected
from specllama.server.service import DiskScopes, Service
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say, Supervisor

_MAX_NOTED = 1024  # fields whose names are kept


KEPT_BYTES = 16 * 1024 * 1024  # of JSON, of all answers
_MAX_ITEM = 1024 * 1024  # bytes of JSON
_MAX_FOUND = 4 * 1024 * 1024  # bytes of all items that one request refers to


class RecentItems:
    """Holds the latest items in memory, each for its owner alone, for clients that send references to them,
    as the AI SDK does by default. most: bytes of JSON. Thread-safe.
    """

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most, self._size = most, 0
        self._items: dict[tuple[str, str], bytes] = {}  # the one used last at the end
        self._lock = threading.Lock()

    def add(self, owner: str, items: Iterable[Mapping[str, Any]]) -> None:
        """Store items, without the logprobs of their tokens."""
        written = [((owner, item["id"]), to_json(_plain(item))) for item in items]
        with self._lock:
            for key, data in written:
                self._size += len(data) - len(self._items.pop(key, b""))
                self._items[key] = data
                if len(data) > _MAX_ITEM:
                    self._drop(key)
            while self._size > self._most:
                self._drop(next(iter(self._items)))

    def _drop(self, key: tuple[str, str]) -> None:
        self._size -= len(self._items.pop(key))

    def find(self, owner: str, id_: str) -> bytes | None:
        """The JSON of an item, None if it is not held."""
        with self._lock:
            item = self._items.pop((owner, id_), None)
            if item is not None:
                self._items[owner, id_] = item
            return item

    def resolved(self, owner: str, data: JsonObject) -> JsonObject:
        """A request whose references are replaced by the items, each once; unknown references remain."""
        items = data.get("input")
        if not isinstance(items, list):
            return data
        refers = [i for i, item in enumerate(items) if is_reference(item)]
        seen, left, put = set[str](), _MAX_FOUND, list(items)
        for i in refers:
            id_ = items[i].get("id")
            if not isinstance(id_, str) or id_ in seen or (stored := self.find(owner, id_)) is None:
                continue
            seen.add(id_)
            left -= len(stored)
            if left < 0:
                break
            put[i] = json.loads(stored)
        return data | {"input": put} if refers else data


def is_reference(item: Any) -> bool:
    """Whether an item of a request refers to another; its type may be omitted."""
    if not isinstance(item, Mapping):
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


def _plain(item: Mapping[str, Any]) -> JsonObject:
    parts = item.get("content")
    if not isinstance(parts, list):
        return dict(item)
    shown = [{name: part[name] for name in part if name != "logprobs"} for part in parts]
    return {**item, "content": shown}


class Shared:
    """State shared by all requests. bodies: reads request bodies. images: decodes images. noted: ignored
    fields already logged. scopes: access to prompts on disk. advice: how models would read images, by path.
    """

    def __init__(self, scopes: DiskScopes, settings: ServerSettings) -> None:
        self.scopes, self.images = scopes, ImageReader(settings.allow_image_urls)
        self.bodies, self.recent_items = BodyReader(), RecentItems()
        self.noted = set[str]()
        self.advice: dict[str, str] = {}


class ApiRequest:
    """One HTTP request, and the operations available to its endpoint. models: of the server. say: gets lines
    for the operator. recent_items: items of the latest answers of /v1/responses. scopes: see Shared.

    It refers to one model: that of `check_model` or the query `?model=`, otherwise the one in memory.
    """

    def __init__(self, http: Request, models: ModelPool, say: Say, shared: Shared) -> None:
        self._http, self._say, self._shared = http, say, shared
        self.models, self.settings = models, models.settings
        self.recent_items, self.scopes = shared.recent_items, shared.scopes
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
        """The engine of the model; queries keep it loaded until they are answered. Raises NotFoundError."""
        return self.service.supervisor

    @property
    def id(self) -> str:
        """The request's id, as in the response headers and the log."""
        return str(self._http.scope.get("specllama.id", ""))

    @property
    def owner(self) -> str:
        """The name, not secret, of the request's API key; "" on a server without keys."""
        return str(self._http.scope.get("specllama.owner", ""))

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
        """The body, parsed and validated as this model; logs fields without effect, each once. prepared:
        applied before validation. Raises UsageError, which names the field.
        """
        bodies, seconds = self._shared.bodies, self.settings.client_seconds
        most = IMAGE_BYTES if self.models.has_vision else MAX_BYTES
        body = await bodies.read(self._http, lambda data: checked(model, prepared(data)), seconds, most)
        noted = self._shared.noted
        new = [name for name in body.ignored_fields if name not in noted]
        if new and len(noted) < _MAX_NOTED:
            noted.update(new)
            self.say(f"no effect here: {json.dumps(new)[1:-1]}")
        for read in (getattr(body, "turns", None), getattr(body, "request_tools", None)):
            if isinstance(read, (ReadConversation, RequestTools)) and read.note:
                self.say(read.note)
        await self.models.look_up(getattr(body, "model", None) or None)
        return body

    def check_model(self, name: str | None) -> None:
        """Select the model named by the body's field `model`. None and "" select the one named by the query,
        otherwise the one in memory. Raises NotFoundError for a model that is not served.
        """
        self._service = self.models.service(name or self.query_params.get("model") or None)

    async def find_model(self, name: str | None) -> None:
        """`check_model` for a description of the model. Raises also what a load would raise by its header."""
        await self.models.look_up(name or None)
        self.check_model(name)
        if self.service.lease.state == "unloaded":
            await self.models.unloaded(self.service)

    async def load_model(self) -> LoadInfo:
        """Load the model. Returns its description. Raises errors of the load, and of ModelPool.check_kind."""
        await self.models.check_kind(self.service)
        await self.supervisor.client()
        return self.supervisor.info

    def keep_model(self, keep_alive: float | None) -> None:
        """Set the model's idle time in seconds, negative for ever; None changes nothing. Has no effect on
        a server of a single model, nor for a key that may not unload: clients send such times by default.
        """
        if keep_alive is not None and self.administers:
            self.models.keep(self.service, keep_alive if keep_alive >= 0 else None)

    def check_administers(self, what: str = "unload models") -> None:
        """Raises HttpError for a key that may not do what affects others."""
        if not self.administers:
            raise HttpError(403, f"this key may not {what}, which affects others")

    def say(self, text: str) -> None:
        """A line about this request for the operator."""
        self._say(f"{self.id} {text}")

    def log_prompt(self, prompt: Any) -> None:
        if self.settings.log_prompts:
            self.say(f"prompt {json.dumps(prompt, default=vars)}")

    def running(self, answer_id: str) -> RequestStream | None:
        """The request of the same owner whose answer has this id; None if there is none, or it has ended."""
        jobs = (job for service in self.models.services for job in service.jobs)
        return next((j for j in jobs if j.answer_id == answer_id and j.owner == self.owner and j.begun), None)

    async def read_images(self, body: BodyImages, marker: str = "") -> None:
        """Put the images of a body into its prompt, or words in their place for a model that reads text only;
        loads the model if there are any. marker: stands for each, none of which is decoded then. Raises
        FieldError, errors of the load, and what ImageReader raises.
        """
        given = body.given_images
        if not given:
            return
        info = await self.supervisor.load()
        if not info.vision:
            path, advice = info.target.path, self._shared.advice
            if path not in advice:
                error = (await asyncio.to_thread(no_projector, Library(), path)).with_option_names(as_flag)
                advice[path] = f"{error.message}; {error.hint}; or send the message without"
            body.refuse_images(advice[path])
        elif marker:
            body.place_images({one.number: marker for one in given}, ())
        else:
            images = await self._shared.images.read(given, self._image_scope)
            texts = {one.number: image.marker for one, image in zip(given, images, strict=True)}
            body.place_images(texts, images)

    @property
    def _image_scope(self) -> str:
        """Of the images of this key, so that what is kept of another one's is not used for them."""
        return "" if self.settings.share_cache or not self.owner else self.scopes.of(self.owner) or self.owner

    async def prompt_length(self, chat: protocol.ChatInput) -> int:
        """Number of tokens of the prompt of a chat. Raises the errors that generating would raise."""
        question = partial(protocol.CountTokens, chat=chat)
        count = await self.supervisor.query(question, protocol.TokenCount)
        return count.n

    async def embed(self, model: str | None, order: protocol.Embed) -> list[protocol.TextVectors]:
        """What the embedding model makes of the texts of an order, in their order; without any the model is
        loaded. model: as in `check_model`. Raises UsageError for a model that writes texts, what
        Admission.embed raises, ClientGoneError.
        """
        self._service = await self.models.embedder_of(model or self.query_params.get("model") or None)
        self.log_prompt(order.texts)
        if not order.texts:
            await self.load_model()
            return []
        gone, seconds = partial(disconnected, self._http.receive), self.settings.seconds
        made = await self.models.admission.embed(self._service.supervisor, order, gone, seconds)
        if made is None:
            raise ClientGoneError
        for metrics in self._service.metrics.counting(self.owner):
            metrics.embedded.inc(len(made))
            metrics.embedded_tokens.inc(sum(one.n_tokens for one in made))
        return made

    async def answer(
        self, body: GenerationFields, writer: Callable[[AnswerOptions], AnswerWriter]
    ) -> Response:
        """Start the texts that a body asks for; the response streams them or sends them whole.

        They wait until the model is loaded. writer: makes the writer of the answer. Raises FieldError,
        BusyError, ResourceError; the response raises errors of the load.
        """
        self.check_model(body.model or None)
        await self.models.check_writes(self.service)
        await self.read_images(body)
        requests = self._requests(body)
        self.log_prompt(body.logged)
        options = body.answer_options(self.service.name, request_id=self.id)
        made, form = writer(options), (body.n_choices, body.shown_reasoning, body.limits.fields)
        info = self.supervisor.loaded
        if info is not None and body.expected_context > info.n_ctx:
            n = body.expected_context
            self.say(f"num_ctx {n} is above the context of {info.n_ctx} tokens, which stays")
        n_bytes = getattr(self._http.state, "body_bytes", 0)
        job = RequestStream(requests, *form, body.supersedes, n_bytes)
        job.answer_id = made.id
        self.service.start(job)
        self.keep_model(body.keep_alive)
        seconds = self.settings.seconds, self.settings.client_seconds
        return StreamingResponse(job, made, body.stream, *seconds)

    def _requests(self, body: GenerationFields) -> list[protocol.Generate]:
        """The engine's requests, with the fields that do not depend on the API. Raises FieldError."""
        settings, reuse = self.settings, body.cache.reuse
        requests = body.generations(
            settings.sampling,
            settings.variables,
            owner=self.owner,
            memory=body.speculation.memory,
            share_cache=settings.share_cache,
            disk_scope=self.scopes.of(self.owner) if reuse else "",
            reuse=reuse,
            kept=body.kept and reuse,
        )
        for i, one in enumerate(requests):
            if isinstance(one.prompt, protocol.Infill):
                prompt = replace(one.prompt, suffix_first=settings.spm_infill)
                requests[i] = replace(one, prompt=prompt)
        return requests


Endpoint = Callable[[ApiRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """summary: for the OpenAPI document, "" omits it. body: model of the body. open: needs no API key."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str = ""
    body: type[BaseModel] | None = None
    open: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API. prefixes: paths below which all errors have its shape, those of unknown routes too."""

    error_body: ErrorBody
    routes: tuple[ApiRoute, ...] = ()
    prefixes: tuple[str, ...] = ()
