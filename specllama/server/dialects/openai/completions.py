"""The writer of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specllama.client.protocol import PositionLogprobs
from specllama.server.dialects.openai.writer import OpenAIWriter, ending, number
from specllama.server.events import AccumulatedChoice, End, Event, Prefill, TextEvent


class CompletionWriter(OpenAIWriter):
    """Choices are ordered by prompt."""

    prefix, chunk_object, answer_object = "cmpl", "text_completion", "text_completion"

    def _deltas(self, event: Event) -> list[dict[str, Any]]:
        index = event.index
        choice = self.fold.choices[index]
        if isinstance(event, TextEvent):
            offset = len(choice.text) - len(event.text)
            logprobs = _logprobs(event.logprobs, offset) if event.logprobs else None
            return [{"index": index, "text": event.text, "logprobs": logprobs, "finish_reason": None}]
        if isinstance(event, Prefill):
            return [{"index": index, "text": "", "logprobs": None, "finish_reason": None}]
        if isinstance(event, End):
            return [{"index": index, "text": "", "logprobs": None, **ending(event, choice.start)}]
        return []

    def _whole(self, choice: AccumulatedChoice) -> dict[str, Any]:
        return {
            "index": choice.start.index,
            "text": choice.text,
            "logprobs": _logprobs(choice.logprobs, 0) if self.options.logprobs else None,
            **ending(choice.end, choice.start),
        }


def _logprobs(positions: Sequence[PositionLogprobs], offset: int) -> dict[str, Any]:
    """offset: characters of the choice's text before the first of these tokens."""
    offsets = []
    for position in positions:
        offsets.append(offset)
        offset += len(position.chosen.token)
    return {
        "tokens": [position.chosen.token for position in positions],
        "token_logprobs": [number(position.chosen.logprob) for position in positions],
        "top_logprobs": [{c.token: number(c.logprob) for c in position.top} for position in positions],
        "text_offset": offsets,
    }
