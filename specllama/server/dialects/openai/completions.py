"""The body and the writer of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specllama.client import protocol
from specllama.client.protocol import PositionLogprobs
from specllama.json_types import JsonObject
from specllama.server.dialects.openai.writer import OpenAIWriter, ending
from specllama.server.dialects.shared.fields import AtMost, FieldError
from specllama.server.dialects.shared.figures import number
from specllama.server.dialects.shared.sampling_fields import (
    MAX_CHOICES,
    MAX_N,
    MAX_PROMPTS,
    Ids,
    SamplingFields,
)
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import AccumulatedChoice, End, Event, Prefill, TextEvent


class CompletionWriter(OpenAIWriter):
    """Choices are ordered by prompt."""

    prefix, chunk_object, answer_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(options)
        self._offsets: dict[int, int] = {}  # by choice: characters that the tokens so far have completed

    def _deltas(self, event: Event) -> list[JsonObject]:
        index = event.index
        choice = self.fold.choices[index]
        if isinstance(event, TextEvent):
            shown = self._shown_logprobs(index, event.logprobs)
            return [{"index": index, "text": event.text, "logprobs": shown, "finish_reason": None}]
        if isinstance(event, Prefill):
            return [{"index": index, "text": "", "logprobs": None, "finish_reason": None}]
        if isinstance(event, End):
            shown = self._shown_logprobs(index, event.rest)
            return [{"index": index, "text": "", "logprobs": shown, **ending(event, choice.start)}]
        return []

    def _shown_logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> JsonObject | None:
        """Logprobs of the next tokens of a choice."""
        if not positions:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(position.length for position in positions)
        return _logprobs(positions, offset)

    def _whole(self, choice: AccumulatedChoice) -> JsonObject:
        return {
            "index": choice.start.index,
            "text": choice.text,
            "logprobs": _logprobs(choice.logprobs, 0) if self.options.logprobs else None,
            **ending(choice.end, choice.start),
        }


def _logprobs(positions: Sequence[PositionLogprobs], offset: int) -> JsonObject:
    """offset: number of characters of the text before the first of these tokens. Tokens that share a
    character have its offset.
    """
    offsets = []
    for position in positions:
        offsets.append(offset)
        offset += position.length
    return {
        "tokens": [position.chosen.token for position in positions],
        "token_logprobs": [number(position.chosen.logprob) for position in positions],
        "top_logprobs": [{c.token: number(c.logprob) for c in position.top} for position in positions],
        "text_offset": offsets,
    }


class CompletionRequest(SamplingFields):
    """prompt: a text, ids, or a list of either with choices for each. suffix: the text after the gap to
    fill.
    """

    prompt: str | Ids | Annotated[list[str | Ids], AtMost(MAX_PROMPTS, 1)]
    zero_logprobs: ClassVar[int | None] = 0
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:  # noqa: ARG002
        if self.best_of not in (None, self.n):
            raise FieldError("best_of must be n, or absent", "best_of")
        prompts: list[Any] = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        if isinstance(prompts[0], int):
            prompts = [self.prompt]
        if len(prompts) * self.n > MAX_CHOICES:
            raise FieldError(
                f"{len(prompts)} prompts with n {self.n} are more than {MAX_CHOICES} texts", "prompt"
            )
        return [self._input(prompt) for prompt in prompts]

    def engine_fields(self) -> JsonObject:
        return {**super().engine_fields(), "show_prompt": bool(self.verbose)}

    def _input(self, prompt: str | list[int]) -> protocol.PromptInput:
        """One prompt. Raises FieldError."""
        if isinstance(prompt, list):
            if self.suffix:
                raise FieldError("suffix: the prompt must then be text, not ids", "suffix")
            return protocol.TokenInput(prompt)
        if self.suffix:
            return protocol.Infill(prompt, self.suffix)
        return protocol.TextInput(prompt)
