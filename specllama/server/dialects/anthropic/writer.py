"""The writer of /v1/messages: one block after another, each opened, filled and closed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from pydantic_core import from_json

from specllama.errors import SpecllamaError
from specllama.server.dialects.anthropic.errors import error_body
from specllama.server.dialects.shared.figures import figures
from specllama.server.dialects.shared.trace import trace_of
from specllama.server.events import (
    AccumulatedCall,
    AccumulatedChoice,
    Accumulator,
    CallArgs,
    CallClose,
    CallOpen,
    End,
    Event,
    Prefill,
    Reasoning,
    Start,
    TextEvent,
)
from specllama.server.writer import to_json

SIGNATURE = ""
"""Of thinking blocks. Claude Code (2.1.197) sends those with an empty one back, and drops all others."""
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


class MessageWriter:
    """A DialectWriter of an answer with one choice. An answer without text and calls has an empty text block.

    model: as shown. speculate: whether drafting was allowed. trace: deltas name the drafters of their tokens.
    request_id: for errors. ignored: the request's fields without effect.
    """

    media_type, ping = "text/event-stream", b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(
        self,
        model: str,
        speculate: bool = True,
        trace: bool = False,
        request_id: str = "",
        ignored: Sequence[str] = (),
    ) -> None:
        self.fold, self._ignored = Accumulator(), ignored
        self._model, self._speculate, self._trace, self._request_id = model, speculate, trace, request_id
        self._id = f"msg_{secrets.token_hex(12)}"
        self._begun = False  # whether the first event is written
        self._n_blocks = 0  # opened so far
        self._open = ""  # type of the block that is open
        self._empty = True  # whether the call that is open has no arguments yet
        self._spoke = False  # whether there was text or a call

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:  # noqa: ARG002 - it is one
        """See DialectWriter."""
        stream_events: list[dict[str, Any]] = []
        waits = False
        for event in events:
            self.fold.add([event])
            # The first event has the tokens whose evaluation was reused, once they are known.
            waits = isinstance(event, Prefill) and event.n_done in (event.n_reused, event.n_prompt)
            if not isinstance(event, Start) and not waits:
                written = self._events(event)
                if self._trace and written and (traced := trace_of(event)):
                    shown = written[-2 if isinstance(event, End) else -1]  # message_stop has no fields
                    shown["speculation"] = shown.get("speculation", {}) | traced
                stream_events += [*self._beginning(), *written]
        if self.fold.choices and not waits:
            stream_events += self._beginning()
        return b"".join(map(_event, stream_events))

    def error_event(self, error: SpecllamaError) -> bytes:
        """See DialectWriter."""
        return _event(error_body(error, self._request_id))

    def end(self) -> bytes:
        """See DialectWriter. The End event has written the last part."""
        return b""

    def answer(self) -> dict[str, Any]:
        """See DialectWriter."""
        (choice,) = self.fold.in_order
        return self._message(choice) | {"content": _blocks(choice)} | self._figures()

    def _message(self, choice: AccumulatedChoice) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            **_ending(choice),
            "usage": _usage(choice),
        }

    def _figures(self) -> dict[str, Any]:
        all_figures = figures(self.fold, self._speculate, self._ignored)
        ignored = all_figures.get("ignored_fields")
        return {"speculation": all_figures["speculation"], **({"ignored_fields": ignored} if ignored else {})}

    def _beginning(self) -> list[dict[str, Any]]:
        """The first event, unless it was written."""
        if self._begun:
            return []
        self._begun = True
        (choice,) = self.fold.in_order
        return [{"type": "message_start", "message": self._message(choice)}]

    def _events(self, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, TextEvent):
            return self._part("text", "text", event.text)
        if isinstance(event, CallArgs):
            self._empty = self._empty and not event.text
            return [self._delta("input_json", "partial_json", event.text)] if event.text else []
        if isinstance(event, Reasoning):
            return self._part("thinking", "thinking", event.text)
        if isinstance(event, CallOpen):
            self._empty = True
            block = {"type": "tool_use", "id": f"toolu_{event.id}", "name": event.name, "input": {}}
            return [*self._closing(), self._opening(block)]
        if isinstance(event, CallClose):
            filled = [self._delta("input_json", "partial_json", "{}")] if self._empty else []
            return [*filled, *self._closing()]
        if isinstance(event, Prefill):
            return [{"type": "ping"}]
        choice = self.fold.choices[event.index]
        closing = self._closing()
        if not self._spoke:
            closing += [self._opening({"type": "text", "text": ""}), *self._closing()]
        ending = {"delta": _ending(choice), "usage": _usage(choice)}
        return [*closing, {"type": "message_delta", **ending, **self._figures()}, {"type": "message_stop"}]

    def _part(self, kind: str, key: str, text: str) -> list[dict[str, Any]]:
        """The next part of text or thinking."""
        if not text:
            return []
        opening = []
        if self._open != kind:
            block = {"type": kind, key: ""} | ({"signature": ""} if kind == "thinking" else {})
            opening = [*self._closing(), self._opening(block)]
        return [*opening, self._delta(kind, key, text)]

    def _opening(self, block: dict[str, Any]) -> dict[str, Any]:
        self._open, self._n_blocks = block["type"], self._n_blocks + 1
        self._spoke = self._spoke or self._open != "thinking"
        return {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block}

    def _delta(self, kind: str, key: str, text: str) -> dict[str, Any]:
        delta = {"type": f"{kind}_delta", key: text}
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}

    def _closing(self) -> list[dict[str, Any]]:
        """The end of the open block, if any."""
        was, self._open = self._open, ""
        if not was:
            return []
        signed = [self._delta("signature", "signature", SIGNATURE)] if was == "thinking" else []
        return [*signed, {"type": "content_block_stop", "index": self._n_blocks - 1}]


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), to_json(data))


def _blocks(choice: AccumulatedChoice) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for item in choice.items:
        if isinstance(item, AccumulatedCall):
            call = {"type": "tool_use", "id": f"toolu_{item.id}", "name": item.name}
            blocks.append(call | {"input": _input(item)})
        elif item.text:
            blocks.append({"type": "text", "text": item.text})
    thought = {"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE}
    return [*([thought] if choice.reasoning else []), *(blocks or [{"type": "text", "text": ""}])]


def _input(call: AccumulatedCall) -> dict[str, Any]:
    """The arguments as an object; for a truncated call, its complete part, as the SDK parses it."""
    try:
        arguments = from_json(call.arguments or "{}", allow_partial=not call.complete)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


class MessageEnding(TypedDict):
    """How a message ended. stop_sequence: the string that ended it."""

    stop_reason: str | None
    stop_sequence: str | None
    stop_details: None


class MessageUsage(TypedDict):
    """Token counts. input_tokens excludes reused ones, which are in cache_read_input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]


def _ending(choice: AccumulatedChoice) -> MessageEnding:
    end = choice.end
    if end is None:
        return {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    reason = _REASONS.get(end.reason, "end_turn")
    if choice.ended_with_calls:
        reason = "tool_use"
    if end.reason == "stop" and end.stop_string is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": end.stop_string, "stop_details": None}


def _usage(choice: AccumulatedChoice) -> MessageUsage:
    stats = choice.end.stats if choice.end else None
    if stats is not None:
        cached = stats.n_reused
    else:
        cached = choice.prefill.n_reused if choice.prefill else 0
    return {
        "input_tokens": choice.start.n_prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": stats.n_predict if stats else 1,
        "output_tokens_details": {"thinking_tokens": choice.end.n_reasoning if choice.end else 0},
    }
