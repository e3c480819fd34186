"""The stream of events from which every API's answers are written, and its accumulation.

An answer in one piece is the accumulated stream (`Accumulator`), so that the two cannot differ. Knows no API
and no HTTP.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from specllama.client import protocol
from specllama.client.stream import GenerationResult
from specllama.core.stats import PlainRate, RunStats
from specllama.errors import EngineError
from specllama.text.reasoning import ReasoningPiece, ReasoningSplitter

Runs = Sequence[tuple[int, str]]
Logprobs = Sequence[protocol.PositionLogprobs]


@dataclass(frozen=True, slots=True)
class Start:
    """A choice is queued. prompt: index of the prompt that it answers. n_prompt: tokens of that prompt.
    seed: the one used.
    """

    index: int
    prompt: int
    n_prompt: int
    seed: int


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round of the engine for one choice: draft tokens verified and accepted, seconds since the round
    before.
    """

    drafted: int
    accepted: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TextEvent:
    """The next part of a choice's text.

    runs: (characters, source) of `text`; the source is "target" or a drafter's name. logprobs: of the tokens
    that the text comes from, as in protocol.SequenceDelta, empty unless requested.
    """

    index: int
    text: str
    runs: Runs = ()
    logprobs: Logprobs = ()
    round: RoundEvent | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next part of a choice's reasoning, which comes before its text."""

    index: int
    text: str
    runs: Runs = ()
    round: RoundEvent | None = None


@dataclass(frozen=True, slots=True)
class End:
    """A choice has ended.

    reason: "stop" (stop_string: the string that ended it, None for an end token), "length" for the requested
    limit, "context" where the context is full. n_reasoning: tokens of its reasoning.
    """

    index: int
    reason: str
    stop_string: str | None
    stats: RunStats
    plain: PlainRate
    n_reasoning: int = 0


Event = Start | Reasoning | TextEvent | End


@dataclass(slots=True)
class AccumulatedChoice:
    """One choice up to the latest event. end: None until it has ended."""

    start: Start
    text: str = ""
    reasoning: str = ""
    logprobs: list[protocol.PositionLogprobs] = field(default_factory=list)
    end: End | None = None


@dataclass(slots=True)
class Accumulator:
    """All choices of an answer up to the latest event, by index."""

    choices: dict[int, AccumulatedChoice] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> None:
        """Add the next events."""
        for event in events:
            if isinstance(event, Start):
                self.choices[event.index] = AccumulatedChoice(event)
                continue
            choice = self.choices[event.index]
            if isinstance(event, TextEvent):
                choice.text += event.text
                choice.logprobs += event.logprobs
            elif isinstance(event, Reasoning):
                choice.reasoning += event.text
            else:
                choice.end = event

    @property
    def in_order(self) -> list[AccumulatedChoice]:
        return [self.choices[i] for i in sorted(self.choices)]

    @property
    def ends(self) -> list[End]:
        """The ends of the choices that have ended, in order."""
        return [c.end for c in self.in_order if c.end is not None]


class EventAssembler:
    """Turns the engine's messages about one generation into the events of one choice.

    index: the choice's number. prompt: index of the prompt that it answers. splits: whether reasoning is
    separated from the text. continues: whether the answer continues a text of the client; the model
    then does not begin with a reasoning tag. end_ids: tokens that have no text and get no logprobs.
    """

    def __init__(
        self,
        index: int,
        prompt: int,
        splits: bool = False,
        continues: bool = False,
        end_ids: Collection[int] = (),
    ) -> None:
        self.index, self.prompt = index, prompt
        self._splits, self._continues, self._end_ids = splits, continues, end_ids
        self._splitter = ReasoningSplitter(off=True)
        self._result = GenerationResult()
        self._logprobs: list[protocol.PositionLogprobs] = []  # of tokens whose text has not arrived yet
        self._round: RoundEvent | None = None  # not yet attached to an event
        self._last = 0.0
        self._has_text = self._has_reasoning = False
        self._n_before_text = 0

    def add(self, message: protocol.Message, now: float) -> list[Event]:
        """The events of a message that arrived at `now` (seconds).

        Raises EngineError for a generation that the engine cancelled.
        """
        delta = self._result.add(message)
        if isinstance(message, protocol.Started):
            self._last = now
            off = not self._splits or (self._continues and not message.closing_tag)
            self._splitter = ReasoningSplitter(message.closing_tag if self._splits else "", off)
            return [Start(self.index, self.prompt, message.n_prompt, self._result.seed)]
        if delta is None:
            return []
        if isinstance(message, protocol.Done):
            return self._ending(message, delta)
        return self._progress(delta, now)

    def _progress(self, delta: protocol.SequenceDelta, now: float) -> list[Event]:
        self._round = RoundEvent(delta.drafted, delta.accepted, now - self._last)
        self._last = now
        self._logprobs += [entry for entry in delta.logprobs or [] if entry.chosen.id not in self._end_ids]
        events = self._events(self._splitter.push(delta.text, delta.runs))
        if not self._has_text:
            self._n_before_text = len(self._result.ids)
        return events

    def _ending(self, done: protocol.Done, delta: protocol.SequenceDelta) -> list[Event]:
        if done.reason == "cancel":
            raise EngineError("the generation was ended before it was complete")
        events = self._events(self._splitter.push(delta.text, delta.runs) + self._splitter.finish())
        n_reasoning = self._n_before_text if self._has_reasoning else 0
        plain = self._result.plain
        return [*events, End(self.index, done.reason, done.stop_string, done.stats, plain, n_reasoning)]

    def _events(self, pieces: list[ReasoningPiece]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            if piece.reasoning:
                self._has_reasoning = True
                self._logprobs.clear()
                events.append(Reasoning(self.index, piece.text, piece.runs, self._round))
            else:
                self._has_text = True
                logprobs = self._logprobs_of(piece.text)
                events.append(TextEvent(self.index, piece.text, piece.runs, logprobs, self._round))
            self._round = None  # only the first event of a round has it
        return events

    def _logprobs_of(self, text: str) -> list[protocol.PositionLogprobs]:
        """The logprobs of the last tokens, which wrote `text`; the tokens before them were reasoning."""
        found, self._logprobs = self._logprobs, []
        if not self._has_reasoning:
            return found
        size, n = len(text.encode()), 0
        for entry in reversed(found):
            size -= len(entry.chosen.bytes)
            if size < 0 and n:
                break
            n += 1
        return found[len(found) - n :]
