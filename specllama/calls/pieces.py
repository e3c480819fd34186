"""What a reader of tool calls makes of a model's text: pieces of text, and calls in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specllama.text.detokenizer import Runs


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text outside calls. runs: (characters, source) of `text`."""

    text: str
    runs: Runs = ()


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """Reasoning that the family writes in a form of its own, so that it was not separated before."""

    text: str
    runs: Runs = ()


@dataclass(frozen=True, slots=True)
class OpenPiece:
    """A call begins: the name of its tool is complete."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """The next part of the call's arguments, as JSON; never taken back. runs: (characters, source) of what
    the model wrote for it, which need not be JSON.
    """

    text: str
    runs: Runs = ()


@dataclass(frozen=True, slots=True)
class ClosePiece:
    """The call is complete: its arguments are a JSON object, "{}" at least."""


Piece = TextPiece | ThoughtPiece | OpenPiece | ArgumentsPiece | ClosePiece


class CallReader(Protocol):
    """Reads the calls in one answer as it arrives, after the reasoning. It never raises, whatever the model
    writes: what is no call is text.
    """

    def push(self, text: str, runs: Runs) -> list[Piece]:
        """Add text; returns the pieces that are certain by now. runs: (characters, source) of `text`."""
        ...

    def finish(self) -> list[Piece]:
        """The pieces held back until the end. A call that was cut off has no ClosePiece."""
        ...


@dataclass(slots=True)
class ReadCall:
    """A call in an answer. arguments: JSON, an object if the call is complete."""

    name: str
    arguments: str = ""
    complete: bool = False
