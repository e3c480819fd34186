"""Anthropic's routes, and the writer of /v1/messages: blocks one after another."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from pydantic_core import from_json
from starlette.responses import JSONResponse, Response

from specllama.errors import ContextLengthError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.server import events
from specllama.server.dialects.anthropic.request import CountRequest, MessagesRequest
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.shared.figures import own_figures, trace_of
from specllama.server.dialects.shared.writer import ERROR_TYPES, AnswerOptions, AnswerWriter, named_event

_TYPES = ERROR_TYPES | {503: "overloaded_error"}


def error_body(error: SpecllamaError, request_id: str) -> JsonObject:
    status = error.http_status
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    shown: JsonObject = {"type": kind, "message": _message(error)}
    if "error_code" in error.details:
        details = error.details
        shown["details"] = {"error_code": details["error_code"], "unsupported": details["unsupported"]}
    return {"type": "error", "error": shown, "request_id": request_id}


def _message(error: SpecllamaError) -> str:
    """Claude Code recognises a prompt that is too long by these words, and shortens the conversation."""
    if not isinstance(error, ContextLengthError):
        return error.message
    n, n_ctx = error.details.get("n_prompt_tokens"), error.details.get("n_ctx")
    figures = "" if n is None else f"{n} tokens > {n_ctx} maximum; "
    return f"prompt is too long: {figures}{error.message}"


SIGNATURE = ""
"""Of thinking blocks. Claude Code (2.1.197) sends those with an empty one back, and drops all others."""
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


class MessageWriter(AnswerWriter):
    """Writes an answer with one choice. An answer without text and calls has an empty text block."""

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(options)
        self.id = f"msg_{secrets.token_hex(12)}"
        self._begun = self._waits = False  # whether the first event is written
        self._n_blocks = 0  # opened so far
        self._open = ""  # type of the block that is open
        self._empty = True  # whether the call that is open has no arguments yet
        self._spoke = False  # whether there was text or a call

    def chunks(self, events: Iterable[events.Event], n_choices: int = 1) -> list[JsonObject]:
        chunks = super().chunks(events, n_choices)
        return [*chunks, *self._beginning()] if self.fold.choices and not self._waits else chunks

    def chunks_of(self, event: events.Event) -> Sequence[JsonObject]:
        # The first event has the tokens whose evaluation was reused, once they are known.
        self._waits = isinstance(event, events.Prefill) and event.n_done in (event.n_reused, event.n_prompt)
        if isinstance(event, events.Start) or self._waits:
            return []
        written = self._events(event)
        if self.options.trace and written and (traced := trace_of(event)):
            shown = written[-2 if isinstance(event, events.End) else -1]  # message_stop has no fields
            shown["speculation"] = shown.get("speculation", {}) | traced
        return [*self._beginning(), *written]

    def error_body(self, error: SpecllamaError) -> JsonObject:
        return error_body(error, self.options.request_id)

    def encoded(self, chunk: JsonObject) -> bytes:
        return named_event(chunk)

    def answer(self) -> JsonObject:
        (choice,) = self.fold.in_order
        return self._message(choice, _blocks(choice)) | self._figures()

    def _figures(self) -> JsonObject:
        shown: JsonObject = {"speculation": own_figures(self.fold.ends, self.options.speculate)}
        return shown | ({"ignored_fields": list(self.options.ignored)} if self.options.ignored else {})

    def _message(self, choice: events.AccumulatedChoice, content: list[JsonObject]) -> JsonObject:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.options.model,
            "content": content,
            **_ending(choice),
            "usage": _usage(choice),
        }

    def _beginning(self) -> list[JsonObject]:
        """The first event, unless it was written."""
        if self._begun:
            return []
        self._begun = True
        (choice,) = self.fold.in_order
        return [{"type": "message_start", "message": self._message(choice, [])}]

    def _events(self, event: events.Event) -> list[JsonObject]:
        if isinstance(event, (events.TextEvent, events.CallArgs, events.Reasoning)) and not event.text:
            return []
        if isinstance(event, events.TextEvent):
            return self._part({"type": "text", "text": ""}, {"type": "text_delta", "text": event.text})
        if isinstance(event, events.CallArgs):
            self._empty = False
            return [self._delta(_arguments_delta(event.text))]
        if isinstance(event, events.Reasoning):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return self._part(block, {"type": "thinking_delta", "thinking": event.text})
        if isinstance(event, events.CallOpen):
            self._empty = True
            return [*self._closing(), self._opening(_tool_use(event.id, event.name, {}))]
        if isinstance(event, events.CallClose):
            filled = [self._delta(_arguments_delta("{}"))] if self._empty else []
            return [*filled, *self._closing()]
        if isinstance(event, events.Prefill):
            return [{"type": "ping"}]
        return self._end(self.fold.choices[event.index])

    def _end(self, choice: events.AccumulatedChoice) -> list[JsonObject]:
        closing = self._closing()
        if not self._spoke:
            closing += [self._opening({"type": "text", "text": ""}), *self._closing()]
        last: JsonObject = {
            "type": "message_delta",
            "delta": _ending(choice),
            "usage": _usage(choice),
            **self._figures(),
        }
        return [*closing, last, {"type": "message_stop"}]

    def _part(self, block: JsonObject, delta: JsonObject) -> list[JsonObject]:
        """The next part of text or thinking. block: the empty one, unless such a block is open."""
        opening = [] if self._open == block["type"] else [*self._closing(), self._opening(block)]
        return [*opening, self._delta(delta)]

    def _opening(self, block: JsonObject) -> JsonObject:
        self._open, self._n_blocks = block["type"], self._n_blocks + 1
        self._spoke = self._spoke or self._open != "thinking"
        return {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block}

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}

    def _closing(self) -> list[JsonObject]:
        was, self._open = self._open, ""
        if not was:
            return []
        signature = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        stop = {"type": "content_block_stop", "index": self._n_blocks - 1}
        return [signature, stop] if was == "thinking" else [stop]


def _arguments_delta(text: str) -> JsonObject:
    return {"type": "input_json_delta", "partial_json": text}


def _tool_use(id_: str, name: str, arguments: JsonObject) -> JsonObject:
    return {"type": "tool_use", "id": f"toolu_{id_}", "name": name, "input": arguments}


def _blocks(choice: events.AccumulatedChoice) -> list[JsonObject]:
    blocks: list[JsonObject] = []
    if choice.reasoning:
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE})
    for item in choice.items:
        if isinstance(item, events.AccumulatedCall):
            blocks.append(_tool_use(item.id, item.name, _input(item)))
        elif item.text:
            blocks.append({"type": "text", "text": item.text})
    if not any(block["type"] != "thinking" for block in blocks):
        blocks.append({"type": "text", "text": ""})
    return blocks


def _input(call: events.AccumulatedCall) -> JsonObject:
    """The arguments as an object; for a truncated call, its complete part, as the SDK parses it."""
    try:
        arguments = from_json(call.arguments or "{}", allow_partial=not call.complete)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _ending(choice: events.AccumulatedChoice) -> JsonObject:
    end = choice.end
    if end is None:
        return {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    reason = _REASONS.get(end.reason, "end_turn")
    if choice.ended_with_calls:
        reason = "tool_use"
    if end.reason == "stop" and end.stop_string is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": end.stop_string, "stop_details": None}


def _usage(choice: events.AccumulatedChoice) -> JsonObject:
    stats = choice.end.stats if choice.end else None
    known = stats or choice.prefill
    cached = known.n_reused if known else 0
    return {
        "input_tokens": choice.start.n_prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": stats.n_predict if stats else 1,
        "output_tokens_details": {"thinking_tokens": choice.end.n_reasoning if choice.end else 0},
    }


async def messages(api: ApiRequest) -> Response:
    body = await api.body(MessagesRequest)
    body.check_roles(api.header("anthropic-beta"))
    return await api.answer(body, MessageWriter)


async def count_tokens(api: ApiRequest) -> Response:
    body = await api.body(CountRequest)
    body.check_roles(api.header("anthropic-beta"))
    api.check_model(body.model)
    await api.read_images(body)
    return JSONResponse({"input_tokens": await api.prompt_length(body.chat_input(api.settings.variables))})


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("POST", "/v1/messages", messages, "Answer a conversation", MessagesRequest),
        ApiRoute("POST", "/v1/messages/count_tokens", count_tokens, "The length of its prompt", CountRequest),
    ),
    prefixes=("/v1/messages",),
)
