"""Folds the engine's messages about one generation into its result.

Knows nothing about processes, threads or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specllama.calls import scanner
from specllama.client import protocol
from specllama.core.gain import PlainRate, plain_rate
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats


@dataclass(slots=True)
class GenerationResult:
    """The result of a generation so far.

    params: those in use, None before the start. closing_tag: closes the reasoning that the prompt has opened,
    "" if there is none. ids: of all tokens, including the end token. logprobs: one entry per token, empty if
    not requested. n_drafted, n_accept: draft tokens verified, and accepted. done: the last message, None
    before the end. reader: finds tool calls and reasoning in channels, which the text then is without; None
    where everything is text. calls: complete ones. prompt_ids, digest: as in Started.
    """

    reader: scanner.CallReader | None = None
    n_prompt: int = 0
    params: SamplingParams | None = None
    closing_tag: str = ""
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[protocol.PositionLogprobs] = field(default_factory=list)
    n_drafted: int = 0
    n_accept: int = 0
    done: protocol.Done | None = None
    prompt_ids: list[int] = field(default_factory=list)
    digest: str = ""
    calls: list[scanner.ReadCall] = field(default_factory=list)
    _pieces: scanner.PieceReader | None = None
    _open: scanner.ReadCall | None = None

    def add(self, message: protocol.Message) -> protocol.SequenceDelta | None:
        """Add a message of this generation. Returns the text and tokens that it adds, None for messages
        without any; those of Done, the text held back until the end, may be empty.
        """
        if isinstance(message, protocol.Started):
            self.n_prompt, self.params = message.n_prompt, message.params
            self.closing_tag = message.closing_tag
            self.prompt_ids, self.digest = message.prompt_ids, message.digest
            if self.reader is not None:
                self._pieces = scanner.PieceReader(self.reader, message.closing_tag, keep_tags=True)
            return None
        if isinstance(message, protocol.Done):
            self.done = message
            delta = protocol.SequenceDelta(message.id, message.text, [], message.runs, 0, 0)
        elif isinstance(message, protocol.Tokens):
            (delta,) = message.items
        else:
            return None
        if self._pieces is not None:
            piece = self._read(self._pieces.push(delta.text, delta.runs, last=self.done is not None))
            delta = delta._replace(text=piece.text, runs=list(piece.runs))
        self.text += delta.text
        self.ids += delta.ids
        self.logprobs += delta.logprobs or []
        self.n_drafted += delta.drafted
        self.n_accept += delta.accepted
        return delta

    def _read(self, pieces: Sequence[scanner.Piece]) -> scanner.TextPiece:
        """Adds the calls among these pieces. Returns the text, maybe empty."""
        text, runs = "", list[tuple[int, str]]()
        for piece in pieces:
            if isinstance(piece, (scanner.TextPiece, scanner.ThoughtPiece)):
                text, runs = text + piece.text, [*runs, *piece.runs]
            elif isinstance(piece, scanner.OpenPiece):
                self._open = scanner.ReadCall(piece.name)
            elif isinstance(piece, scanner.ArgumentsPiece) and self._open is not None:
                self._open.arguments += piece.text
            elif self._open is not None:
                self.calls.append(self._open)
        return scanner.TextPiece(text, runs)

    def release(self) -> scanner.TextPiece | None:
        """The text that the reader still holds back where no Done has come; None if there is none."""
        if self._pieces is None or self.done is not None:
            return None
        piece = self._read(self._pieces.push("", (), last=True))
        self.text += piece.text
        return piece if piece.text else None

    @property
    def seed(self) -> int:
        """The seed in use, 0 before the start."""
        return (self.params.seed or 0) if self.params is not None else 0

    @property
    def finish_reason(self) -> str:
        """Why the generation ended, "" before the end."""
        return self.done.reason if self.done is not None else ""

    @property
    def stats(self) -> RunStats:
        """The statistics of the whole generation, all 0 before the end."""
        return self.done.stats if self.done is not None else RunStats()

    @property
    def plain(self) -> PlainRate:
        """The rate of decoding without drafts, as far as it is known."""
        stored_t1, pace = (self.done.stored_t1, self.done.pace) if self.done is not None else (None, None)
        return plain_rate(self.stats, stored_t1, pace)

    @property
    def unmeasured(self) -> bool:
        """Whether the idle engine could measure more for its profile."""
        return self.done is not None and self.done.unmeasured

    @property
    def epsilon(self) -> float | None:
        """The margin in logits below which a choice is a near-tie; None if it was not measured."""
        return self.done.epsilon if self.done is not None else None

    @property
    def off_reason(self) -> str:
        """Why nothing was drafted, "" if something was."""
        return self.done.off_reason if self.done is not None else ""


def fold(messages: Iterable[protocol.Message]) -> GenerationResult:
    """The result of all messages of a generation, as EngineClient.generate yields them."""
    result = GenerationResult()
    for message in messages:
        result.add(message)
    return result


def join(deltas: Iterable[protocol.SequenceDelta]) -> tuple[str, list[int], list[tuple[int, str]]]:
    """Text, ids and runs of consecutive deltas."""
    text, ids, runs = "", list[int](), list[tuple[int, str]]()
    for delta in deltas:
        text += delta.text
        ids += delta.ids
        runs += delta.runs
    return text, ids, runs
