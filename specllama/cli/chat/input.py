"""The input of a chat: single lines, or several between two lines of three quotation marks.

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
FILE = "FILE"  # among the completions of a command: any path


@dataclass(frozen=True, slots=True)
class UserInput:
    """One input. literal: it is a message, even if it begins with a slash."""

    text: str
    literal: bool = False


class InputReader(Protocol):
    """The source of inputs. interactive: a user types them; errors and Ctrl-C then do not end the chat."""

    interactive: bool

    def read(self) -> UserInput | None:
        """The next input, None at the end. Raises KeyboardInterrupt for Ctrl-C, unless it clears a line."""

    def read_name(self) -> str:
        """A line that is not kept for later chats, "" at the end. Raises KeyboardInterrupt as `read`."""


def is_open(text: str) -> bool:
    """Whether the text begins with three quotation marks that are not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def parse_input(text: str) -> UserInput:
    """A typed text as an input, without the quotation marks around it."""
    text = clean(text)
    if not text.lstrip().startswith(QUOTES):
        return UserInput(text.strip("\n"))
    inner = text.strip()[len(QUOTES) :]
    return UserInput(inner.removesuffix(QUOTES).removeprefix("\n").removesuffix("\n"), literal=True)


class LineReader:
    """Lines of standard input. Where that is a terminal, a prompt is written to stderr."""

    def __init__(self) -> None:
        self.interactive = sys.stdin is not None and sys.stdin.isatty()
        self._warned = False

    def read(self) -> UserInput | None:
        """The next input; empty lines outside of quotation marks are left out."""
        lines: list[str] = []
        while (line := self._line(CONTINUED if lines else PROMPT)) is not None:
            lines.append(line)
            text = "\n".join(lines)
            if not is_open(text):
                return parse_input(text)
        if not lines:
            return None
        console.warning(f"the {QUOTES} was not closed; the message is sent as it is")
        return parse_input("\n".join(lines))

    def read_name(self) -> str:
        return (self._line(PROMPT) or "").strip()

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
