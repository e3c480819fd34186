"""Shows answers: plain text on a pipe; on a terminal with reasoning dimmed and drafted text coloured."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import cycle
from typing import TextIO

from specllama.cli import console
from specllama.client.stream import GenerationResult
from specllama.config.defaults import SOURCE_LABELS
from specllama.text.reasoning import ReasoningPiece, ReasoningSplitter

_PALETTE = (
    ("magenta", "35"), ("cyan", "36"), ("blue", "34"), ("green", "32"), ("yellow", "33"), ("red", "31"),
)  # fmt: skip
COLOURS = dict(zip(SOURCE_LABELS, cycle(_PALETTE), strict=False))  # by the source of a token
_DIM = "2"


def coloured(stream: TextIO) -> bool:
    """Whether text on the stream may be coloured or dimmed."""
    return console.supports_ansi(stream) and "NO_COLOR" not in os.environ


class Screen:
    """The output of a chat. plain: no styles, not even on a terminal, and an empty line between answers;
    show_draft: colour drafted text.
    """

    def __init__(self, plain: bool, show_draft: bool) -> None:
        self.styles = not plain and coloured(sys.stdout)
        self._dims = not plain and coloured(sys.stderr)
        self.show_draft = show_draft and self.styles
        self._answer = GenerationResult()
        self._splitter: ReasoningSplitter | None = None
        self._at_start, self._plain = True, plain
        self._has_text = self._separates = False

    def begin(self, answer: GenerationResult, goes_on: bool = False) -> None:
        """Begin an answer; `show` gets its text. goes_on: on the line where an earlier one has ended."""
        self._answer, self._splitter = answer, None
        self._at_start = self._at_start or not goes_on
        self._separates = self._plain and self._has_text and not goes_on

    def show(self, text: str, runs: Sequence[tuple[int, str]]) -> None:
        """Show the next piece of the answer. runs: (characters, source)."""
        if not self.styles:
            self._write(text)
            return
        if self._splitter is None:
            self._splitter = ReasoningSplitter(self._answer.closing_tag, keep_tags=True)
        self._pieces(self._splitter.push(text, runs))

    def end(self, newline: bool = True) -> None:
        """Finish the answer, and its last line too."""
        if self._splitter is not None:
            self._pieces(self._splitter.finish())
            self._splitter = None
        if newline and not self._at_start:
            self._write("\n")

    def line(self, text: str) -> None:
        """Show a line of its own in the answer."""
        if self._splitter is not None:
            self._pieces(self._splitter.finish())
            self._splitter = None
        self._write(text if self._at_start else f"\n{text}")
        self._write("\n")

    def dim(self, text: str) -> None:
        """Write a dimmed line to stderr."""
        console.note(text, _DIM if self._dims else "")

    def legend(self) -> None:
        """Say which colour marks which source."""
        words = [f"{console.styled(SOURCE_LABELS[n], code)} {word}" for n, (word, code) in COLOURS.items()]
        console.write(sys.stderr, f"drafted text is coloured: {', '.join(words)}\n")

    def _pieces(self, pieces: Sequence[ReasoningPiece]) -> None:
        for piece in pieces:
            at = 0
            for n, source in piece.runs:
                code = COLOURS.get(source, ("", ""))[1] if self.show_draft else ""
                codes = ";".join(c for c in (_DIM if piece.reasoning else "", code) if c)
                self._write(piece.text[at : at + n], codes)
                at += n

    def _write(self, text: str, codes: str = "") -> None:
        if text:
            if self._separates:
                console.data("\n")
            self._separates, self._has_text = False, True
            self._at_start = text.endswith("\n")
            console.data(text, codes)
