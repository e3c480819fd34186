"""The base of the writers of all APIs: an answer, streamed or whole, from the stream of events.

Also OpenAI's form of errors, which most of them use.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specllama import errors
from specllama.core.sampling.params import PARAMETERS
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import figures
from specllama.server.events import Accumulator, Event, to_json

_CODES: Mapping[type[errors.SpecllamaError], str] = {
    errors.ContextLengthError: "context_length_exceeded",
    errors.BusyError: "queue_full",
    errors.AccessError: "invalid_api_key",
    errors.NotFoundError: "model_not_found",
    errors.DeadlineError: "deadline_exceeded",
    errors.NotSupportedError: "unsupported",
}
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
"""Types of errors by status, in OpenAI's and Anthropic's API."""
_TYPES = ERROR_TYPES | {501: "not_supported_error", 503: "unavailable_error"}


def error_body(error: errors.SpecllamaError, _request_id: str = "") -> JsonObject:
    """An error of the OpenAI API, with llama-server's additions for a prompt that is too long."""
    status = error.http_status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if isinstance(error, errors.ContextLengthError):
        kind = "exceed_context_size_error"
    sampling = error.option if error.option in PARAMETERS else None
    shown: JsonObject = {
        "message": error.message,
        "type": kind,
        "param": error.details.get("param") or sampling,
        "code": next((code for cls, code in _CODES.items() if isinstance(error, cls)), None),
    }
    sizes = {name: error.details[name] for name in ("n_prompt_tokens", "n_ctx") if name in error.details}
    return {"error": {**shown, **sizes}}


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The parts and the form of an answer that a request asks for.

    model: as shown. logprobs: include them in a whole answer. usage_chunk: send the usage in a chunk of its
    own. trace: chunks name the drafters of their tokens. timings, progress: chunks include llama-server's
    timings so far, and the progress of the prompt. verbose: include the answer in llama-server's own form,
    with the prompt. speculate: whether drafting was allowed. ignored: the request's fields without effect.
    request_id: for errors. created: seconds since the epoch.
    """

    model: str
    logprobs: bool = False
    usage_chunk: bool = False
    trace: bool = False
    timings: bool = False
    progress: bool = False
    verbose: bool = False
    speculate: bool = True
    ignored: Sequence[str] = ()
    request_id: str = ""
    created: float = field(default_factory=time.time)


class AnswerWriter(ABC):
    """Writes one answer.

    fold: accumulates the events. n_choices: of the answer. media_type: of a stream. ping: bytes that keep an
    idle stream alive; clients ignore them. id: of the answer, "" in APIs that have none. named: whether
    events are named by the types of their chunks.
    """

    id, named = "", False
    media_type, ping = "text/event-stream", b": waiting\n\n"

    def __init__(self, options: AnswerOptions) -> None:
        self.options, self.fold, self.n_choices = options, Accumulator(), 1

    @abstractmethod
    def chunks_of(self, event: Event) -> Sequence[JsonObject]:
        """The chunks of a stream for an event, which `fold` already includes."""

    @abstractmethod
    def answer(self) -> Mapping[str, object] | Sequence[Mapping[str, object]]:
        """The whole answer, from `fold`."""

    def chunks(self, events: Iterable[Event], n_choices: int = 1) -> list[JsonObject]:
        """The chunks of a stream for the next events, which are added to `fold`."""
        self.n_choices, chunks = n_choices, list[JsonObject]()
        for event in events:
            self.fold.add([event])
            chunks += self.chunks_of(event)
        return chunks

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:
        """The part of a stream for the next events."""
        return b"".join(map(self.encoded, self.chunks(events, n_choices)))

    def encoded(self, chunk: JsonObject) -> bytes:
        """A chunk as a part of a stream: a server-sent event."""
        name = b"event: " + chunk["type"].encode() + b"\n" if self.named else b""
        return name + b"data: " + to_json(chunk) + b"\n\n"

    def error_event(self, error: errors.SpecllamaError) -> bytes:
        """An error after the first byte, as a part of a stream."""
        return self.encoded(self.error_body(error))

    def error_body(self, error: errors.SpecllamaError) -> JsonObject:
        return error_body(error)

    def end(self) -> bytes:
        """The last bytes of a stream, after an error too."""
        return b""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Called once after the answer, also if the client disconnects before its end."""

    def figures(self) -> JsonObject:
        return figures(self.fold, self.options.speculate, self.options.ignored)
