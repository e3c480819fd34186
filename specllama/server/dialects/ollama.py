"""The part of Ollama's API that clients need to chat with a model: bodies, answers, streamed by default, one
JSON object per line, and routes.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from specllama.client import protocol
from specllama.client.model_info import LoadInfo
from specllama.client.protocol import PositionLogprobs
from specllama.clock import running_time
from specllama.core.sampling.params import PARAMETERS, UNTIL_CONTEXT_FULL, UNTIL_STOP, SamplingParams
from specllama.errors import NotFoundError, NotSupportedError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.models.catalogue import ModelDetails
from specllama.server import events
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect, Endpoint
from specllama.server.dialects.shared.chat_fields import (
    ConversationFields,
    Message,
    ThinkingFields,
    conversation_of,
)
from specllama.server.dialects.shared.conversation import MAX_IMAGES, MAX_MESSAGES, ReadConversation
from specllama.server.dialects.shared.embedding import TextList, texts_of
from specllama.server.dialects.shared.fields import (
    WHOLE_ITEMS,
    AtMost,
    FieldError,
    RequestBody,
    as_options,
    supported,
)
from specllama.server.dialects.shared.figures import add_figures, described
from specllama.server.dialects.shared.image_parts import images_of_field
from specllama.server.dialects.shared.sampling_fields import (
    GenerationFields,
    IgnoredLoadOptions,
    KeepAlive,
    ModelName,
    ParameterReader,
    first,
)
from specllama.server.dialects.shared.structured import Format, Restriction
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter
from specllama.server.http.body import MAX_VALUES

Limit = Annotated[int, Field(ge=UNTIL_CONTEXT_FULL, lt=2**31)]


class OllamaOptions(ParameterReader, IgnoredLoadOptions):
    """num_predict: 0 or less for no limit, as in Ollama. top_k: 0 or -1 switch it off. seed: -1 for a random
    one. Options of loads have no effect: they are set when the server is started.
    """

    num_predict: Limit | None = None
    max_tokens: Limit | None = None
    n_predict: Limit | None = None

    path: ClassVar[str] = "options."
    field_names: ClassVar[Mapping[str, str]] = {"json_schema": "format", "max_tokens": "options.num_predict"}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        """Here, since `checked` only examines whole bodies."""
        if not isinstance(data, Mapping):
            return data
        return supported(cls.prepared(data), cls.model_fields, "options.")

    def sampling(self, **more: Any) -> JsonObject:
        limit = first(self.num_predict, self.max_tokens, self.n_predict)
        return super().sampling(max_tokens=UNTIL_STOP if limit is not None and limit <= 0 else limit, **more)


class OllamaRequest(ThinkingFields, GenerationFields):
    """Fields of both routes that generate text.

    think: whether to reason, or how much. format: "json", or the schema of the text. keep_alive: seconds, or
    a duration. truncate, shift: without effect; a prompt that does not fit is an error.
    """

    stream: bool = True
    format: Format | None = None
    options: OllamaOptions = OllamaOptions()
    truncate: bool | None = None
    shift: bool | None = None
    debug_render_only: Literal[False] = Field(False, alias="_debug_render_only")

    own_form: ClassVar[str] = "format"

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the sampling fields moved to `options`, and other fields moved out."""
        return as_options(data, cls.model_fields, OllamaOptions.model_fields)

    @property
    def expected_context(self) -> int:
        return self.options.num_ctx or 0

    @property
    def ending(self) -> str:
        """The done_reason if nothing is generated: "unload" or "load"."""
        return "unload" if self.keep_alive == 0 else "load"

    def check(self) -> None:
        """Checks that also apply to a load. Raises FieldError."""
        if isinstance(self.format, str) and self.format not in ("", "json"):
            raise FieldError(
                f'format must be "", "json" or a JSON schema, not {self.format[:40]!r}', "format"
            )
        if self.speculation.trace:
            raise FieldError("speculation.trace is for the routes below /v1 only", "speculation.trace")
        _ = self.n_logprobs

    def parameters(self) -> list[Restriction]:
        return self.options.parameters()

    def params(self) -> JsonObject:
        params = self.options.sampling(logprobs=self.n_logprobs, **self.limits.params)
        budget = {} if self.configured_budget is None else {"reasoning_budget": self.configured_budget}
        return budget | params

    def engine_fields(self) -> JsonObject:
        return {**self.options.engine_limits(), **super().engine_fields()}


class OllamaChatRequest(ConversationFields, OllamaRequest):
    """The body of /api/chat. Without messages, loads the model. tool_choice: Ollama's own API has none."""

    messages: Annotated[list[Message], AtMost(MAX_MESSAGES)] = Field([])
    any_form: ClassVar[bool] = True  # Ollama reads only names and descriptions

    def read_turns(self) -> ReadConversation:
        self.check()
        return conversation_of(self.messages).read(open_calls=True)


class OllamaGenerateRequest(OllamaRequest):
    """The body of /api/generate. raw: do not apply the chat template. suffix: the text after the gap to
    fill. Without prompt and suffix, loads the model.
    """

    prompt: str = ""
    system: str = ""
    suffix: str = ""
    raw: bool = False
    template: str = ""
    context: Annotated[list[int], AtMost(MAX_VALUES), WHOLE_ITEMS] = Field([])
    images: Annotated[list[Any], AtMost(MAX_IMAGES)] = Field([])

    def place_images(self, texts: Mapping[int, str], images: Sequence[protocol.Image]) -> None:
        self.prompt = "".join(texts[image.number] for image in self._sent_images) + self.prompt
        self._sent_images, self._images = [], images

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.check()
        self._sent_images = images_of_field(self.images, "images")
        if self.images and self.suffix:
            raise FieldError("images: a gap in a text is filled without any", "images")
        if self.template:
            raise FieldError("template: the template is set where the server is started", "template")
        if self.context:
            raise FieldError("context is not supported: send the conversation to /api/chat", "context")
        off = "raw" if self.raw else "suffix" if self.suffix else ""
        if off and self.system:
            raise FieldError(f"system needs the chat template, which {off} switches off", "system")
        if off and self.think:
            raise FieldError(f"think needs the chat template, which {off} switches off", "think")

    def without_template(self) -> None:
        """The model has no chat template. Raises FieldError."""
        if self.system and not self.suffix:
            raise FieldError("system needs a chat template, which this model does not have", "system")
        self.raw = True

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:
        if self.suffix:
            return [protocol.Infill(self.prompt, self.suffix)]
        if self.raw:
            return [protocol.TextInput(self.prompt, list(self._images))]
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*system, {"role": "user", "content": self.prompt}]
        return [protocol.ChatInput(asked, self.template_variables(server), images=list(self._images))]


class EmbedRequest(RequestBody):
    """input, or prompt of /api/embeddings: a text or a list of texts. truncate: cut those that are too long.
    options have no effect.
    """

    asks: ClassVar[bool] = False
    model: ModelName | None = None
    input: str | TextList | None = None
    prompt: str | None = None
    truncate: bool = True
    dimensions: Annotated[int, Field(ge=0, lt=2**20)] = 0
    keep_alive: KeepAlive = None
    options: IgnoredLoadOptions | None = None


class ShowRequest(RequestBody):
    """model, or name: which model. The other fields have no effect."""

    model: ModelName | None = None
    name: ModelName | None = None
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None
    options: IgnoredLoadOptions | None = None


class RefusedRequest(RequestBody):
    """The body of an unsupported operation: any JSON object."""

    asks = False


def error_body(error: SpecllamaError, _request_id: str = "") -> JsonObject:
    """One text. Clients look for "not found" when a model is not served."""
    if isinstance(error, NotFoundError) and "model" in error.details:
        name = error.details["model"].removesuffix(":latest")
        return {"error": f"model '{name}' not found: {error.message}"}
    return {"error": error.message}


_LAST = 253402300799.0  # the end of the year 9999
_REASONS = {"stop": "stop", "length": "length", "context": "length"}


def timestamp(seconds: float) -> str:
    """RFC 3339. seconds: since the epoch; files may have times that no date has."""
    seconds = min(max(seconds, 0.0), _LAST)
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


class OllamaWriter(AnswerWriter):
    """Sends each call whole, its arguments as an object. chat: the answer is a message, not plain text."""

    media_type = "application/x-ndjson"

    def __init__(self, options: AnswerOptions, chat: bool = True) -> None:
        super().__init__(options)
        self._chat, self._created_at = chat, timestamp(options.created)
        self.ping = self.encoded(self._chunk())  # clients of NDJSON know no comments

    def chunks_of(self, event: events.Event) -> Sequence[JsonObject]:
        if isinstance(event, events.TextEvent):
            return [self._chunk(event.text, logprobs=event.logprobs)]
        if isinstance(event, events.Reasoning):
            return [self._chunk(thinking=event.text)]
        choice = self.fold.choices[event.index]
        if isinstance(event, events.CallClose):
            return [self._chunk(calls=[_call(event.call, choice.calls[event.call])])]
        if isinstance(event, events.End):
            return [self._ended(self._chunk(logprobs=event.rest), choice)]
        return []

    def error_body(self, error: SpecllamaError) -> JsonObject:
        return error_body(error)

    def encoded(self, chunk: JsonObject) -> bytes:
        return events.to_json(chunk) + b"\n"

    def answer(self) -> JsonObject:
        (choice,) = self.fold.in_order
        calls = [_call(i, call) for i, call in enumerate(choice.calls) if call.complete]
        return self._ended(self._chunk(choice.text, choice.reasoning, calls, choice.logprobs), choice)

    def loaded(self, reason: str) -> bytes:
        """The answer if nothing is generated, as one line. reason: "load" or "unload"."""
        return self.encoded(self._chunk() | {"done": True, "done_reason": reason})

    def _chunk(
        self,
        text: str = "",
        thinking: str = "",
        calls: Sequence[JsonObject] = (),
        logprobs: Sequence[PositionLogprobs] = (),
    ) -> JsonObject:
        head: JsonObject = {"model": self.options.model, "created_at": self._created_at}
        thought = {"thinking": thinking} if thinking else {}
        rest = {"done": False, **({"logprobs": described(logprobs)} if logprobs else {})}
        if not self._chat:
            return {**head, "response": text, **thought, **rest}
        called = {"tool_calls": list(calls)} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **thought, **called}, **rest}

    def _ended(self, chunk: JsonObject, choice: events.AccumulatedChoice) -> JsonObject:
        assert choice.end is not None
        stats = choice.end.stats
        chunk["done"] = True
        chunk["done_reason"] = _REASONS.get(choice.end.reason, "stop")
        chunk["total_duration"] = _ns(stats.ttft_seconds + stats.decode_seconds)
        chunk["load_duration"] = _ns(stats.ttft_seconds - stats.encode_seconds)
        chunk["prompt_eval_count"] = choice.start.n_prompt
        chunk["prompt_eval_duration"] = _ns(stats.encode_seconds)
        chunk["eval_count"] = stats.n_predict
        chunk["eval_duration"] = _ns(stats.decode_seconds)
        add_figures(chunk, self.figures())
        return chunk


def _ns(seconds: float) -> int:
    """Nanoseconds, at least 1 because clients divide by them."""
    return max(1, round(1e9 * seconds))


def _call(index: int, call: events.AccumulatedCall) -> JsonObject:
    function: JsonObject = {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": f"call_{call.id}", "function": function}


async def version(_api: ApiRequest) -> Response:
    return JSONResponse({"version": VERSION})


async def tags(api: ApiRequest) -> Response:
    entries = []
    for one in await api.models.listed():
        if one.on_disk:
            facts = one.info or await api.models.details(one.model)
            n_bytes = one.info.file_bytes if one.info is not None else one.model.n_bytes
            entries.append(tag(one.name, facts, n_bytes, one.model.modified))
    return JSONResponse({"models": entries})


async def running(api: ApiRequest) -> Response:
    entries, now = [], time.time()
    for one in await api.models.listed():
        if one.loaded and one.info is not None:
            expires = None if one.expires_in is None else now + one.expires_in
            entries.append(running_entry(one.name, one.info, expires))
    return JSONResponse({"models": entries})


async def show(api: ApiRequest) -> Response:
    body = await api.body(ShowRequest)
    await api.find_model(body.model or body.name or None)
    service, info = api.service, api.supervisor.loaded
    facts, n_ctx = (info, info.n_ctx) if info is not None else await api.models.unloaded(service)
    shown = show_entry(service.name, facts, n_ctx, service.model.modified, api.settings.sampling)
    if api.models.sees(service.model, info):
        shown["capabilities"].append("vision")
    return JSONResponse(shown)


async def chat(api: ApiRequest) -> Response:
    body = await api.body(OllamaChatRequest)
    await _info(api, body)
    return await (api.answer(body, OllamaWriter) if body.messages else _loaded(api, body, chat=True))


async def generate(api: ApiRequest) -> Response:
    body = await api.body(OllamaGenerateRequest)
    info = await _info(api, body)
    if not body.prompt and not body.suffix and not body.images:
        return await _loaded(api, body, chat=False)
    if body.suffix and not info.infill:
        name = body.model or api.service.name
        raise FieldError(f'"{name}" does not support insert, its vocabulary has no tokens for it', "suffix")
    if not info.template_works:
        body.without_template()
    return await api.answer(body, partial(OllamaWriter, chat=False))


async def embed(api: ApiRequest) -> Response:
    """Without input the model is loaded, as Ollama does."""
    began, body = running_time(), await api.body(EmbedRequest)
    texts = [] if body.input in (None, "", []) else texts_of(body.input, "input")
    made = await _vectors(api, body, texts, norm=2)
    vectors = ",".join(f"[{one.vectors[0]}]" for one in made)
    figures = {
        "model": api.service.name,
        "total_duration": _ns(running_time() - began),
        "load_duration": 1,
        "prompt_eval_count": sum(one.n_tokens for one in made),
    }
    answer = f'{{"embeddings": [{vectors}], {json.dumps(figures)[1:]}'
    return Response(answer, media_type="application/json")


async def embed_one(api: ApiRequest) -> Response:
    """The older route: one text, whose vector is not normalised."""
    body = await api.body(EmbedRequest)
    made = await _vectors(api, body, [body.prompt] if body.prompt else [], norm=-1)
    vector = made[0].vectors[0] if made else ""
    return Response(f'{{"embedding": [{vector}]}}', media_type="application/json")


async def _vectors(
    api: ApiRequest, body: EmbedRequest, texts: list[str | list[int]], norm: int
) -> list[protocol.TextVectors]:
    n, cut = body.dimensions, body.truncate
    order = protocol.Embed(0, texts, norm=norm, n_values=n, truncate=cut, as_text=True)
    made = await api.embed(body.model, order)
    api.keep_model(body.keep_alive)
    return made


def _refusal(message: str) -> Endpoint:
    """The endpoint of an unsupported operation. Reads the body, so that the client reads the error."""

    async def refuse(api: ApiRequest) -> Response:
        await api.body(RefusedRequest)
        raise NotSupportedError(message)

    return refuse


async def _info(api: ApiRequest, body: OllamaRequest) -> LoadInfo:
    """The model's description, after checks that depend on it. Raises FieldError, UsageError."""
    api.check_model(body.model or None)
    await api.models.check_kind(api.service)
    info = await api.supervisor.load()
    if body.think and not info.template_reasons:
        raise FieldError(f'"{body.model or api.service.name}" does not support thinking', "think")
    return info


async def _loaded(api: ApiRequest, body: OllamaRequest, chat: bool) -> Response:
    """Load or unload the model, as `keep_alive` says."""
    if body.ending == "load":
        await api.load_model()
    else:
        api.check_administers()
    api.keep_model(body.keep_alive)
    writer = OllamaWriter(body.answer_options(api.service.name), chat)
    media_type = writer.media_type if body.stream else "application/json"
    return Response(writer.loaded(body.ending), media_type=media_type)


VERSION = "0.12.0"  # of Ollama, whose API this is; clients refuse versions that they think too old
_FOR_EVER = "9999-12-31T23:59:59Z"
_OPTIONS = tuple(
    name
    for name, parameter in PARAMETERS.items()
    if parameter.stored and parameter.is_number and name not in ("max_tokens", "seed", "reasoning_budget")
)
"""The parameters of a model: those that say how tokens are chosen, not where an answer ends."""
_SIZES = ((1e9, 1, "B"), (1e6, 2, "M"), (1e3, 0, "K"), (1, 0, ""))  # unit, decimals, letter


def tag(name: str, facts: LoadInfo | ModelDetails | None, n_bytes: int, modified: float) -> JsonObject:
    """One model of /api/tags. n_bytes: of its file. modified: seconds since the epoch."""
    return {**_entry(name, facts, n_bytes), "modified_at": timestamp(modified)}


def running_entry(name: str, info: LoadInfo, expires_at: float | None) -> JsonObject:
    """One model of /api/ps. expires_at: when it is unloaded, in seconds since the epoch, None for never."""
    return {
        **_entry(name, info, info.file_bytes),
        "expires_at": _FOR_EVER if expires_at is None else timestamp(expires_at),
        "size_vram": round(info.file_bytes * info.gpu_share),
        "context_length": info.n_ctx,
    }


def show_entry(
    name: str, info: LoadInfo | ModelDetails, n_ctx: int, modified: float, sampling: Mapping[str, Any]
) -> JsonObject:
    """One model, loaded or not. modified: seconds since the epoch. sampling: the server's own defaults, which
    take precedence over the model's.

    n_ctx: of the server, not of the training: clients size their prompts by it.
    """
    family, n_params, _ = _facts(info)
    arch = family or "unknown"
    own = info.sampling if isinstance(info, LoadInfo) else SamplingParams()
    params = {name: sampling.get(name, getattr(own, name)) for name in _OPTIONS}
    return {
        "modified_at": timestamp(modified),
        "template": info.template,
        "parameters": "\n".join(f"{name} {value}" for name, value in params.items()),
        "details": details(info),
        "model_info": {
            "general.architecture": arch,
            "general.basename": info.target.name if isinstance(info, LoadInfo) else name,
            "general.parameter_count": n_params,
            f"{arch}.context_length": n_ctx,
            f"{arch}.vocab_size": info.n_vocab,
        },
        "capabilities": capabilities(info),
    }


def capabilities(info: LoadInfo | ModelDetails) -> list[str]:
    """Capabilities of a model. A chat template suffices for tools: without native support they are
    described in a system message. Infill support is known only after a load. Without "vision".
    """
    if info.embedding is not None if isinstance(info, LoadInfo) else info.embeds:
        return ["embedding"]
    if isinstance(info, LoadInfo):
        works, reasons, fills = info.template_works, info.template_reasons, info.infill
    else:
        works, reasons, fills = bool(info.template), info.reasons, False
    more = {"tools": works, "insert": fills, "thinking": works and reasons}
    return ["completion", *(name for name, has in more.items() if has)]


def details(facts: LoadInfo | ModelDetails | None) -> JsonObject:
    family, params, quant = _facts(facts)
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _size(params) if params else "",
        "quantization_level": quant,
    }


def _facts(facts: LoadInfo | ModelDetails | None) -> tuple[str, int, str]:
    """(architecture, number of weights, quantisation)."""
    if isinstance(facts, LoadInfo):
        return facts.architecture, facts.target.params, facts.target.quant
    return (facts.architecture, facts.n_params, facts.quant) if facts is not None else ("", 0, "")


def _entry(name: str, facts: LoadInfo | ModelDetails | None, n_bytes: int) -> JsonObject:
    return {
        "name": name,
        "model": name,
        "size": n_bytes,
        "digest": hashlib.sha256(repr([name, n_bytes, *_facts(facts)]).encode()).hexdigest(),
        "details": details(facts),
    }


def _size(params: int) -> str:
    """A number of weights in Ollama's form: "134.52M"."""
    unit, decimals, letter = next(size for size in _SIZES if params >= size[0] or size[0] == 1)
    return f"{params / unit:.{decimals}f}{letter}"


_HERE = "models are managed by the commands of specllama"
_PULL = _refusal(f"pull is not offered here: {_HERE}, see `specllama pull`")
_OTHER = _refusal(f"this is not offered here: {_HERE}")
DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/api/version", version, "The version of Ollama's API"),
        ApiRoute("GET", "/api/tags", tags, "The models that are served, as Ollama lists them"),
        ApiRoute("GET", "/api/ps", running, "The models in memory"),
        ApiRoute("POST", "/api/show", show, "What a model is and can do", ShowRequest),
        ApiRoute("POST", "/api/chat", chat, "Answer a conversation, as Ollama does", OllamaChatRequest),
        ApiRoute("POST", "/api/generate", generate, "Answer a prompt, as Ollama does", OllamaGenerateRequest),
        ApiRoute("POST", "/api/pull", _PULL),
        ApiRoute("POST", "/api/embed", embed, "Vectors of texts, as Ollama makes them", EmbedRequest),
        ApiRoute("POST", "/api/embeddings", embed_one),
        ApiRoute("POST", "/api/push", _OTHER),
        ApiRoute("POST", "/api/create", _OTHER),
        ApiRoute("POST", "/api/copy", _OTHER),
        ApiRoute("DELETE", "/api/delete", _OTHER),
    ),
    prefixes=("/api",),
)
