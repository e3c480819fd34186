"""The event stream from which the answers of all APIs are written, and its accumulation.

An answer sent in one piece is the accumulated stream (`Accumulator`), so that both forms agree.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specllama.client import protocol
from specllama.core.gain import PlainRate
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats

# Random ids of answers and calls.


_ALPHANUMERICS = string.ascii_letters + string.digits


def random_key() -> str:
    """24 random letters and digits."""
    return "".join(secrets.choice(_ALPHANUMERICS) for _ in range(24))


Runs = Sequence[tuple[int, str]]
Logprobs = Sequence[protocol.PositionLogprobs]


@dataclass(frozen=True, slots=True)
class Start:
    """A choice was queued. prompt: index of the prompt that it answers. n_prompt: tokens of that prompt.
    seed, params: those used.
    """

    index: int
    prompt: int
    n_prompt: int
    seed: int
    params: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress of the prefill: n_done of n_prompt tokens are in the KV cache, of which n_reused were there
    before. seconds: since the first such event. queue_position: for a slot, 1 for the next, 0
    with a slot. Sent before the text if the request asks for `progress`.
    """

    index: int
    n_done: int
    n_prompt: int
    n_reused: int
    seconds: float
    queue_position: int = 0


class RunTotals(NamedTuple):
    """Figures of a choice so far. seconds: since its first token."""

    n_predict: int
    n_drafted: int
    n_accept: int
    seconds: float


NO_TOTALS = RunTotals(0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round of the engine for one choice: draft tokens verified and accepted, and its duration. total:
    figures of all rounds so far. rounds: see protocol.SequenceDelta; 0 for the first token, which the decode
    of the prompt yields, with the seconds since the request was queued. rejected: draft tokens from the first
    rejected one, as (text, drafter), if requested. earlier: previous rounds that are attached to no event.
    """

    drafted: int
    accepted: int
    seconds: float
    total: RunTotals = NO_TOTALS
    rounds: int = 1
    rejected: Sequence[tuple[str, str]] = ()
    earlier: Sequence[RoundEvent] = ()


@dataclass(frozen=True, slots=True)
class TextEvent:
    """The next part of a choice's text.

    runs: (characters, source) of `text`; the source is "target" or the name of a drafter. logprobs: of the
    tokens of the text, as in protocol.SequenceDelta, empty unless requested. ids: tokens since the previous
    event; all tokens if neither reasoning nor calls are separated.
    """

    index: int
    text: str
    runs: Runs = ()
    logprobs: Logprobs = ()
    round: RoundEvent | None = None
    ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next part of a choice's reasoning, which comes before its text."""

    index: int
    text: str
    runs: Runs = ()
    round: RoundEvent | None = None


@dataclass(frozen=True, slots=True)
class CallOpen:
    """A tool call begins. call: number of the call within the choice, from 0. id: unique across requests, 24
    letters and digits without a dialect's prefix.
    """

    index: int
    call: int
    id: str
    name: str
    round: RoundEvent | None = None


@dataclass(frozen=True, slots=True)
class CallArgs:
    """The next part of a call's arguments, which are JSON; what was sent is never revised."""

    index: int
    call: int
    text: str
    runs: Runs = ()
    round: RoundEvent | None = None


@dataclass(frozen=True, slots=True)
class CallClose:
    """A call is complete: its arguments are a JSON object. The next event belongs to another call, to text,
    or is the end. A call that was cut off is not closed.
    """

    index: int
    call: int


@dataclass(frozen=True, slots=True)
class End:
    """A choice has ended.

    reason: "stop" (stop_string: the string that ended it, None for an end token), "length" for the requested
    limit, "context" for a full context. n_reasoning: tokens of reasoning. ids: tokens after the last event,
    which have no text: an end token, a stop string. slot: number of its slot, -1 for none. logprobs: of the
    end token, if requested. rest: logprobs of the last tokens of the text, which complete no character.
    prompt, off_reason: see protocol.Done. round: the last round, if no other event has it.
    """

    index: int
    reason: str
    stop_string: str | None
    stats: RunStats
    plain: PlainRate
    n_reasoning: int = 0
    ids: Sequence[int] = ()
    slot: int = -1
    logprobs: Logprobs = ()
    prompt: str = ""
    off_reason: str = ""
    rest: Logprobs = ()
    round: RoundEvent | None = None


Event = Start | Prefill | Reasoning | TextEvent | CallOpen | CallArgs | CallClose | End


@dataclass(slots=True)
class AccumulatedText:
    """Text between two calls. logprobs: of its tokens, as in TextEvent."""

    text: str
    logprobs: list[protocol.PositionLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class AccumulatedCall:
    """A call. complete: whether it was closed."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class AccumulatedChoice:
    """One choice up to the latest event. items: texts and calls in the order of generation. end: None until
    it has ended. ids: all its tokens, see TextEvent. total, prefill: the latest ones.
    """

    start: Start
    reasoning: str = ""
    items: list[AccumulatedText | AccumulatedCall] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    total: RunTotals = NO_TOTALS
    prefill: Prefill | None = None
    end: End | None = None

    @property
    def text(self) -> str:
        """The text without the calls."""
        return "".join(item.text for item in self.items if isinstance(item, AccumulatedText))

    @property
    def logprobs(self) -> list[protocol.PositionLogprobs]:
        """Logprobs of the tokens of all texts."""
        return [entry for i in self.items if isinstance(i, AccumulatedText) for entry in i.logprobs]

    @property
    def calls(self) -> list[AccumulatedCall]:
        return [item for item in self.items if isinstance(item, AccumulatedCall)]

    @property
    def ended_with_calls(self) -> bool:
        """Whether the model stopped by itself after calls for the client to execute, none of them cut off."""
        complete = [call.complete for call in self.calls]
        return self.end is not None and self.end.reason == "stop" and any(complete) and all(complete)

    def add(self, event: Event) -> None:
        """Add the next event of this choice."""
        if isinstance(event, (TextEvent, Reasoning, CallOpen, CallArgs)) and event.round is not None:
            self.total = event.round.total
        if isinstance(event, TextEvent):
            self.ids += event.ids
            if self.items and isinstance(last := self.items[-1], AccumulatedText):
                last.text += event.text
                last.logprobs += event.logprobs
            else:
                self.items.append(AccumulatedText(event.text, [*event.logprobs]))
        elif isinstance(event, Reasoning):
            self.reasoning += event.text
        elif isinstance(event, CallOpen):
            self.items.append(AccumulatedCall(event.id, event.name))
        elif isinstance(event, CallArgs):
            self.calls[event.call].arguments += event.text
        elif isinstance(event, CallClose):
            self.calls[event.call].complete = True
        elif isinstance(event, Prefill):
            self.prefill = event
        elif isinstance(event, End):
            self.end = event
            self.ids += event.ids
            if event.rest and not (self.items and isinstance(self.items[-1], AccumulatedText)):
                self.items.append(AccumulatedText(""))
            if event.rest and isinstance(last := self.items[-1], AccumulatedText):
                last.logprobs += event.rest


@dataclass(slots=True)
class Accumulator:
    """All choices of an answer up to the latest event, by index."""

    choices: dict[int, AccumulatedChoice] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> None:
        """Add the next events."""
        for event in events:
            if isinstance(event, Start):
                self.choices[event.index] = AccumulatedChoice(event)
            else:
                self.choices[event.index].add(event)

    @property
    def in_order(self) -> list[AccumulatedChoice]:
        return [self.choices[i] for i in sorted(self.choices)]

    @property
    def ends(self) -> list[End]:
        """The End of each choice that has ended, in order."""
        return [c.end for c in self.in_order if c.end is not None]


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, on one line also for readers that split lines as str.splitlines does (httpx's
    iter_lines, and so ollama-python).
    """
    text = _JSON.encode(value)
    return (text if text.isascii() else text.translate(_LINE_ENDS)).encode("utf-8", "replace")


def data_event(data: Mapping[str, object]) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + to_json(data) + b"\n\n"
