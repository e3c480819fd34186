"""The writer of /api/chat and /api/generate: one JSON object per line."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.client.protocol import PositionLogprobs
from specllama.errors import SpecllamaError
from specllama.server.dialects.ollama.errors import error_body
from specllama.server.dialects.shared.figures import figures
from specllama.server.dialects.shared.logprobs import described
from specllama.server.events import (
    AccumulatedCall,
    AccumulatedChoice,
    Accumulator,
    CallClose,
    End,
    Event,
    Reasoning,
    TextEvent,
)
from specllama.server.writer import to_json

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
        self.ping = _line(self._chunk(self._part("")))  # clients of NDJSON know no comments

    def chunks(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        """The next events of an answer, as chunks of a stream."""
        chunks = []
        for event in events:
            self.fold.add([event])
            if isinstance(event, TextEvent):
                chunks.append(self._chunk(self._part(event.text)) | _logprobs(event.logprobs))
            elif isinstance(event, Reasoning):
                chunks.append(self._chunk(self._part("", event.text)))
            elif isinstance(event, CallClose):
                call = self.fold.choices[event.index].calls[event.call]
                chunks.append(self._chunk(self._part("", calls=[_call(event.call, call)])))
            elif isinstance(event, End):
                last = self._chunk(self._part("")) | _logprobs(event.rest)
                chunks.append(last | self._ending(self.fold.choices[event.index]))
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

    def answer(self) -> dict[str, Any]:
        """See DialectWriter."""
        (choice,) = self.fold.in_order
        calls = [_call(i, call) for i, call in enumerate(choice.calls) if call.complete]
        answer = self._chunk(self._part(choice.text, choice.reasoning, calls))
        return answer | _logprobs(choice.logprobs) | self._ending(choice)

    def loaded(self, reason: str) -> bytes:
        """The answer if nothing is generated, as one line. reason: "load" or "unload"."""
        return _line(self._chunk(self._part("")) | {"done": True, "done_reason": reason})

    def _chunk(self, part: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.options.model, "created_at": self.options.created_at, **part, "done": False}

    def _part(self, text: str, thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if not self.options.chat:
            return {"response": text, **more}
        if calls:
            more["tool_calls"] = list(calls)
        return {"message": {"role": "assistant", "content": text, **more}}

    def _ending(self, choice: AccumulatedChoice) -> dict[str, Any]:
        """End reason, numbers of tokens and times."""
        assert choice.end is not None
        stats = choice.end.stats
        return {
            "done": True,
            "done_reason": _REASONS.get(choice.end.reason, "stop"),
            "total_duration": _ns(stats.ttft_seconds + stats.decode_seconds),
            "load_duration": _ns(stats.ttft_seconds - stats.encode_seconds),
            "prompt_eval_count": choice.start.n_prompt,
            "prompt_eval_duration": _ns(stats.encode_seconds),
            "eval_count": stats.n_predict,
            "eval_duration": _ns(stats.decode_seconds),
            **figures(self.fold, self.options.speculate, self.options.ignored),
        }


def _line(chunk: dict[str, Any]) -> bytes:
    return to_json(chunk) + b"\n"


def _ns(seconds: float) -> int:
    """Nanoseconds, at least 1 because clients divide by them."""
    return max(1, round(1e9 * seconds))


def _call(index: int, call: AccumulatedCall) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": f"call_{call.id}", "function": function}


def _logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    return {"logprobs": described(positions)} if positions else {}
