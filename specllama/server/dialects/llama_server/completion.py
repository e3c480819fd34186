"""The writer of llama-server's native /completion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specllama.client import protocol
from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.json_types import JsonObject
from specllama.server.dialects.shared import figures
from specllama.server.dialects.shared.fields import SMALL, AtMost, Body
from specllama.server.dialects.shared.raw_prompts import RawPromptFields
from specllama.server.dialects.shared.sampling_fields import MAX_N, SamplingFields
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter
from specllama.server.events import AccumulatedChoice, End, Event, Prefill, TextEvent


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """Options of this API's answers. final_probs: show probabilities after sampling. several: the answer is a
    list. fields: those to send, () for all. model_facts: returns end token ids and drafter names, called once
    the model has generated something. The others are fields of the request.
    """

    stream: bool = False
    final_probs: bool = False
    return_tokens: bool = False
    several: bool = False
    fields: Sequence[str] = ()
    model_facts: Callable[[], tuple[Sequence[int], Sequence[str]]] = lambda: ((), ())


class NativeWriter(AnswerWriter):
    """A stream has an object per piece of text, or per token if probabilities are shown, then one with
    `stop: true` and all fields but the text; it ends without `[DONE]`.
    """

    ping = b":\n\n"

    def __init__(self, options: AnswerOptions, native: NativeOptions | None = None) -> None:
        super().__init__(options)
        self.native = native or NativeOptions()

    def answer(self) -> JsonObject | list[JsonObject]:
        answers = []
        for choice in self.fold.in_order:
            tokens = choice.ids if self.native.return_tokens else []
            probs = [*choice.logprobs, *(choice.end.logprobs if choice.end else ())]
            answers.append(_selected(self._final(choice, choice.text, tokens, probs), self.native.fields))
        return answers if self.native.several else answers[0]

    def chunks_of(self, event: Event) -> Sequence[JsonObject]:
        choice = self.fold.choices[event.index]
        if isinstance(event, Prefill):
            shown = {**self._piece(choice, "", (), ()), "prompt_progress": figures.prompt_progress(event)}
            return [shown] if self.options.progress else []
        if isinstance(event, TextEvent):
            chunks = [self._piece(choice, *piece) for piece in self._pieces(event)]
            if self.options.trace:
                chunks[-1]["speculation"] = figures.trace_of(event)
            return chunks
        if not isinstance(event, End):
            return []
        probs = [*event.rest, *event.logprobs]
        rest = [self._piece(choice, "", event.ids, probs)] if event.ids else []
        final = self._final(choice, "", (), ())
        if self.options.trace:
            final["speculation"] |= figures.trace_of(event)
        return [*rest, _selected(final, self.native.fields)]

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
    ) -> JsonObject:
        chunk: JsonObject = {
            "index": choice.start.index,
            "content": content,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(choice.ids),
            "tokens_evaluated": choice.start.n_prompt,
        }
        if self.options.timings:
            chunk["timings"] = figures.running_timings(choice)
        if probs:
            chunk["completion_probabilities"] = self._probabilities(probs)
        return chunk

    def _final(
        self,
        choice: AccumulatedChoice,
        content: str,
        tokens: Sequence[int],
        probs: Sequence[PositionLogprobs],
    ) -> JsonObject:
        end_ids, drafters = self.native.model_facts()
        answer = figures.native_answer(
            choice,
            self.options.model,
            end_ids,
            drafters,
            stream=self.native.stream,
            timings_per_token=self.options.timings,
            post_sampling_probs=self.native.final_probs,
        )
        answer["content"], answer["tokens"] = content, list(tokens)
        answer["speculation"] = figures.own_figures(filter(None, [choice.end]), self.options.speculate)
        if probs:
            answer["completion_probabilities"] = self._probabilities(probs)
        if self.options.ignored:
            answer["ignored_fields"] = list(self.options.ignored)
        return answer

    def _probabilities(self, positions: Sequence[PositionLogprobs]) -> list[JsonObject]:
        name = "top_probs" if self.native.final_probs else "top_logprobs"
        return [{**self._token(p.chosen), name: [self._token(c) for c in p.top]} for p in positions]

    def _token(self, candidate: CandidateLogprob) -> JsonObject:
        token: JsonObject = {"id": candidate.id, "token": candidate.token, "bytes": candidate.bytes}
        if self.native.final_probs:
            return {**token, "prob": 0.0 if candidate.logprob is None else math.exp(candidate.logprob)}
        return {**token, "logprob": figures.number(candidate.logprob)}


def _selected(answer: JsonObject, fields: Sequence[str]) -> JsonObject:
    """The fields that the answer has, all for (). "a/b" is field b of object a, under that name."""
    selected = {} if fields else answer
    for name in fields:
        value: Any = answer
        for part in name.split("/"):
            value = value[part] if isinstance(value, dict) and part in value else _MISSING
        if value is not _MISSING:
            selected[name] = value
    return selected


_MISSING = object()


MAX_RESPONSE_FIELDS, MAX_FIELD_CHARS = 64, 128
_ALIASES = {
    "max_new_tokens": "n_predict",
    "max_completion_tokens": "n_predict",
    "stopping_strings": "stop",
    "stop_sequence": "stop",
    "sampler_seed": "seed",
    "rep_pen": "repeat_penalty",
    "rep_pen_range": "repeat_last_n",
    "repetition_penalty_range": "repeat_last_n",
    "typical": "typical_p",
    "tfs": "tfs_z",
    "mirostat_mode": "mirostat",
    "nsigma": "top_n_sigma",
    "ban_eos_token": "ignore_eos",
    "grammar_string": "grammar",
    "n": "n_cmpl",
}
"""Names of other front ends, and older ones of llama-server, with those that count if both are given."""


class NativeRequest(RawPromptFields):
    """prompt: a text, ids, a list mixing texts and ids, or a list of such prompts with an answer each.
    n_cmpl: answers per prompt. response_fields: those of the answer to send, "a/b" for field b of object a.
    """

    n_cmpl: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    post_sampling_probs: bool = False
    return_tokens: bool = False
    response_fields: (
        Annotated[list[Annotated[str, Field(max_length=MAX_FIELD_CHARS)]], AtMost(MAX_RESPONSE_FIELDS)] | None
    ) = None
    aliases: ClassVar[Mapping[str, str]] = {**SamplingFields.aliases, **_ALIASES}

    def shows(self, field: str) -> bool:
        return not self.response_fields or field in self.response_fields

    def engine_fields(self) -> JsonObject:
        shows = {"show_prompt": self.shows("prompt"), "final_probs": self.post_sampling_probs}
        return {**super().engine_fields(), **shows}

    def native_options(self, model_facts: Callable[[], tuple[Sequence[int], Sequence[str]]]) -> NativeOptions:
        several = len(self.raw_prompts()) * self.n_cmpl > 1
        shown = self.stream, self.post_sampling_probs, self.return_tokens, several
        return NativeOptions(*shown, self.response_fields or (), model_facts)

    @property
    def n_choices(self) -> int:
        return self.n_cmpl

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:  # noqa: ARG002
        return self.prompt_inputs()


MAX_EXTRA, MAX_FILENAME = 1024, 1024


class ExtraChunk(Body):
    """A text from another file. time: when the editor saw it, without effect."""

    text: str
    filename: Annotated[str, Field(max_length=MAX_FILENAME)] = "tmp"
    time: Annotated[Any, SMALL] = None


class InfillRequest(NativeRequest):
    """input_prefix, input_suffix: the text before and after the gap. prompt: the beginning of the filling.
    input_extra: other texts, most important last. id_slot: if 0 or more, a newer request of the same client
    with this number ends this one with the text that it has.
    """

    prompt: str = ""
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraChunk], AtMost(MAX_EXTRA)] = Field([])
    id_slot: Annotated[int, Field(ge=-1, lt=2**31)] = -1

    @property
    def supersedes(self) -> str:
        return f"infill {self.id_slot}" if self.id_slot >= 0 else ""

    @property
    def logged(self) -> Any:
        return [self.input_prefix, self.prompt, self.input_suffix]

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:  # noqa: ARG002
        extra = [protocol.InfillChunk(chunk.text, chunk.filename) for chunk in self.input_extra]
        return [protocol.Infill(self.input_prefix, self.input_suffix, self.prompt, extra)]
