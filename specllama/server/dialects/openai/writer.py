"""Common parts of the writers of chat completions and completions."""

from __future__ import annotations

from collections.abc import Sequence

import specllama
from specllama.core.stats import summed
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import (
    add_figures,
    native_answer,
    prompt_progress,
    running_timings,
    trace_of,
)
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter
from specllama.server.events import AccumulatedChoice, Accumulator, End, Event, Prefill, Start, random_key

# Token counts of an answer, in the forms of OpenAI's APIs.


def usage(fold: Accumulator) -> JsonObject:
    """Token counts; each prompt counts once, whatever the number of its choices."""
    prompts = {c.start.prompt: c for c in reversed(fold.in_order)}.values()
    n_prompt = sum(c.start.n_prompt for c in prompts)
    n_cached = sum(c.end.stats.n_reused for c in prompts if c.end)
    total = summed(end.stats for end in fold.ends)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": total.n_predict,
        "total_tokens": n_prompt + total.n_predict,
        "prompt_tokens_details": {"cached_tokens": n_cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": total.n_accept,
            "rejected_prediction_tokens": total.n_drafted - total.n_accept,
            "reasoning_tokens": sum(end.n_reasoning for end in fold.ends),
            "audio_tokens": 0,
        },
    }


def response_usage(fold: Accumulator) -> JsonObject:
    """The same counts for /v1/responses."""
    counts = usage(fold)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": counts["total_tokens"],
    }


FINGERPRINT = f"build-specllama-{specllama.__version__}"  # begins as llama-server's does
_REASONS = {"stop": "stop", "length": "length", "context": "length"}


class OpenAIWriter(AnswerWriter):
    """Subclasses write the choices."""

    prefix, chunk_object, answer_object = "", "", ""

    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(options)
        self.id = f"{self.prefix}-{random_key()}"

    def chunks_of(self, event: Event) -> Sequence[JsonObject]:
        if isinstance(event, Prefill) and not self.options.progress:
            return []
        deltas = self._deltas(event)
        chunks = [self._chunk([one], self._fields(event if one is deltas[-1] else None)) for one in deltas]
        if isinstance(event, End) and len(self.fold.ends) == self.n_choices:
            if self.options.usage_chunk:
                chunks.append(self._chunk([], {"usage": usage(self.fold)}))
            self._add_figures(chunks[-1])
        return chunks

    def _add_figures(self, chunk: JsonObject) -> None:
        """Add the figures to the last chunk, which is one of its own if the client asks for that."""
        add_figures(chunk, self.figures())
        if self.options.verbose:
            chunk["__verbose"] = self._native_answer()

    def answer(self) -> JsonObject:
        verbose: JsonObject = {"__verbose": self._native_answer()} if self.options.verbose else {}
        return {
            **self._head(self.answer_object),
            "choices": [self._whole(choice) for choice in self.fold.in_order],
            "usage": usage(self.fold),
            **self.figures(),
            **verbose,
        }

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def _chunk(self, choices: list[JsonObject], fields: JsonObject) -> JsonObject:
        return {**self._head(self.chunk_object), "choices": choices, **fields}

    def _fields(self, event: Event | None) -> JsonObject:
        """Optional fields of a chunk, as requested."""
        fields: JsonObject = {}
        if self.options.usage_chunk:
            fields["usage"] = None
        if self.options.trace and event is not None and (traced := trace_of(event)):
            fields["speculation"] = traced
        if self.options.timings and event is not None and not isinstance(event, (Start, End)):
            fields["timings"] = running_timings(self.fold.choices[event.index])
        if isinstance(event, Prefill):
            fields["prompt_progress"] = prompt_progress(event)
        return fields

    def _native_answer(self) -> JsonObject:
        return native_answer(self.fold.in_order[0], self.options.model)

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": self.id,
            "object": kind,
            "created": int(self.options.created),
            "model": self.options.model,
            "system_fingerprint": FINGERPRINT,
        }

    def _deltas(self, event: Event) -> list[JsonObject]:
        raise NotImplementedError

    def _whole(self, choice: AccumulatedChoice) -> JsonObject:
        raise NotImplementedError


def ending(end: End | None, start: Start) -> JsonObject:
    """End reason of a choice, and the seed that reproduces it."""
    reason = _REASONS.get(end.reason, "stop") if end else None
    return {
        "finish_reason": reason,
        "stop_reason": end.stop_string if end else None,
        "seed": start.seed,
    }
