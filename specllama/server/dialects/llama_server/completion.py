"""The writer of llama-server's native /completion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import (
    PromptProgress,
    Timings,
    own_figures,
    prompt_progress,
    running_timings,
)
from specllama.server.dialects.shared.logprobs import number
from specllama.server.dialects.shared.native_answer import NativeAnswer, NativeToken, native_answer
from specllama.server.dialects.shared.openai_errors import error_body
from specllama.server.dialects.shared.trace import AnswerTrace, trace_of
from specllama.server.events import AccumulatedChoice, Accumulator, End, Event, Prefill, TextEvent
from specllama.server.writer import data_event


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """Options of an answer. final_probs: show probabilities after sampling. several: the answer is a list.
    fields: those to send, () for all. model_facts: returns end token ids and drafter names, called once the
    model has generated something. The others are fields of the request.
    """

    model: str
    stream: bool = False
    final_probs: bool = False
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    trace: bool = False
    speculate: bool = True
    several: bool = False
    fields: Sequence[str] = ()
    ignored: Sequence[str] = ()
    model_facts: Callable[[], tuple[Sequence[int], Sequence[str]]] = lambda: ((), ())


class NativeChunk(TypedDict):
    """A part of a stream before the last one: text, or progress of the prompt."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: NotRequired[Timings]
    completion_probabilities: NotRequired[list[NativeToken]]
    prompt_progress: NotRequired[PromptProgress]
    speculation: NotRequired[AnswerTrace]


class NativeWriter:
    """A DialectWriter. A stream has an object per piece of text, or per token if probabilities are shown,
    then one with `stop: true` and all fields but the text; it ends without `[DONE]`.
    """

    media_type, ping = "text/event-stream", b":\n\n"

    def __init__(self, options: NativeOptions) -> None:
        self.options, self.fold = options, Accumulator()

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:
        """See DialectWriter."""
        del n_choices
        return b"".join(data_event(chunk) for event in events for chunk in self._chunks(event))

    def error_event(self, error: SpecllamaError) -> bytes:
        """See DialectWriter."""
        return data_event(error_body(error))

    def end(self) -> bytes:
        """See DialectWriter."""
        return b""

    def answer(self) -> Mapping[str, object] | list[Mapping[str, object]]:
        """See DialectWriter."""
        answers = []
        for choice in self.fold.in_order:
            tokens = choice.ids if self.options.return_tokens else []
            probs = [*choice.logprobs, *(choice.end.logprobs if choice.end else ())]
            answers.append(self._selected(self._final(choice, choice.text, tokens, probs)))
        return answers if self.options.several else answers[0]

    def _chunks(self, event: Event) -> Sequence[Mapping[str, object]]:
        self.fold.add([event])
        choice = self.fold.choices[event.index]
        if isinstance(event, Prefill):
            return [self._progress(choice, event)] if self.options.return_progress else []
        if isinstance(event, TextEvent):
            chunks = [self._piece(choice, *piece) for piece in self._pieces(event)]
            if self.options.trace:
                chunks[-1]["speculation"] = trace_of(event)
            return chunks
        if not isinstance(event, End):
            return []
        probs = [*event.rest, *event.logprobs]
        rest = [self._piece(choice, "", event.ids, probs)] if event.ids else []
        final = self._final(choice, "", (), ())
        if self.options.trace:
            speculation: AnswerTrace = final["speculation"]
            speculation.update(trace_of(event))
        return [*rest, self._selected(final)]

    def _pieces(self, event: TextEvent) -> Sequence[tuple[str, Sequence[int], Sequence[PositionLogprobs]]]:
        """Text, ids and probabilities of each chunk: per token, or for the tokens that share a character."""
        probs = event.logprobs
        if len(probs) < 2 or sum(p.length for p in probs) != len(event.text):
            return [(event.text, event.ids, probs)]
        pieces: list[tuple[str, list[int], list[PositionLogprobs]]] = []
        text, begins = event.text, True
        for p in probs:
            if begins:
                pieces.append(("", [], []))
            _, ids, entries = pieces[-1]
            pieces[-1] = text[: p.length], [*ids, p.chosen.id], [*entries, p]
            text, begins = text[p.length :], p.length > 0
        return pieces

    def _piece(
        self,
        choice: AccumulatedChoice,
        content: str,
        tokens: Sequence[int],
        probs: Sequence[PositionLogprobs],
    ) -> NativeChunk:
        chunk: NativeChunk = {
            "index": choice.start.index,
            "content": content,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(choice.ids),
            "tokens_evaluated": choice.start.n_prompt,
        }
        if self.options.timings_per_token:
            chunk["timings"] = running_timings(choice)
        if probs:
            chunk["completion_probabilities"] = self._probabilities(probs)
        return chunk

    def _progress(self, choice: AccumulatedChoice, event: Prefill) -> NativeChunk:
        chunk = self._piece(choice, "", (), ())
        chunk["prompt_progress"] = prompt_progress(event)
        return chunk

    def _final(
        self,
        choice: AccumulatedChoice,
        content: str,
        tokens: Sequence[int],
        probs: Sequence[PositionLogprobs],
    ) -> NativeAnswer:
        end_ids, drafters = self.options.model_facts()
        answer = native_answer(
            choice,
            self.options.model,
            end_ids,
            drafters,
            stream=self.options.stream,
            timings_per_token=self.options.timings_per_token,
            post_sampling_probs=self.options.final_probs,
        )
        answer["content"], answer["tokens"] = content, list(tokens)
        answer["speculation"] = own_figures(filter(None, [choice.end]), self.options.speculate)
        if probs:
            answer["completion_probabilities"] = self._probabilities(probs)
        if self.options.ignored:
            answer["ignored_fields"] = list(self.options.ignored)
        return answer

    def _selected(self, answer: NativeAnswer) -> Mapping[str, object]:
        return _only(answer, self.options.fields) if self.options.fields else answer

    def _probabilities(self, positions: Sequence[PositionLogprobs]) -> list[NativeToken]:
        tokens = []
        for position in positions:
            token, top = self._token(position.chosen), [self._token(c) for c in position.top]
            if self.options.final_probs:
                token["top_probs"] = top
            else:
                token["top_logprobs"] = top
            tokens.append(token)
        return tokens

    def _token(self, candidate: CandidateLogprob) -> NativeToken:
        token: NativeToken = {"id": candidate.id, "token": candidate.token, "bytes": candidate.bytes}
        if self.options.final_probs:
            token["prob"] = 0.0 if candidate.logprob is None else math.exp(candidate.logprob)
        else:
            token["logprob"] = number(candidate.logprob)
        return token


def _only(answer: Mapping[str, object], fields: Sequence[str]) -> JsonObject:
    """The requested fields that the answer has. "a/b" is field b of object a, under that name."""
    selected = {}
    for name in fields:
        value: Any = answer
        for part in name.split("/"):
            value = value[part] if isinstance(value, dict) and part in value else _MISSING
        if value is not _MISSING:
            selected[name] = value
    return selected


_MISSING = object()
