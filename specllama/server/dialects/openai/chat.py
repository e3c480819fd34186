"""The writer of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.server.dialects.openai.writer import OpenAIWriter, ending, number
from specllama.server.events import AccumulatedChoice, Event, Reasoning, Start, TextEvent


class ChatWriter(OpenAIWriter):
    """The first delta has the role and empty content; later ones have no role, the last has no content."""

    prefix, chunk_object, answer_object = "chatcmpl", "chat.completion.chunk", "chat.completion"

    def _deltas(self, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, Start):
            return [self._delta(event.index, {"role": "assistant", "content": ""})]
        if isinstance(event, TextEvent):
            return [self._delta(event.index, {"content": event.text}, event.logprobs)]
        if isinstance(event, Reasoning):
            return [self._delta(event.index, {"reasoning_content": event.text})]
        choice = self.fold.choices[event.index]
        return [{"index": event.index, "delta": {}, "logprobs": None, **ending(event, choice.start)}]

    def _delta(
        self, index: int, delta: dict[str, Any], logprobs: Sequence[PositionLogprobs] = ()
    ) -> dict[str, Any]:
        shown = _logprobs(logprobs) if logprobs else None
        return {"index": index, "delta": delta, "logprobs": shown, "finish_reason": None}

    def _whole(self, choice: AccumulatedChoice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        return {
            "index": choice.start.index,
            "message": message,
            "logprobs": _logprobs(choice.logprobs) if self.options.logprobs else None,
            **ending(choice.end, choice.start),
        }


def _logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    content = [_entry(p.chosen) | {"top_logprobs": [_entry(c) for c in p.top]} for p in positions]
    return {"content": content, "refusal": None}


def _entry(candidate: CandidateLogprob) -> dict[str, Any]:
    return {"token": candidate.token, "logprob": number(candidate.logprob), "bytes": candidate.bytes}
