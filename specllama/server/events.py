"""The one stream of events that every API is written from, and what it adds up to.

Knows no API and no HTTP. An answer in one piece is the fold of the stream, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.core.speedup import PlainRate
from specllama.core.stats import RunStats

Runs = Sequence[tuple[int, str]]
Logprobs = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Start:
    """A choice is queued. prompt: number of the prompt that it answers. seed: as used."""

    index: int
    prompt: int
    n_prompt: int
    seed: int


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """What came of a round of the engine for one choice. seconds: since the one before."""

    drafted: int
    accepted: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TextEvent:
    """More of a choice's text. runs: (characters, source) of it, the source "target" or a drafter.
    logprobs: of the tokens that it comes from, as in messages.Item, empty where nobody asked.
    """

    index: int
    text: str
    runs: Runs = ()
    logprobs: Logprobs = ()
    round: RoundEvent | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of a choice's reasoning, which comes before its text."""

    index: int
    text: str
    runs: Runs = ()
    round: RoundEvent | None = None


@dataclass(frozen=True, slots=True)
class End:
    """A choice has ended. reason: "stop" (stop_string: by which, None for an end token), "length" for the
    limit that was asked for, "context" where the context is full. n_reasoning: tokens of its reasoning.
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
    """One choice, as far as the stream has come."""

    start: Start
    text: str = ""
    reasoning: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    end: End | None = None


@dataclass(slots=True)
class Accumulator:
    """All choices of an answer, by index."""

    choices: dict[int, AccumulatedChoice] = field(default_factory=dict)

    def take(self, events: Iterable[Event]) -> None:
        """Go on by these events."""
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
        """Of the choices that have ended."""
        return [c.end for c in self.in_order if c.end is not None]
