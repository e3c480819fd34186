"""The bodies and the writers of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

import specllama
from specllama.client import protocol
from specllama.client.protocol import PositionLogprobs
from specllama.core.stats import summed
from specllama.json_types import JsonObject
from specllama.server import events
from specllama.server.dialects.shared import figures
from specllama.server.dialects.shared.chat_fields import TemplateInput
from specllama.server.dialects.shared.fields import FieldError, RequestBody
from specllama.server.dialects.shared.raw_prompts import RawPromptFields
from specllama.server.dialects.shared.sampling_fields import MAX_N, Count, ModelName, SamplingFields
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter

def usage(fold: events.Accumulator) -> JsonObject:
    """Token counts; each prompt counts once, whatever the number of its choices."""
    prompts = {c.start.prompt: c for c in reversed(fold.in_order)}.values()
    n_prompt = sum(c.start.n_prompt for c in prompts)
    n_cached = sum(c.end.stats.n_reused for c in prompts if c.end)
    total = summed(end.stats for end in fold.ends)
    n_drafted, n_accept = total.n_drafted, total.n_accept
    if total.n_prediction:  # as OpenAI counts them; without one, all drafts
        n_drafted, n_accept = total.n_predicted, total.n_predicted_accept
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": total.n_predict,
        "total_tokens": n_prompt + total.n_predict,
        "prompt_tokens_details": {"cached_tokens": n_cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": n_accept,
            "rejected_prediction_tokens": n_drafted - n_accept,
            "reasoning_tokens": sum(end.n_reasoning for end in fold.ends),
            "audio_tokens": 0,
        },
    }


def response_usage(fold: events.Accumulator) -> JsonObject:
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
        self.id = f"{self.prefix}-{events.random_key()}"

    def chunks_of(self, event: events.Event) -> Sequence[JsonObject]:
        if isinstance(event, events.Prefill) and not self.options.progress:
            return []
        deltas = self._deltas(event)
        chunks = [self._chunk([one], self._fields(event if one is deltas[-1] else None)) for one in deltas]
        if isinstance(event, events.End) and len(self.fold.ends) == self.n_choices:
            if self.options.usage_chunk:
                chunks.append(self._chunk([], {"usage": usage(self.fold)}))
            figures.add_figures(
                chunks[-1], self.figures()
            )  # in a chunk of its own if the client asks for that
            if self.options.verbose:
                chunks[-1]["__verbose"] = self._native_answer()
        return chunks

    def answer(self) -> JsonObject:
        return {
            **self._head(self.answer_object),
            "choices": [self._whole(choice) for choice in self.fold.in_order],
            "usage": usage(self.fold),
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
