"""The writer of /api/chat and /api/generate: one JSON object per line."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

from specllama.client.protocol import PositionLogprobs
from specllama.errors import NotFoundError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import add_figures, described
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter
from specllama.server.events import (
    AccumulatedCall,
    AccumulatedChoice,
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


class OllamaWriter(AnswerWriter):
    """Sends each call whole, in one line, with its arguments as an object. chat: the answer is a message, not
    plain text.
    """

    media_type = "application/x-ndjson"

    def __init__(self, options: AnswerOptions, chat: bool = True) -> None:
        super().__init__(options)
        self._chat, self._created_at = chat, timestamp(options.created)
        self.ping = self.encoded(self._chunk())  # clients of NDJSON know no comments

    def chunks_of(self, event: Event) -> Sequence[JsonObject]:
        if isinstance(event, TextEvent):
            return [_with_logprobs(self._chunk(event.text), event.logprobs)]
        if isinstance(event, Reasoning):
            return [self._chunk(thinking=event.text)]
        choice = self.fold.choices[event.index]
        if isinstance(event, CallClose):
            return [self._chunk(calls=[_call(event.call, choice.calls[event.call])])]
        if isinstance(event, End):
            return [self._ended(_with_logprobs(self._chunk(), event.rest), choice)]
        return []

    def error_body(self, error: SpecllamaError) -> JsonObject:
        return error_body(error)

    def encoded(self, chunk: JsonObject) -> bytes:
        return to_json(chunk) + b"\n"

    def answer(self) -> JsonObject:
        (choice,) = self.fold.in_order
        calls = [_call(i, call) for i, call in enumerate(choice.calls) if call.complete]
        answer = self._chunk(choice.text, choice.reasoning, calls)
        return self._ended(_with_logprobs(answer, choice.logprobs), choice)

    def loaded(self, reason: str) -> bytes:
        """The answer if nothing is generated, as one line. reason: "load" or "unload"."""
        return self.encoded(self._chunk() | {"done": True, "done_reason": reason})

    def _chunk(self, text: str = "", thinking: str = "", calls: Sequence[JsonObject] = ()) -> JsonObject:
        head: JsonObject = {"model": self.options.model, "created_at": self._created_at}
        thought = {"thinking": thinking} if thinking else {}
        if not self._chat:
            return {**head, "response": text, **thought, "done": False}
        message: JsonObject = {"role": "assistant", "content": text, **thought}
        if calls:
            message["tool_calls"] = list(calls)
        return {**head, "message": message, "done": False}

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
        add_figures(chunk, self.figures())
        return chunk


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
