"""Looks for calls in text that arrives in parts: the tools of which all readers are made.

A reader is a generator that yields where it needs more text (`Steps`); `Scanner` has text and pieces.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specllama.calls.tools import Tools
from specllama.text.detokenizer import SHOWN, RunBuffer, Runs
from specllama.text.reasoning import CLOSING, OPENING, ReasoningSplitter


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
    """Reads the calls in an answer, after the reasoning. Never raises: what is no call is text."""

    def push(self, text: str, runs: Runs) -> list[Piece]:
        """Add text; returns the pieces that are certain by now. runs: (characters, source) of `text`."""

    def finish(self) -> list[Piece]:
        """The pieces held back until the end. A call that was cut off has no ClosePiece."""


@dataclass(slots=True)
class ReadCall:
    """A call in an answer. arguments: JSON, an object if the call is complete."""

    name: str
    arguments: str = ""


_NEXT = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonEnd:
    """Looks for the bracket that closes the first one. complete: whether it was found."""

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0
        self._in_string = self._escaped = False

    def find(self, text: str) -> int:
        """Number of characters of the next part that belong to the value."""
        i = 0
        while i < len(text):
            if self._escaped:
                self._escaped, i = False, i + 1
                continue
            match = (_IN_STRING if self._in_string else _NEXT).search(text, i)
            if match is None:
                break
            i = match.end()
            mark = match.group()
            if mark == "\\":
                self._escaped = True
            elif mark == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    self.complete = True
                    return i
        return len(text)


T = TypeVar("T")
Steps = Generator[None, None, T]
"""A part of a reader. It yields when more text is needed, and never at the end of the answer."""

BLANKS = " \t\r\n"


class Scanner:
    """The text of an answer that was not read yet, and the pieces found.

    special: texts that are control tokens of the vocabulary; only where SHOWN is before them are they found.
    None: not known, and the letters count in either case. at: characters looked at, not yet removed. last:
    whether the answer has ended. out: pieces found since `taken`.
    """

    def __init__(self, special: Collection[str] | None = None) -> None:
        self._special = special
        self._buffer = RunBuffer()
        self.at, self.last = 0, False
        self.out: list[Piece] = []
        self._skips_blanks = False  # after a call
        self._blank = True  # whether nothing but white space was found since the beginning

    @property
    def text(self) -> str:
        """The text that was not removed yet."""
        return self._buffer.text

    def push(self, text: str, runs: Runs) -> None:
        if SHOWN in text and self._special is None:
            text, runs = without_shown(text, runs)
        self._buffer.push(text, runs)

    def marker(self, text: str) -> str:
        """A marker as it stands in the text."""
        for token in self._special or ():
            text = text.replace(token, SHOWN + token)
        return text

    # Looking ahead. Nothing is removed.

    def match(self, options: Sequence[str]) -> Steps[str | None]:
        """The longest of these texts that comes next, None if none does."""
        while True:
            text, at = self._buffer.text, self.at
            n = len(text) - at
            if not self.last and any(len(o) > n and o.startswith(text[at:]) for o in options):
                yield
                continue
            option = max((o for o in options if text.startswith(o, at)), key=len, default=None)
            self.at += len(option or "")
            return option

    def blanks(self) -> Steps[None]:
        while True:
            text = self._buffer.text
            while self.at < len(text) and text[self.at] in BLANKS:
                self.at += 1
            if self.at < len(text) or self.last:
                return
            yield

    def word(self, more: str, longest: int) -> Steps[str]:
        """Letters, digits and characters of `more`; "" if more than `longest` follow."""
        while True:
            text, end = self._buffer.text, self.at
            while end < len(text) and (text[end].isalnum() or text[end] in more):
                end += 1
            if end - self.at > longest:
                return ""
            if end < len(text) or self.last:
                word, self.at = text[self.at : end], end
                return word
            yield

    def before(self, marker: str, longest: float = math.inf) -> Steps[str | None]:
        """The text before a marker, which is passed too; None if it does not come within `longest`."""
        start = self.at
        while True:
            text = self._buffer.text
            end = text.find(marker, start)
            if end >= 0:
                passed, self.at = text[self.at : end], end + len(marker)
                return passed.replace(SHOWN, "")
            if self.last or len(text) - self.at > longest + len(marker):
                return None
            start = max(self.at, len(text) - len(marker) + 1)
            yield

    def next_is(self, character: str) -> Steps[bool]:
        while self.at >= len(self._buffer.text) and not self.last:
            yield
        return self._buffer.text.startswith(character, self.at)

    # Removing.

    def drop(self) -> None:
        self._buffer.take(self.at)
        self.at = 0

    def take(self, n: int) -> tuple[str, Runs]:
        """Remove the next n characters, and return them with their runs."""
        self.at = 0
        return without_shown(*self._buffer.take(n))

    def write_text(self, n: int) -> None:
        """The next n characters are text; white space is dropped after calls."""
        if self._skips_blanks:
            text = self._buffer.text[:n]
            blank = len(text) - len(text.lstrip(BLANKS))
            self.take(blank)
            n -= blank
        text, runs = self.take(n)
        if text:
            self._skips_blanks = self._blank = False
            self.out.append(TextPiece(text, runs))

    def text_until(self, markers: Sequence[str], reasoning: bool = False) -> Steps[str | None]:
        """Passes text (or reasoning) on, up to the first of the markers, which is returned; it and the white
        space before it are not removed. None: the answer has ended.
        """

        def write(n: int) -> None:
            if not reasoning:
                self.write_text(n)
                return
            text, runs = self.take(n)
            self.out += [ThoughtPiece(text, runs)] if text else []

        while True:
            text = self._buffer.text
            first = min(((at, m) for m in markers if (at := text.find(m)) >= 0), default=None)
            if first is not None:
                write(len(text[: first[0]].rstrip(BLANKS)))
                return first[1]
            if self.last:
                empty = (self._blank or self._skips_blanks or reasoning) and not text.strip(BLANKS)
                write(0 if empty else len(text))
                self.take(len(self._buffer.text))
                return None
            n = len(text) - self._buffer.open_end(tuple(markers))
            write(len(text[:n].rstrip(BLANKS)))
            yield

    # Calls.

    def open(self, name: str) -> None:
        """A call begins; what was looked at is removed."""
        self.drop()
        self.out.append(OpenPiece(name))

    def close(self) -> None:
        """The call is complete."""
        self.out.append(ClosePiece())
        self._skips_blanks = True

    def arguments(self, text: str, n: int) -> None:
        """Part of the arguments as JSON, for which the model wrote the next n characters."""
        _, runs = self.take(n)
        if text := text.replace(SHOWN, ""):
            self.out.append(ArgumentsPiece(text, runs))

    def json_object(self) -> Steps[bool]:
        """Passes a JSON object on as arguments. Returns whether it was one."""
        end, written = JsonEnd(), list[str]()
        while not end.complete:
            n = end.find(self._buffer.text)
            text, runs = self.take(n)
            if text:
                self.out.append(ArgumentsPiece(text, runs))
                written.append(text)
            if not end.complete:
                if self.last:
                    return False
                yield
        try:
            return isinstance(json.loads("".join(written)), dict)
        except (ValueError, RecursionError):
            return False

    def string(self, markers: Sequence[str]) -> Steps[bool]:
        """Passes the text before the first of these markers on as the inside of a JSON string; the marker is
        passed too. Returns False if the answer ends before.
        """
        while True:
            text = self._buffer.text
            matches = [(at, -len(m)) for m in markers if (at := text.find(m)) >= 0]
            at, n = min(matches, default=(len(text), 0))
            if not matches and not self.last:
                at -= self._buffer.open_end(tuple(markers))
            if at:
                self.arguments(json.dumps(text[:at].replace(SHOWN, ""), ensure_ascii=False)[1:-1], at)
            if matches or self.last:
                self.take(-n)
                return bool(matches)
            yield

    def taken(self) -> list[Piece]:
        """The pieces since the last call."""
        out, self.out = self.out, []
        return out


class StepReader(ABC):
    """A reader whose steps are a generator; implements CallReader."""

    def __init__(self, tools: Tools, special: Collection[str] | None = None) -> None:
        self.tools = {tool.name: tool for tool in tools.allowed}
        self.scan = Scanner(special)
        self._steps = self.steps()

    @abstractmethod
    def steps(self) -> Steps[None]:
        """Reads the whole answer."""

    def push(self, text: str, runs: Runs) -> list[Piece]:
        self.scan.push(text, runs)
        next(self._steps, None)
        return self.scan.taken()

    def finish(self) -> list[Piece]:
        self.scan.last = True
        for _ in self._steps:
            pass
        self.scan.write_text(len(self.scan.text))
        return self.scan.taken()


def without_shown(text: str, runs: Runs) -> tuple[str, Runs]:
    if SHOWN not in text:
        return text, runs
    kept, at = list[tuple[int, str]](), 0
    for n, source in runs:
        n_left = n - text.count(SHOWN, at, at + n)
        at += n
        if n_left:
            kept.append((n_left, source))
    return text.replace(SHOWN, ""), kept


class ChannelReader:
    """Implements CallReader. channels: separates reasoning from text; calls: reads that text."""

    def __init__(self, channels: CallReader, calls: CallReader) -> None:
        self._channels, self._calls = channels, calls

    def push(self, text: str, runs: Runs) -> list[Piece]:
        return self._read(self._channels.push(text, runs))

    def finish(self) -> list[Piece]:
        return self._read(self._channels.finish()) + self._calls.finish()

    def _read(self, pieces: Sequence[Piece]) -> list[Piece]:
        read: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, TextPiece):
                read += self._calls.push(piece.text, piece.runs)
            else:
                read.append(piece)
        return read


class PieceReader:
    """Separates the pieces of one answer: reasoning, text, and the calls that `reader` finds, None for none.

    closing_tag, off: see ReasoningSplitter. keep_tags: reasoning in tags is text, with its tags, and that in
    a channel gets tags. tags: around the reasoning. has_text: whether text has begun after reasoning.
    """

    def __init__(
        self,
        reader: CallReader | None = None,
        closing_tag: str = "",
        off: bool = False,
        keep_tags: bool = False,
    ) -> None:
        self._reader, self._splitter = reader, ReasoningSplitter(closing_tag, off, keep_tags)
        self._keep_tags, self._in_channel, self.has_text = keep_tags, False, False

    @property
    def tags(self) -> tuple[str, str]:
        return self._splitter.tags

    def push(self, text: str, runs: Runs, last: bool = False) -> list[Piece]:
        """Add text; returns the pieces that are certain by now. last: it is the end of the answer."""
        pieces: list[Piece] = []
        for one in self._splitter.push(text, runs) + (self._splitter.finish() if last else []):
            if one.reasoning:
                kind = TextPiece if self._keep_tags else ThoughtPiece
                pieces.append(kind(one.text, one.runs))
                continue
            self.has_text = True
            if self._reader is None:
                pieces.append(TextPiece(one.text, one.runs))
            else:
                pieces += self._found(self._reader.push(one.text, one.runs))
        if last and self._reader is not None:
            pieces += self._found(self._reader.finish())
        return pieces

    def _found(self, pieces: list[Piece]) -> list[Piece]:
        self.has_text = self.has_text and not any(isinstance(piece, ThoughtPiece) for piece in pieces)
        shown: list[Piece] = []
        for piece in pieces if self._keep_tags else ():
            if (thought := isinstance(piece, ThoughtPiece)) is not self._in_channel:
                self._in_channel = thought
                tag = f"{OPENING}\n" if thought else f"\n{CLOSING}\n\n"
                shown.append(TextPiece(tag, [(len(tag), "target")]))
            shown.append(TextPiece(piece.text, piece.runs) if isinstance(piece, ThoughtPiece) else piece)
        return shown if self._keep_tags else pieces
