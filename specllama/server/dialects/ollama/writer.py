"""The writer of /api/chat and /api/generate: one JSON object per line."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specllama.client.protocol import PositionLogprobs
from specllama.errors import NotFoundError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import add_figures, described, figures
from specllama.server.events import (
    AccumulatedCall,
    AccumulatedChoice,
    Accumulator,
    CallClose,
    End,
    Event,
    Reasoning,
    TextEvent,
    to_json,
)

# Errors in the shape of Ollama's API: one text.


def error_body(error: SpecllamaError, _request_id: str = "") -> JsonObject:
    """See ErrorBody. Clients look for "not found" when a model is not served."""
    if isinstance(error, NotFoundError) and "model" in error.details:
        name = error.details["model"].removesuffix(":latest")
        return {"error": f"model '{name}' not found: {error.message}"}
    return {"error": error.message}


_REASONS = {"stop": "stop", "length": "length", "context": "length"}


def timestamp(seconds: float) -> str:
    """RFC 3339. seconds: since the epoch."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


def _now() -> str:
    return timestamp(datetime.datetime.now(datetime.UTC).timestamp())


@dataclass(frozen=True, slots=True)
class OllamaResponseOptions:
    """model: as named by the client. chat: the answer is a message, not plain text. logprobs: include them in
    a whole answer. speculate: whether drafting was allowed. ignored: the request's fields without effect.
    created_at: of the request.
    """

    model: str
    chat: bool = True
    logprobs: bool = False
    speculate: bool = True
    ignored: Sequence[str] = ()
    created_at: str = field(default_factory=_now)


class OllamaWriter:
    """A DialectWriter. Each call is sent whole, in one line, with its arguments as an object."""

    media_type = "application/x-ndjson"

    def __init__(self, options: OllamaResponseOptions) -> None:
        self.options, self.fold = options, Accumulator()
        self.ping = _line(self._chunk())  # clients of NDJSON know no comments

    def chunks(self, events: Iterable[Event]) -> list[JsonObject]:
        """The next events of an answer, as chunks of a stream."""
        chunks = []
        for event in events:
            self.fold.add([event])
            if isinstance(event, TextEvent):
                chunks.append(_with_logprobs(self._chunk(event.text), event.logprobs))
            elif isinstance(event, Reasoning):
                chunks.append(self._chunk(thinking=event.text))
            elif isinstance(event, CallClose):
                call = self.fold.choices[event.index].calls[event.call]
                chunks.append(self._chunk(calls=[_call(event.call, call)]))
            elif isinstance(event, End):
                last = _with_logprobs(self._chunk(), event.rest)
                chunks.append(self._ended(last, self.fold.choices[event.index]))
        return chunks

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:  # noqa: ARG002 - there is one
        """See DialectWriter."""
        return b"".join(map(_line, self.chunks(events)))

    def error_event(self, error: SpecllamaError) -> bytes:
        """See DialectWriter."""
        return _line(error_body(error))

    def end(self) -> bytes:
        """See DialectWriter."""
        return b""

    def answer(self) -> JsonObject:
        """See DialectWriter."""
        (choice,) = self.fold.in_order
        calls = [_call(i, call) for i, call in enumerate(choice.calls) if call.complete]
        answer = self._chunk(choice.text, choice.reasoning, calls)
        return self._ended(_with_logprobs(answer, choice.logprobs), choice)

    def loaded(self, reason: str) -> bytes:
        """The answer if nothing is generated, as one line. reason: "load" or "unload"."""
        chunk = self._chunk()
        chunk["done"], chunk["done_reason"] = True, reason
        return _line(chunk)

    def _chunk(self, text: str = "", thinking: str = "", calls: Sequence[JsonObject] = ()) -> JsonObject:
        model, created_at = self.options.model, self.options.created_at
        if self.options.chat:
            message: JsonObject = {"role": "assistant", "content": text}
            if thinking:
                message["thinking"] = thinking
            if calls:
                message["tool_calls"] = list(calls)
            return {"model": model, "created_at": created_at, "message": message, "done": False}
        if not thinking:
            return {"model": model, "created_at": created_at, "response": text, "done": False}
        return {
            "model": model, "created_at": created_at, "response": text, "thinking": thinking, "done": False,
        }  # fmt: skip

    def _ended(self, chunk: JsonObject, choice: AccumulatedChoice) -> JsonObject:
        """The chunk with end reason, numbers of tokens, times and figures."""
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
        add_figures(chunk, figures(self.fold, self.options.speculate, self.options.ignored))
        return chunk


def _line(chunk: Mapping[str, object]) -> bytes:
    return to_json(chunk) + b"\n"


def _ns(seconds: float) -> int:
    """Nanoseconds, at least 1 because clients divide by them."""
    return max(1, round(1e9 * seconds))


def _call(index: int, call: AccumulatedCall) -> JsonObject:
    function: JsonObject = {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": f"call_{call.id}", "function": function}


def _with_logprobs(chunk: JsonObject, positions: Sequence[PositionLogprobs]) -> JsonObject:
    """The chunk, with the logprobs if there are any."""
    if positions:
        chunk["logprobs"] = described(positions)
    return chunk
