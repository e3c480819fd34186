"""What a user types in a chat: lines, or several between two lines of three quotation marks.

Reads from a pipe or a simple terminal; terminal.py is for terminals that can edit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

from specllama.cli import console
from specllama.cli.chat.file import clean

PROMPT, CONTINUED = "> ", ". "
QUOTES = '"""'
FILE = "FILE"  # as a word after a command: any path


@dataclass(frozen=True, slots=True)
class Typed:
    """One input. literal: it is a message whatever it begins with."""

    text: str
    literal: bool = False


class InputReader(Protocol):
    """Where inputs come from. interactive: a user types, so that errors and Ctrl-C end nothing."""

    interactive: bool

    def read(self) -> Typed | None:
        """The next input, None at the end. Raises KeyboardInterrupt for a Ctrl-C that clears nothing."""


def is_open(text: str) -> bool:
    """Whether three quotation marks begin the text and none end it yet."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def typed(text: str) -> Typed:
    """The input of a typed text, without the marks around it."""
    text = clean(text)
    if not text.lstrip().startswith(QUOTES):
        return Typed(text.strip("\n"))
    inner = text.strip()[len(QUOTES) :]
    return Typed(inner.removesuffix(QUOTES).removeprefix("\n").removesuffix("\n"), literal=True)


class LineReader:
    """Lines of standard input. Where that is a terminal, a prompt is written to stderr."""

    def __init__(self) -> None:
        self.interactive = sys.stdin is not None and sys.stdin.isatty()
        self._warned = False

    def read(self) -> Typed | None:
        """The next input; empty lines outside of quotation marks are left out."""
        lines: list[str] = []
        while (line := self._line(CONTINUED if lines else PROMPT)) is not None:
            lines.append(line)
            text = "\n".join(lines)
            if not is_open(text):
                return typed(text)
        if not lines:
            return None
        console.warning(f"the {QUOTES} was not closed; the message is sent as it is")
        return typed("\n".join(lines))

    def _line(self, prompt: str) -> str | None:
        if self.interactive:
            console.write(sys.stderr, prompt)
        try:
            raw = sys.stdin.buffer.readline() if sys.stdin is not None else b""
        except KeyboardInterrupt:
            if self.interactive:
                console.note("")
            raise
        if not raw:
            if self.interactive:
                console.note("")
            return None
        text = raw.decode("utf-8", "replace")
        if not self._warned and "\ufffd" in text and "\ufffd".encode() not in raw:
            self._warned = True
            console.warning("standard input is not all UTF-8; invalid bytes are replaced")
        return text.rstrip("\r\n")
