"""From the engine's messages about one generation to the events of one choice."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from specllama.client import protocol as m
from specllama.client.stream import GenerationResult
from specllama.errors import EngineError
from specllama.server.events import End, Event, Reasoning, RoundEvent, Start, TextEvent
from specllama.text.reasoning import ReasoningPiece, ReasoningSplitter


class EventAssembler:
    """One choice. index: its number; prompt: that of the prompt it answers. splits: reasoning is told apart
    from the text; begun: whether the answer had been begun by the client, which rules out a tag at its start.
    end_ids: tokens that are no text and have no logprobs.
    """

    def __init__(
        self,
        index: int,
        prompt: int,
        splits: bool = False,
        begun: bool = False,
        end_ids: Collection[int] = (),
    ) -> None:
        self._end_ids = end_ids
        self.index, self.prompt = index, prompt
        self._splits, self._begun = splits, begun
        self._splitter = ReasoningSplitter(off=True)
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not come yet
        self._round: RoundEvent | None = None
        self._last = 0.0
        self._answering, self._reasoned = False, False
        self._result = GenerationResult()
        self.n_reasoning = 0

    @property
    def n_tokens(self) -> int:
        """Tokens so far."""
        return len(self._result.ids)

    def take(self, message: m.Message, now: float) -> list[Event]:
        """The events of a message that arrived at `now` (seconds). Raises EngineError for a generation that
        ended for no reason of its own.
        """
        delta = self._result.add(message)
        if isinstance(message, m.Started):
            self._last = now
            off = not self._splits or (self._begun and not message.thinking)
            self._splitter = ReasoningSplitter(message.thinking if self._splits else "", off)
            return [Start(self.index, self.prompt, message.n_prompt, self._result.seed)]
        if delta is None:
            return []
        if isinstance(message, m.Done):
            return self._done(message, delta)
        return self._tokens(delta, now)

    def _tokens(self, delta: m.SequenceDelta, now: float) -> list[Event]:
        self._round = RoundEvent(delta.drafted, delta.accepted, now - self._last)
        self._last = now
        self._logprobs += [entry for entry in delta.logprobs or [] if entry["id"] not in self._end_ids]
        events = self._events(self._splitter.push(delta.text, delta.runs))
        if not self._answering:
            self.n_reasoning = self.n_tokens
        return events

    def _done(self, done: m.Done, delta: m.SequenceDelta) -> list[Event]:
        if done.reason == "cancel":
            raise EngineError("the generation was ended before it was complete")
        events = self._events(self._splitter.push(delta.text, delta.runs) + self._splitter.finish())
        n_reasoning = self.n_reasoning if self._reasoned else 0
        plain = self._result.plain
        return [*events, End(self.index, done.reason, done.stop_string, done.stats, plain, n_reasoning)]

    def _events(self, pieces: list[ReasoningPiece]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            if piece.reasoning:
                self._reasoned = True
                self._logprobs.clear()
                events.append(Reasoning(self.index, piece.text, piece.runs, self._round))
            else:
                self._answering = True
                logprobs = self._logprobs_of(piece.text)
                events.append(TextEvent(self.index, piece.text, piece.runs, logprobs, self._round))
            self._round = None  # it belongs to the first event that came of it
        return events

    def _logprobs_of(self, text: str) -> list[dict[str, Any]]:
        """Those of the tokens that a text ends with; what is before it was reasoning."""
        found, self._logprobs = self._logprobs, []
        if not self._reasoned:
            return found
        size, n = len(text.encode()), 0
        for entry in reversed(found):
            size -= len(entry["bytes"])
            if size < 0 and n:
                break
            n += 1
        return found[len(found) - n :]
