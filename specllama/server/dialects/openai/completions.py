"""The writer of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from specllama.client.protocol import PositionLogprobs
from specllama.server.dialects.openai.writer import ChoiceEnding, OpenAIWriter, ResponseOptions, ending
from specllama.server.dialects.shared.logprobs import number
from specllama.server.events import AccumulatedChoice, End, Event, Prefill, TextEvent


class CompletionLogprobs(TypedDict):
    """One entry a token. text_offset: characters of the text before it."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChunkChoice(TypedDict):
    """A choice in a chunk. stop_reason, seed: in its last one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: NotRequired[str | None]
    seed: NotRequired[int]


class CompletionChoice(ChoiceEnding):
    """A choice of a whole answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None


class CompletionWriter(OpenAIWriter[CompletionChunkChoice, CompletionChoice]):
    """Choices are ordered by prompt."""

    prefix, chunk_object, answer_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, options: ResponseOptions) -> None:
        super().__init__(options)
        self._offsets: dict[int, int] = {}  # by choice: characters that the tokens so far have completed

    def _deltas(self, event: Event) -> list[CompletionChunkChoice]:
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

    def _shown_logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> CompletionLogprobs | None:
        """Logprobs of the next tokens of a choice."""
        if not positions:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(position.length for position in positions)
        return _logprobs(positions, offset)

    def _whole(self, choice: AccumulatedChoice) -> CompletionChoice:
        return {
            "index": choice.start.index,
            "text": choice.text,
            "logprobs": _logprobs(choice.logprobs, 0) if self.options.logprobs else None,
            **ending(choice.end, choice.start),
        }


def _logprobs(positions: Sequence[PositionLogprobs], offset: int) -> CompletionLogprobs:
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
