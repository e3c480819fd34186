"""How answers are shown: as text on a pipe; on a terminal with reasoning dim and drafted text coloured."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from specllama.cli import console
from specllama.cli.chat.thinking import Thinking
from specllama.cli.chat.words import visible

COLOURS = {
    "model": ("green", "32"),
    "copy": ("cyan", "36"),
    "memory": ("blue", "34"),
    "grammar": ("magenta", "35"),
}
_DIM = "2"


def coloured(stream: TextIO) -> bool:
    """Whether text on the stream may have colours and dimness."""
    return console.supports_ansi(stream) and "NO_COLOR" not in os.environ


class Screen:
    """What a chat shows. plain: no styles on whatever terminal; show_draft: colour what was drafted."""

    def __init__(self, plain: bool, show_draft: bool) -> None:
        self.styles = not plain and coloured(sys.stdout)
        self._dims = not plain and coloured(sys.stderr)
        self.show_draft = show_draft and self.styles
        self._terminal = sys.stdout.isatty()
        self._thinking: Thinking | None = None
        self._at_start = True

    def begin(self, closing: str = "") -> None:
        """An answer begins. closing: the tag that will end its reasoning, "" where it begins with none."""
        self._thinking = Thinking(closing) if self.styles else None
        self._at_start = True

    def show(self, text: str, runs: Sequence[tuple[int, str]]) -> None:
        """A stretch of the answer; runs: (characters, source)."""
        if self._thinking is None:
            self._write(text)
            return
        at = 0
        for n, source in runs:
            self._parts(self._thinking.push(text[at : at + n], source))
            at += n

    def end(self) -> None:
        """The answer is complete: its line, too."""
        if self._thinking is not None:
            self._parts(self._thinking.finish())
            self._thinking = None
        if not self._at_start:
            self._write("\n")

    def dim(self, text: str) -> None:
        """A line to stderr that does not ask for attention."""
        console.note(_styled(text, _DIM) if self._dims else text)

    def legend(self) -> str:
        """Which colour is whose."""
        return ", ".join(f"{_styled(name, code)} {colour}" for name, (colour, code) in COLOURS.items())

    def _parts(self, parts: Sequence[tuple[str, str, bool]]) -> None:
        for text, source, reasoning in parts:
            code = COLOURS.get(source, ("", ""))[1] if self.show_draft else ""
            codes = ";".join(c for c in (_DIM if reasoning else "", code) if c)
            self._write(text, codes)

    def _write(self, text: str, codes: str = "") -> None:
        if text:
            self._at_start = text.endswith("\n")
            safe = visible(text) if self._terminal else text
            console.data(_styled(safe, codes) if codes else safe)


def _styled(text: str, codes: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m"
