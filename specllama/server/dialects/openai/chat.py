"""The body and the writer of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.client.protocol import PositionLogprobs
from specllama.json_types import JsonObject
from specllama.server.dialects.openai.writer import OpenAIWriter, ending
from specllama.server.dialects.shared.chat_fields import TemplateInput
from specllama.server.dialects.shared.figures import described
from specllama.server.dialects.shared.sampling_fields import Count, SamplingFields
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import (
    AccumulatedChoice,
    AccumulatedText,
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

    def _deltas(self, event: Event) -> list[JsonObject]:
        if isinstance(event, (Start, CallClose)):
            return []
        if isinstance(event, Prefill):
            return self._first_deltas(event) or [self._delta(event.index, {})]
        return [*self._first_deltas(event), *self._own_deltas(event)]

    def _first_deltas(self, event: Event) -> list[JsonObject]:
        deltas = []
        for index in range(self._n_begun, event.index + 1):
            content = "" if index == event.index and isinstance(event, (TextEvent, End)) else None
            if content is None:
                self._undecided.add(index)
            deltas.append(self._delta(index, {"role": "assistant", "content": content}))
            self._n_begun += 1
        return deltas

    def _own_deltas(self, event: Event) -> list[JsonObject]:
        index = event.index
        if isinstance(event, TextEvent):
            return [self._delta(index, {"content": event.text}, event.logprobs)]
        if isinstance(event, Reasoning):
            return [self._delta(index, {"reasoning_content": event.text})]
        if isinstance(event, CallOpen):
            opened = _call(event.id, event.name, "", event.call)
            return [self._delta(index, {"tool_calls": [opened]})]
        if isinstance(event, CallArgs):
            more: JsonObject = {"index": event.call, "function": {"arguments": event.text}}
            return [self._delta(index, {"tool_calls": [more]})]
        choice = self.fold.choices[index]
        rest = _logprobs(event.rest) if isinstance(event, End) and event.rest else None
        last: JsonObject = {"index": index, "delta": {}, "logprobs": rest, **_ending(choice)}
        empty = index in self._undecided and not choice.items
        return [self._delta(index, {"content": ""}), last] if empty else [last]

    def _delta(self, index: int, delta: JsonObject, logprobs: Sequence[PositionLogprobs] = ()) -> JsonObject:
        shown = _logprobs(logprobs) if logprobs else None
        return {"index": index, "delta": delta, "logprobs": shown, "finish_reason": None}

    def _whole(self, choice: AccumulatedChoice) -> JsonObject:
        calls = [_call(call.id, call.name, call.arguments) for call in choice.calls]
        has_text = any(isinstance(item, AccumulatedText) for item in choice.items)
        content = choice.text if has_text or not calls else None
        message: JsonObject = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if calls:
            message["tool_calls"] = calls
        return {
            "index": choice.start.index,
            "message": message,
            "logprobs": _logprobs(choice.logprobs) if self.options.logprobs else None,
            **_ending(choice),
        }


def _call(id_: str, name: str, arguments: str, index: int | None = None) -> JsonObject:
    """index: of a streamed call."""
    function: JsonObject = {"name": name, "arguments": arguments}
    if index is None:
        return {"id": f"call_{id_}", "type": "function", "function": function}
    return {"index": index, "id": f"call_{id_}", "type": "function", "function": function}


def _ending(choice: AccumulatedChoice) -> JsonObject:
    fields = ending(choice.end, choice.start)
    if choice.ended_with_calls:
        fields["finish_reason"] = "tool_calls"
    return fields


def _logprobs(positions: Sequence[PositionLogprobs]) -> JsonObject:
    return {"content": described(positions), "refusal": None}


class ChatRequest(TemplateInput, SamplingFields):
    """The body of /v1/chat/completions."""

    max_completion_tokens: Count | None = None

    @property
    def own_limit(self) -> int | None:
        return self.max_completion_tokens

    def engine_fields(self) -> JsonObject:
        return {**super().engine_fields(), "show_prompt": bool(self.verbose)}
