"""The event stream from which all APIs' answers are written: made of the engine's messages, and accumulated.

An answer sent in one piece is the accumulated stream (`Accumulator`), so that both forms agree.
"""

from __future__ import annotations

import json
import secrets
import string
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from specllama.calls.scanner import (
    ArgumentsPiece,
    CallReader,
    OpenPiece,
    PieceReader,
    TextPiece,
    ThoughtPiece,
)
from specllama.client import protocol
from specllama.client.protocol import PositionLogprobs
from specllama.client.stream import GenerationResult
from specllama.core.gain import PlainRate
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.errors import EngineError

_ALPHANUMERICS = string.ascii_letters + string.digits


def random_key() -> str:
    """24 random letters and digits, the id of an answer or a call."""
    return "".join(secrets.choice(_ALPHANUMERICS) for _ in range(24))


Runs = Sequence[tuple[int, str]]
Logprobs = Sequence[protocol.PositionLogprobs]


@dataclass(frozen=True, slots=True)
class Start:
    """A choice was queued. prompt: index of its prompt, n_prompt: tokens of that. seed, params: as used."""

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
    """One choice up to the latest event. items: texts and calls in the order of generation. n_before: of
    them, before the reasoning. end: None until it has ended. ids: all its tokens, see TextEvent. total,
    prefill: the latest ones.
    """

    start: Start
    reasoning: str = ""
    n_before: int = 0
    items: list[AccumulatedText | AccumulatedCall] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    total: RunTotals = NO_TOTALS
    prefill: Prefill | None = None
    end: End | None = None

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.items if isinstance(item, AccumulatedText))

    @property
    def logprobs(self) -> list[protocol.PositionLogprobs]:
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
            self.n_before = self.n_before if self.reasoning else len(self.items)
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
        return [c.end for c in self.in_order if c.end is not None]


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, on one line also by str.splitlines (httpx's iter_lines, ollama-python)."""
    text = _JSON.encode(value)
    return (text if text.isascii() else text.translate(_LINE_ENDS)).encode("utf-8", "replace")


# Assigns characters of an output to the tokens that generated them, so that per-token figures stay with their
# text.
#
# The bytes of a token may end within a character, which a later token completes; text is held back, split
# into reasoning, text and calls, and partly dropped. Characters are therefore labelled with the number of the
# token that completed them: in the runs that pass through the splitters, the label replaces the source.


_BETWEEN = ":"  # a label is the token's number and the source


class TokenSpans:
    """The tokens of one output whose characters have not been taken."""

    def __init__(self) -> None:
        self._n_groups = 0
        self._groups: dict[int, list[PositionLogprobs]] = {}  # tokens by the number of the one that has text
        self._lengths: deque[tuple[int, int]] = deque()  # (number, characters that have not arrived)
        self._open: list[PositionLogprobs] = []  # tokens after the last one that completed a character

    def push(self, entries: Sequence[PositionLogprobs]) -> None:
        """Add tokens. Tokens that complete no character belong to the next one that does."""
        for entry in entries:
            self._open.append(entry)
            if entry.length:
                self._groups[self._n_groups], self._open = self._open, []
                self._lengths.append((self._n_groups, entry.length))
                self._n_groups += 1

    def label(self, runs: Runs) -> list[tuple[int, str]]:
        """The runs of the next text, labelled."""
        labelled = []
        for n, source in runs:
            while n > 0 and self._lengths:
                number, left = self._lengths[0]
                part = min(n, left)
                labelled.append((part, f"{number}{_BETWEEN}{source}"))
                n -= part
                if part == left:
                    self._lengths.popleft()
                else:
                    self._lengths[0] = number, left - part
            if n > 0:
                labelled.append((n, source))
        return labelled

    def take(self, runs: Runs) -> tuple[list[tuple[int, str]], list[PositionLogprobs]]:
        """The runs of a text without labels, and the tokens that generated it. Each token is returned once,
        with the first text that has a character of it.
        """
        plain: list[tuple[int, str]] = []
        entries: list[PositionLogprobs] = []
        for n, label in runs:
            number, between, source = label.partition(_BETWEEN)
            if between:
                entries += self._groups.pop(int(number), ())
            source = source if between else label
            if plain and plain[-1][1] == source:
                plain[-1] = plain[-1][0] + n, source
            else:
                plain.append((n, source))
        return plain, entries

    def rest(self) -> list[PositionLogprobs]:
        """The last tokens, which complete no character; none after dropped text such as a stop string."""
        return [] if self._lengths else self._open


ReasoningFormat = Literal["auto", "none", "deepseek", "deepseek-legacy"]


class EventAssembler:
    """Converts the engine's messages about one generation into events.

    index: number of the choice. prompt: index of the prompt that it answers. splits: separate reasoning from
    the text. continues: the answer continues a text of the client, so that the model does not begin with a
    reasoning tag. end_ids: tokens without text. reader: finds tool calls in the text, None if there can be
    none; tokens of calls have no logprobs. progress: report the prefill. ends_early: if the generation is
    cancelled, the text so far is the answer. reasoning: as llama-server's reasoning_format: in the text with
    its tags ("none"), in both places ("deepseek-legacy"), otherwise apart.
    """

    def __init__(
        self,
        index: int,
        prompt: int,
        splits: bool = False,
        continues: bool = False,
        end_ids: Collection[int] = (),
        reader: CallReader | None = None,
        progress: bool = False,
        reasoning: ReasoningFormat = "auto",
    ) -> None:
        self._format, self._in_tags = reasoning, False
        self.index, self.prompt = index, prompt
        self._reader, self._n_calls = reader, 0
        self._splits, self._continues, self._end_ids = splits, continues, end_ids
        self._pieces = PieceReader(off=True)
        self._result = GenerationResult()
        self._spans: TokenSpans | None = None  # of the tokens with logprobs
        self._end_logprobs: list[protocol.PositionLogprobs] = []  # of end tokens
        self._rounds: list[RoundEvent] = []  # not yet attached to an event
        self._last = 0.0
        self._progress_asked, self._filling_since = progress, 0.0
        self._first_token = 0.0
        self._ids: list[int] = []  # of tokens since the last event
        self.ends_early = self._started = False
        self._has_reasoning = False
        self._ends_with_text = True  # no reasoning and no call after it so far
        self._n_before_text = 0

    def add(self, message: protocol.Message, now: float) -> list[Event]:
        """Events for a message received at time `now` (seconds).

        Raises EngineError for a generation that the engine cancelled.
        """
        events = self._of(message, now)
        if self._format in ("none", "deepseek-legacy"):
            return [shown for event in events for shown in self._with_tags(event)]
        return events

    def _with_tags(self, event: Event) -> Iterator[Event]:
        """An event as the format of the reasoning demands; reasoning is text between its tags too."""
        opening, closing = self._pieces.tags
        if isinstance(event, Reasoning):
            if self._format == "deepseek-legacy":
                yield event
            tag = "" if self._in_tags else f"{opening}\n"
            self._in_tags, lost = True, self._format == "none"
            runs = [(len(tag), "target"), *event.runs] if tag else event.runs
            yield TextEvent(self.index, tag + event.text, runs, (), event.round if lost else None)
            return
        if self._in_tags and isinstance(event, (TextEvent, CallOpen)):
            self._in_tags, tag = False, f"\n{closing}\n\n"
            yield TextEvent(self.index, tag, [(len(tag), "target")])
        yield event

    def _of(self, message: protocol.Message, now: float) -> list[Event]:
        delta = self._result.add(message)
        if isinstance(message, protocol.Started):
            self._last, self._started = now, True
            off = not self._splits or (self._continues and not message.closing_tag)
            self._pieces = PieceReader(self._reader, message.closing_tag if self._splits else "", off)
            seed, params = self._result.seed, message.params
            return [Start(self.index, self.prompt, message.n_prompt, seed, params)]
        if isinstance(message, protocol.Prefilled) and self._progress_asked:
            return [self._prefill(message, now)]
        if isinstance(message, protocol.Queued) and self._progress_asked:
            return [Prefill(self.index, 0, message.n_prompt, 0, 0.0, message.queue_rank)]
        if delta is None:
            return []
        if isinstance(message, protocol.Done):
            return self._ending(message, delta)
        return self._progress(delta, now)

    def _prefill(self, message: protocol.Prefilled, now: float) -> Prefill:
        self._filling_since = self._filling_since or now
        seconds = now - self._filling_since
        return Prefill(self.index, message.n_done, message.n_prompt, message.n_reused, seconds)

    def _progress(self, delta: protocol.SequenceDelta, now: float) -> list[Event]:
        result = self._result
        self._first_token = self._first_token or now
        total = RunTotals(len(result.ids), result.n_drafted, result.n_accept, now - self._first_token)
        seconds = delta.seconds or now - self._last
        self._rounds.append(
            RoundEvent(delta.drafted, delta.accepted, seconds, total, delta.rounds, delta.rejected)
        )
        self._last = now
        self._ids += delta.ids
        if delta.logprobs is not None:
            self._spans = self._spans or TokenSpans()
            ends = [entry for entry in delta.logprobs if entry.chosen.id in self._end_ids]
            self._end_logprobs += ends
            self._spans.push([entry for entry in delta.logprobs if entry.chosen.id not in self._end_ids])
        events = self._events(delta)
        if not self._pieces.has_text:
            self._n_before_text = len(self._result.ids)
        return events

    def _ending(self, done: protocol.Done, delta: protocol.SequenceDelta) -> list[Event]:
        reason = done.reason
        if reason == "cancel":
            if not self.ends_early:
                raise EngineError("the generation was ended before it was complete")
            reason = "length"
        events: list[Event] = [] if self._started else [Start(self.index, self.prompt, 0, 0)]
        events += self._events(delta, last=True)
        n_reasoning = self._n_before_text if self._has_reasoning else 0
        plain = self._result.plain
        ids = self._take_ids()
        rest = self._spans.rest() if self._spans is not None and self._ends_with_text else []
        shown = n_reasoning, ids, done.slot, self._end_logprobs, done.prompt, done.off_reason, rest
        return [*events, End(self.index, reason, done.stop_string, done.stats, plain, *shown, self._round)]

    @property
    def _round(self) -> RoundEvent | None:
        """The latest round not attached to an event, with those before it as `earlier`; None without any."""
        if len(self._rounds) < 2:
            return self._rounds[0] if self._rounds else None
        return replace(self._rounds[-1], earlier=tuple(self._rounds[:-1]))

    def _take_ids(self) -> list[int]:
        ids, self._ids = self._ids, []
        return ids

    def _plain_runs(self, runs: Runs) -> Runs:
        return self._spans.take(runs)[0] if self._spans is not None else runs

    def _text(self, text: str, runs: Runs) -> TextEvent:
        self._ends_with_text = True
        logprobs: list[protocol.PositionLogprobs] = []
        if self._spans is None:
            ids = self._take_ids()
        else:
            runs, logprobs = self._spans.take(runs)
            if self._has_reasoning or self._reader is not None:
                ids = self._take_ids()
            else:  # the ids of an incomplete character come with its text
                ids = [entry.chosen.id for entry in logprobs]
                del self._ids[: len(ids)]
        return TextEvent(self.index, text, runs, logprobs, self._round, ids)

    def _events(self, delta: protocol.SequenceDelta, last: bool = False) -> list[Event]:
        """Events for the next text. last: it is the end of the answer."""
        runs = self._spans.label(delta.runs) if self._spans is not None else delta.runs
        events: list[Event] = []
        for piece in self._pieces.push(delta.text, runs, last):
            if isinstance(piece, TextPiece):
                events.append(self._text(piece.text, piece.runs))
            elif isinstance(piece, ThoughtPiece):
                self._has_reasoning, self._ends_with_text = True, False
                self._ids.clear()
                thought = self._plain_runs(piece.runs)
                events.append(Reasoning(self.index, piece.text, thought, self._round))
            elif isinstance(piece, OpenPiece):
                self._ends_with_text = False
                events.append(CallOpen(self.index, self._n_calls, random_key(), piece.name, self._round))
                self._n_calls += 1
            elif isinstance(piece, ArgumentsPiece):
                call, plain = self._n_calls - 1, self._plain_runs(piece.runs)
                events.append(CallArgs(self.index, call, piece.text, plain, self._round))
            else:
                events.append(CallClose(self.index, self._n_calls - 1))
                continue
            self._rounds.clear()  # only the first event of a round has it
        return events
