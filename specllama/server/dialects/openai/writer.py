"""Common parts of the writers of chat completions and completions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import specllama
from specllama.errors import SpecllamaError
from specllama.server.dialects.openai.usage import usage
from specllama.server.dialects.shared.figures import figures, prompt_progress, running_timings
from specllama.server.dialects.shared.native_answer import native_answer
from specllama.server.dialects.shared.openai_errors import error_body
from specllama.server.dialects.shared.trace import trace_of
from specllama.server.events import (
    AccumulatedChoice,
    Accumulator,
    End,
    Event,
    Prefill,
    Start,
)
from specllama.server.ids import random_key
from specllama.server.writer import data_event

FINGERPRINT = f"build-specllama-{specllama.__version__}"  # begins as llama-server's does
_REASONS = {"stop": "stop", "length": "length", "context": "length"}


@dataclass(slots=True)
class ResponseOptions:
    """Options of an answer. usage_chunk: send the usage in a chunk of its own. trace: chunks name the
    drafters of their tokens. timings, progress: chunks include llama-server's timings so far, and the
    progress of the prompt. verbose: include the answer in llama-server's own form, with the prompt.
    speculate: whether drafting was allowed. ignored: the request's fields without effect. created: seconds
    since the epoch.
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
    created: int = field(default_factory=lambda: int(time.time()))


class OpenAIWriter:
    """A DialectWriter; subclasses write the choices."""

    prefix, chunk_object, answer_object = "", "", ""
    media_type, ping = "text/event-stream", b": waiting\n\n"

    def __init__(self, options: ResponseOptions) -> None:
        self.options, self.fold = options, Accumulator()
        self.id = f"{self.prefix}-{random_key()}"

    def chunks(self, events: Iterable[Event], n_choices: int) -> list[dict[str, Any]]:
        """Chunks of a stream for the next events of an answer with n_choices choices."""
        chunks = []
        for event in events:
            self.fold.add([event])
            if isinstance(event, Prefill) and not self.options.progress:
                continue
            for choice in (deltas := self._deltas(event)):
                chunks.append(self._chunk([choice], event if choice is deltas[-1] else None))
            if isinstance(event, End) and len(self.fold.ends) == n_choices:
                self._add_figures(chunks)
        return chunks

    def _add_figures(self, chunks: list[dict[str, Any]]) -> None:
        """Add the figures in a chunk of their own if the client asks for that, otherwise to the last
        chunk.
        """
        more = self._figures()
        if self.options.usage_chunk:
            chunks.append(self._head(self.chunk_object) | {"choices": [], "usage": usage(self.fold)} | more)
        else:
            traced = chunks[-1].get("speculation", {})
            chunks[-1] |= more | {"speculation": more["speculation"] | traced}

    def answer(self) -> dict[str, Any]:
        """See DialectWriter."""
        choices = [self._whole(choice) for choice in self.fold.in_order]
        more = {"usage": usage(self.fold), **self._figures()}
        return self._head(self.answer_object) | {"choices": choices} | more

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:
        """See DialectWriter."""
        return b"".join(data_event(chunk) for chunk in self.chunks(events, n_choices))

    def error_event(self, error: SpecllamaError) -> bytes:
        """See DialectWriter."""
        return data_event(error_body(error))

    def end(self) -> bytes:
        """See DialectWriter."""
        return b"data: [DONE]\n\n"

    def _chunk(self, choices: Sequence[dict[str, Any]], event: Event | None) -> dict[str, Any]:
        chunk = self._head(self.chunk_object) | {"choices": list(choices)}
        if self.options.usage_chunk:
            chunk["usage"] = None
        return chunk | self._shown(event)

    def _shown(self, event: Event | None) -> dict[str, Any]:
        """Optional fields of a chunk, as requested."""
        fields: dict[str, Any] = {}
        if self.options.trace and event is not None and (traced := trace_of(event)):
            fields["speculation"] = traced
        if self.options.timings and event is not None and not isinstance(event, (Start, End)):
            fields["timings"] = running_timings(self.fold.choices[event.index])
        if isinstance(event, Prefill):
            fields["prompt_progress"] = prompt_progress(event)
        return fields

    def _figures(self) -> dict[str, Any]:
        return {**figures(self.fold, self.options.speculate, self.options.ignored), **self._verbose()}

    def _verbose(self) -> dict[str, Any]:
        if not self.options.verbose:
            return {}
        first = self.fold.in_order[0]
        return {"__verbose": native_answer(first, self.options.model)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.options.created,
            "model": self.options.model,
            "system_fingerprint": FINGERPRINT,
        }

    def _deltas(self, event: Event) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _whole(self, choice: AccumulatedChoice) -> dict[str, Any]:
        raise NotImplementedError


class ChoiceEnding(TypedDict):
    """How a choice ended. stop_reason: the string that ended it."""

    finish_reason: str | None
    stop_reason: str | None
    seed: int


def ending(end: End | None, start: Start) -> ChoiceEnding:
    """End reason of a choice, and the seed that reproduces it."""
    reason = _REASONS.get(end.reason, "stop") if end else None
    return {
        "finish_reason": reason,
        "stop_reason": end.stop_string if end else None,
        "seed": start.seed,
    }
