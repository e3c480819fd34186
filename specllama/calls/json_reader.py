"""Reads calls that are JSON objects between two markers, as the model writes them."""

from __future__ import annotations

import json
import re

from specllama.calls.json_end import JsonEnd
from specllama.calls.pieces import ArgumentsPiece, ClosePiece, OpenPiece, Piece, TextPiece
from specllama.calls.tools import Tools
from specllama.text.detokenizer import Runs
from specllama.text.run_buffer import RunBuffer

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_TAIL = re.compile(r"\s*\}?\s*")


class JsonCallReader:
    """Reads text, then any number of `opening {"name": …, "arguments": {…}} closing`.

    What stands between the markers and is no such call is text, the markers included. White space around
    calls is dropped.
    """

    def __init__(self, tools: Tools, opening: str, closing: str) -> None:
        self._names = {tool.name for tool in tools.allowed}
        self._opening, self._closing = opening, closing
        self._buffer, self._end = RunBuffer(), JsonEnd()
        self._state = "text"  # "head" after an opening marker, "arguments", "tail" after them
        self._blank = True  # whether no text was found since the beginning or the last call

    def push(self, text: str, runs: Runs) -> list[Piece]:
        self._buffer.push(text, runs)
        return self._pieces(last=False)

    def finish(self) -> list[Piece]:
        return self._pieces(last=True)

    def _pieces(self, last: bool) -> list[Piece]:
        found: list[Piece] = []
        while self._buffer.text:
            step = getattr(self, f"_{self._state}")
            before = self._state, len(self._buffer.text)
            found += step(last)
            if (self._state, len(self._buffer.text)) == before:
                break
        return found

    def _text(self, last: bool) -> list[Piece]:
        buffer = self._buffer
        at = buffer.text.find(self._opening)
        if at >= 0:
            pieces = self._text_piece(len(buffer.text[:at].rstrip()))
            buffer.take(buffer.text.find(self._opening))  # white space
            self._state = "head"
            return pieces
        if last:
            return self._text_piece(len(buffer.text) if not self._blank or buffer.text.strip() else 0)
        certain = buffer.text[: len(buffer.text) - buffer.open_end((self._opening,))]
        return self._text_piece(len(certain.rstrip()))

    def _text_piece(self, n: int) -> list[Piece]:
        """The next n characters as text, without white space at the beginning."""
        if self._blank:
            blanks = len(self._buffer.text[:n]) - len(self._buffer.text[:n].lstrip())
            self._buffer.take(blanks)
            n -= blanks
        if not n:
            return []
        self._blank = False
        return [TextPiece(*self._buffer.take(n))]

    def _head(self, last: bool) -> list[Piece]:
        text = self._buffer.text
        found = _HEAD.match(text, len(self._opening))
        name = _decoded(found.group(1)) if found else None
        if found and name in self._names:
            self._buffer.take(found.end())
            self._state, self._end = "arguments", JsonEnd()
            return [OpenPiece(str(name))]
        end = text.find(self._closing, len(self._opening))
        if not found and end < 0 and not last:
            return []
        self._state = "text"  # no call
        n = len(text) if end < 0 else end + len(self._closing)
        return self._text_piece(n if found is None else len(self._opening))

    def _arguments(self, _last: bool) -> list[Piece]:
        n = self._end.find(self._buffer.text)
        pieces: list[Piece] = [ArgumentsPiece(*self._buffer.take(n))]
        if self._end.complete:
            self._state = "tail"
            pieces.append(ClosePiece())
        return pieces

    def _tail(self, last: bool) -> list[Piece]:
        text = self._buffer.text
        found = _TAIL.match(text)
        n = found.end() if found else 0
        if text.startswith(self._closing, n):
            self._buffer.take(n + len(self._closing))
        elif not last and self._closing.startswith(text[n:]):
            return []
        self._state, self._blank = "text", True
        return []


def _decoded(text: str) -> str | None:
    try:
        return str(json.loads(text))
    except ValueError:
        return None
