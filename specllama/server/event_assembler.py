"""From the engine's messages about one generation to the events of one choice."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from specllama.client import protocol as m
from specllama.core.speedup import plain_rate
from specllama.core.stats import RunStats
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
        self.n_tokens, self.n_reasoning = 0, 0

    def take(self, message: m.Message, now: float) -> list[Event]:
        """The events of a message that arrived at `now` (seconds). Raises EngineError for a generation that
        ended for no reason of its own.
        """
        if isinstance(message, m.Started):
            self._last = now
            off = not self._splits or (self._begun and not message.thinking)
            self._splitter = ReasoningSplitter(message.thinking if self._splits else "", off)
            return [Start(self.index, self.prompt, message.n_prompt, message.params["seed"])]
        if isinstance(message, m.Tokens):
            return self._tokens(message.items[0], now)
        if isinstance(message, m.Done):
            return self._done(message)
        return []

    def _tokens(self, item: m.SequenceDelta, now: float) -> list[Event]:
        self._round = RoundEvent(item.drafted, item.accepted, now - self._last)
        self._last = now
        self._logprobs += [entry for entry in item.logprobs or [] if entry["id"] not in self._end_ids]
        self.n_tokens += len(item.ids)
        events = self._events(self._splitter.push(item.text, item.runs))
        if not self._answering:
            self.n_reasoning = self.n_tokens
        return events

    def _done(self, done: m.Done) -> list[Event]:
        if done.reason == "cancel":
            raise EngineError("the generation was ended before it was complete")
        pieces = self._splitter.push(done.text, done.runs) + self._splitter.finish()
        stats = RunStats.from_dict(done.stats)
        plain = plain_rate(stats, done.extra.get("stored_t1"))
        events = self._events(pieces)
        n_reasoning = self.n_reasoning if self._reasoned else 0
        end = End(self.index, done.reason, done.extra.get("stop_string"), stats, plain, n_reasoning)
        return [*events, end]

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
