"""The writer of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specllama.client.protocol import PositionLogprobs
from specllama.server.dialects.openai.writer import OpenAIWriter, ResponseOptions, ending
from specllama.server.dialects.shared.logprobs import number
from specllama.server.events import AccumulatedChoice, End, Event, Prefill, TextEvent


class CompletionWriter(OpenAIWriter):
    """Choices are ordered by prompt."""

    prefix, chunk_object, answer_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, options: ResponseOptions) -> None:
        super().__init__(options)
        self._offsets: dict[int, int] = {}  # by choice: characters that the tokens so far have completed

    def _deltas(self, event: Event) -> list[dict[str, Any]]:
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

    def _shown_logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> dict[str, Any] | None:
        """Logprobs of the next tokens of a choice."""
        if not positions:
            return None
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(position.length for position in positions)
        return _logprobs(positions, offset)

    def _whole(self, choice: AccumulatedChoice) -> dict[str, Any]:
        return {
            "index": choice.start.index,
            "text": choice.text,
            "logprobs": _logprobs(choice.logprobs, 0) if self.options.logprobs else None,
            **ending(choice.end, choice.start),
        }


def _logprobs(positions: Sequence[PositionLogprobs], offset: int) -> dict[str, Any]:
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
