"""The OpenAI API: bodies and writers of /v1/chat/completions and /v1/completions, and all routes.

llama-server has them without /v1 too, and counts the tokens of a prompt.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from starlette.responses import JSONResponse, Response

import specllama
from specllama.client import protocol
from specllama.client.protocol import PositionLogprobs
from specllama.json_types import JsonObject
from specllama.server import events
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.responses.writer import ResponsesWriter, echo_json
from specllama.server.dialects.shared import figures
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.shared.chat_fields import TemplateInput
from specllama.server.dialects.shared.embedding import EmbeddingsRequest, embeddings
from specllama.server.dialects.shared.fields import FieldError, RequestBody
from specllama.server.dialects.shared.raw_prompts import RawPromptFields
from specllama.server.dialects.shared.sampling_fields import MAX_N, Count, ModelName, SamplingFields
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter, error_body
from specllama.server.http.errors import HttpError
from specllama.server.models import ListedModel, listed

FINGERPRINT = f"build-specllama-{specllama.__version__}"  # begins as llama-server's does
_REASONS = {"stop": "stop", "length": "length", "context": "length"}


class OpenAIWriter(AnswerWriter):
    """Subclasses write the choices."""

    prefix, chunk_object, answer_object = "", "", ""

    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(options)
        self.id = f"{self.prefix}-{events.random_key()}"

    def chunks_of(self, event: events.Event) -> Sequence[JsonObject]:
        if isinstance(event, events.Prefill) and not self.options.progress:
            return []
        deltas = self._deltas(event)
        chunks = [self._chunk([one], self._fields(event if one is deltas[-1] else None)) for one in deltas]
        if isinstance(event, events.End) and len(self.fold.ends) == self.n_choices:
            if self.options.usage_chunk:
                chunks.append(self._chunk([], {"usage": figures.usage(self.fold)}))
            # In a chunk of its own if the client asks for that.
            figures.add_figures(chunks[-1], self.figures())
            if self.options.verbose:
                chunks[-1]["__verbose"] = self._native_answer()
        return chunks

    def answer(self) -> JsonObject:
        return {
            **self._head(self.answer_object),
            "choices": [self._whole(choice) for choice in self.fold.in_order],
            "usage": figures.usage(self.fold),
            **self.figures(),
            **({"__verbose": self._native_answer()} if self.options.verbose else {}),
        }

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def _chunk(self, choices: list[JsonObject], fields: JsonObject) -> JsonObject:
        return {**self._head(self.chunk_object), "choices": choices, **fields}

    def _fields(self, event: events.Event | None) -> JsonObject:
        fields: JsonObject = {}
        if self.options.usage_chunk:
            fields["usage"] = None
        if self.options.trace and event is not None and (traced := figures.trace_of(event)):
            fields["speculation"] = traced
        if self.options.timings and event is not None and not isinstance(event, (events.Start, events.End)):
            fields["timings"] = figures.running_timings(self.fold.choices[event.index])
        if isinstance(event, events.Prefill):
            fields["prompt_progress"] = figures.prompt_progress(event)
        return fields

    def _native_answer(self) -> JsonObject:
        return figures.native_answer(self.fold.in_order[0], self.options.model)

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": self.id,
            "object": kind,
            "created": int(self.options.created),
            "model": self.options.model,
            "system_fingerprint": FINGERPRINT,
        }

    def _deltas(self, event: events.Event) -> list[JsonObject]:
        raise NotImplementedError

    def _whole(self, choice: events.AccumulatedChoice) -> JsonObject:
        raise NotImplementedError


def ending(end: events.End | None, start: events.Start) -> JsonObject:
    """End reason of a choice, and the seed that reproduces it."""
    return {
        "finish_reason": _REASONS.get(end.reason, "stop") if end else None,
        "stop_reason": end.stop_string if end else None,
        "seed": start.seed,
    }


class ChatWriter(OpenAIWriter):
    """The first delta has the role, with content "" if text follows, or null while that is not known; later
    deltas have no role, the last has no content. First deltas are sent in the order of the choices.

    OpenAI's client concatenates the texts of all deltas, so an id, name or role must be sent once; it numbers
    choices by the order of their first deltas.
    """

    prefix, chunk_object, answer_object = "chatcmpl", "chat.completion.chunk", "chat.completion"

    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(options)
        self._n_begun = 0  # choices that have their first delta
        self._undecided: set[int] = set()  # those that began without content

    def _deltas(self, event: events.Event) -> list[JsonObject]:
        if isinstance(event, (events.Start, events.CallClose)):
            return []
        if isinstance(event, events.Prefill):
            return self._first_deltas(event) or [self._delta(event.index, {})]
        return [*self._first_deltas(event), *self._own_deltas(event)]

    def _first_deltas(self, event: events.Event) -> list[JsonObject]:
        deltas = []
        for index in range(self._n_begun, event.index + 1):
            content = (
                "" if index == event.index and isinstance(event, (events.TextEvent, events.End)) else None
            )
            if content is None:
                self._undecided.add(index)
            deltas.append(self._delta(index, {"role": "assistant", "content": content}))
            self._n_begun += 1
        return deltas

    def _own_deltas(self, event: events.Event) -> list[JsonObject]:
        index = event.index
        if isinstance(event, events.TextEvent):
            return [self._delta(index, {"content": event.text}, event.logprobs)]
        if isinstance(event, events.Reasoning):
            return [self._delta(index, {"reasoning_content": event.text})]
        if isinstance(event, events.CallOpen):
            opened = _call(event.id, event.name, "", event.call)
            return [self._delta(index, {"tool_calls": [opened]})]
        if isinstance(event, events.CallArgs):
            more: JsonObject = {"index": event.call, "function": {"arguments": event.text}}
            return [self._delta(index, {"tool_calls": [more]})]
        choice = self.fold.choices[index]
        rest = _chat_logprobs(event.rest) if isinstance(event, events.End) and event.rest else None
        last: JsonObject = {"index": index, "delta": {}, "logprobs": rest, **_ending(choice)}
        empty = index in self._undecided and not choice.items
        return [self._delta(index, {"content": ""}), last] if empty else [last]

    def _delta(self, index: int, delta: JsonObject, logprobs: Sequence[PositionLogprobs] = ()) -> JsonObject:
        shown = _chat_logprobs(logprobs) if logprobs else None
        return {"index": index, "delta": delta, "logprobs": shown, "finish_reason": None}

    def _whole(self, choice: events.AccumulatedChoice) -> JsonObject:
        calls = [_call(call.id, call.name, call.arguments) for call in choice.calls]
        has_text = any(isinstance(item, events.AccumulatedText) for item in choice.items)
        content = choice.text if has_text or not calls else None
        message: JsonObject = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if calls:
            message["tool_calls"] = calls
        return {
            "index": choice.start.index,
            "message": message,
            "logprobs": _chat_logprobs(choice.logprobs) if self.options.logprobs else None,
            **_ending(choice),
        }


def _call(id_: str, name: str, arguments: str, index: int | None = None) -> JsonObject:
    """index: of a streamed call."""
    call = {"id": f"call_{id_}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return call if index is None else {"index": index, **call}


def _ending(choice: events.AccumulatedChoice) -> JsonObject:
    fields = ending(choice.end, choice.start)
    if choice.ended_with_calls:
        fields["finish_reason"] = "tool_calls"
    return fields


def _chat_logprobs(positions: Sequence[PositionLogprobs]) -> JsonObject:
    return {"content": figures.described(positions), "refusal": None}


class ChatRequest(TemplateInput, SamplingFields):
    """The body of /v1/chat/completions."""

    limit_fields: ClassVar[Sequence[str]] = ("max_completion_tokens", *SamplingFields.limit_fields)
    max_completion_tokens: Count | None = None


class ControlRequest(RequestBody):
    """The body of /v1/chat/completions/control. id: of the answer, as its chunks have it. action: what to do
    with it. model: without effect.
    """

    asks = False

    id: Annotated[str, Field(min_length=1, max_length=128)]
    action: Literal["reasoning_end"]
    model: ModelName | None = None


class CompletionWriter(OpenAIWriter):
    """Choices are ordered by prompt."""

    prefix, chunk_object, answer_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(options)
        self._offsets: dict[int, int] = {}  # by choice: characters that the tokens so far have completed

    def _deltas(self, event: events.Event) -> list[JsonObject]:
        index = event.index
        choice = self.fold.choices[index]
        if isinstance(event, events.TextEvent):
            shown = self._shown_logprobs(index, event.logprobs)
            return [{"index": index, "text": event.text, "logprobs": shown, "finish_reason": None}]
        if isinstance(event, events.Prefill):
            return [{"index": index, "text": "", "logprobs": None, "finish_reason": None}]
        if isinstance(event, events.End):
            shown = self._shown_logprobs(index, event.rest)
            return [{"index": index, "text": "", "logprobs": shown, **ending(event, choice.start)}]
        return []

    def _shown_logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> JsonObject | None:
        if not positions:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(position.length for position in positions)
        return _logprobs(positions, offset)

    def _whole(self, choice: events.AccumulatedChoice) -> JsonObject:
        return {
            "index": choice.start.index,
            "text": choice.text,
            "logprobs": _logprobs(choice.logprobs, 0) if self.options.logprobs else None,
            **ending(choice.end, choice.start),
        }


def _logprobs(positions: Sequence[PositionLogprobs], offset: int) -> JsonObject:
    """offset: characters before the first of these tokens; those that share a character have its offset."""
    offsets = []
    for position in positions:
        offsets.append(offset)
        offset += position.length
    return {
        "tokens": [position.chosen.token for position in positions],
        "token_logprobs": [figures.number(position.chosen.logprob) for position in positions],
        "top_logprobs": [
            {c.token: figures.number(c.logprob) for c in position.top} for position in positions
        ],
        "text_offset": offsets,
    }


class CompletionRequest(RawPromptFields):
    """prompt: a text, ids, a list mixing texts and ids, or a list of such prompts with choices for each.
    suffix: the text after the gap to fill.
    """

    zero_logprobs: ClassVar[int | None] = 0
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:  # noqa: ARG002
        if self.best_of not in (None, self.n):
            raise FieldError("best_of must be n, or absent", "best_of")
        inputs = self.prompt_inputs()
        if not self.suffix:
            return inputs
        texts = [one.text for one in inputs if isinstance(one, protocol.TextInput) and not one.images]
        if len(texts) < len(inputs):
            raise FieldError("suffix: the prompt must then be text, without ids and images", "suffix")
        return [protocol.Infill(text, self.suffix) for text in texts]

    def engine_fields(self) -> JsonObject:
        return {**super().engine_fields(), "show_prompt": bool(self.verbose)}


async def _answer(api: ApiRequest, model: type[SamplingFields], writer: type[OpenAIWriter]) -> Response:
    body = await api.body(model)
    if body.verbose is None:
        body.verbose = api.settings.verbose
    return await api.answer(body, writer)


async def respond(api: ApiRequest) -> Response:
    recent, owner, defaults = api.recent_items, api.owner, api.settings.sampling
    body = await api.body(ResponsesRequest, partial(recent.resolved, owner))
    keep = partial(recent.add, owner) if body.store else lambda _: None

    def writer(options: AnswerOptions) -> ResponsesWriter:
        return ResponsesWriter(options, echo_json(body.echo(defaults)), body.request_tools.names, keep)

    return await api.answer(body, writer)


async def control(api: ApiRequest) -> Response:
    """End the reasoning of a running answer, as llama-server does. Raises HttpError."""
    body = await api.body(ControlRequest)
    job = api.running(body.id)
    if job is None:
        id_ = body.id[:80]
        raise HttpError(404, f"no answer with the id {id_!r} is being written", {"param": "id"})
    if not job.controlled:
        why = "reasoning control is not enabled for this answer: ask for it with reasoning_control: true"
        return JSONResponse({"success": False, "message": why})
    job.end_reasoning()
    return JSONResponse({"success": True})


async def stored(api: ApiRequest) -> Response:
    id_ = str(api.path_params["name"])[:80]
    why = "responses are not stored here, they are only sent to whoever asks"
    raise HttpError(404, f"there is no response {id_!r}: {why}")


async def models(api: ApiRequest) -> Response:
    """The models on disk; with ?known=true also models that are only known."""
    known = api.query_params.get("known", "").lower() in ("1", "true", "yes")
    listing = await api.models.listed()
    shown = [one for one in listing if known or one.on_disk] or listing[:1]
    entries = [model_entry(one) for one in shown]
    for one, entry in zip(shown, entries, strict=True):
        if known and (fits := api.models.fits(one)) is not None:
            entry["fits"] = fits
    first, last = shown[0].name, shown[-1].name
    return JSONResponse(
        {"object": "list", "data": entries, "has_more": False, "first_id": first, "last_id": last}
    )


async def model(api: ApiRequest) -> Response:
    name = api.path_params["name"]
    await api.find_model(name)
    return JSONResponse(model_entry(listed(api.service, name)))


async def _length(api: ApiRequest, model: type[ChatRequest | ResponsesRequest]) -> Response:
    body = await api.body(model)
    api.check_model(body.model)
    await api.read_images(body)
    body.generations(api.settings.sampling, api.settings.variables)  # raises the same errors
    n = await api.prompt_length(body.chat_input(api.settings.variables))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n})


def model_entry(model: ListedModel) -> JsonObject:
    """One model, as OpenAI's and Anthropic's clients read it, with llama-server's `meta`; the context size is
    under the names used by vLLM's and OpenRouter's clients. `status`: whether it is in memory; during a load,
    the part being loaded and its progress; for a model not on disk, the command that downloads it, and the
    progress of a download.
    """
    info, created = model.info, model.created
    entry: JsonObject = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "specllama",
        "type": "model",
        "display_name": info.target.name if info is not None else model.name,
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).isoformat(),
        "status": _status(model),
        "meta": _meta(model),
    }
    if info is not None:
        entry["max_model_len"] = entry["context_length"] = info.n_ctx
        inputs = ["text", "image"] if info.vision else ["text"]
        entry["architecture"] = {"input_modalities": inputs, "output_modalities": ["text"]}
    return entry


def _status(model: ListedModel) -> JsonObject:
    status: JsonObject = {"value": model.state or "not downloaded"}
    if model.loading is not None:
        status["loading"], status["progress"] = model.loading[0], round(model.loading[1], 4)
    if not model.on_disk:
        status["pull"] = f"specllama pull {model.model.pull}"
    if (pull := model.pull) is not None:
        status["download"] = {
            "done": pull.done, "total": pull.total, "error": pull.error, "running": pull.running,
        }  # fmt: skip
    return status


def _meta(model: ListedModel) -> JsonObject:
    info = model.info
    kind: JsonObject = {"embeds": True} if model.embeds else {}
    if info is None:
        if model.on_disk:
            return {"size": model.model.n_bytes} | kind
        about = kind | ({"about_size": model.model.guessed_bytes} if model.model.guessed_bytes else {})
        return about | {"is_head": True} if model.model.is_head else about
    return {
        "n_vocab": info.n_vocab,
        "n_ctx": info.n_ctx,
        "n_ctx_train": info.n_ctx_train,
        "n_params": info.target.params,
        "size": info.file_bytes,
        **kind,
    }


_CHAT = partial(_answer, model=ChatRequest, writer=ChatWriter)
_COMPLETIONS = partial(_answer, model=CompletionRequest, writer=CompletionWriter)
DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/v1/models", models, "The models that are served"),
        ApiRoute("GET", "/v1/models/{name:path}", model, "One model"),
        ApiRoute("POST", "/v1/chat/completions", _CHAT, "Answer a conversation", ChatRequest),
        ApiRoute(
            "POST", "/v1/chat/completions/control", control, "End the reasoning of an answer", ControlRequest
        ),
        ApiRoute("POST", "/v1/completions", _COMPLETIONS, "Continue a prompt", CompletionRequest),
        ApiRoute("POST", "/v1/responses", respond, "Answer a conversation of items", ResponsesRequest),
        ApiRoute("POST", "/responses", respond),
        ApiRoute("POST", "/v1/embeddings", embeddings, "Vectors of texts", EmbeddingsRequest),
        ApiRoute("GET", "/v1/responses/{name}", stored),
        ApiRoute("DELETE", "/v1/responses/{name}", stored),
        ApiRoute("GET", "/models", models),
        ApiRoute("GET", "/models/{name:path}", model),
        ApiRoute("POST", "/chat/completions", _CHAT),
        *(
            ApiRoute("POST", f"{at}/{kind}/input_tokens", partial(_length, model=model))
            for at in ("", "/v1")
            for kind, model in (("chat/completions", ChatRequest), ("responses", ResponsesRequest))
        ),
    ),
)
