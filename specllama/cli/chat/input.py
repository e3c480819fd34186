"""The input of a chat: single lines, or several between two lines of three quotation marks.

Reads from a pipe or a simple terminal; terminal.py is for terminals that can edit.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from specllama.cli import console
from specllama.config.text_file import CUT, CUT_HINT, MAX_BYTES, checked_text, decoded, is_cut
from specllama.errors import UsageError
from specllama.text.surrogates import without_lone_surrogates

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
    text = without_lone_surrogates(text)
    if not text.lstrip().startswith(QUOTES):
        return UserInput(text.strip("\n"))
    inner = text.strip()[len(QUOTES) :]
    return UserInput(inner.removesuffix(QUOTES).removeprefix("\n").removesuffix("\n"), literal=True)


class LineReader:
    """Lines of standard input. Where that is a terminal, a prompt is written to stderr."""

    def __init__(self) -> None:
        self.interactive = sys.stdin is not None and sys.stdin.isatty()
        self._source: BinaryIO = sys.stdin.buffer if sys.stdin is not None else io.BytesIO()
        self._n_lines = 0

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
            raw = self._raw_line()
        except KeyboardInterrupt:
            if self.interactive:
                console.note("")
            raise
        if not raw:
            if self.interactive:
                console.note("")
            return None
        if self.interactive and is_cut(raw):
            raise UsageError(CUT, CUT_HINT)
        try:
            text = decoded(raw) if self._n_lines == 1 else raw.decode("utf-8")
        except ValueError:
            raise UsageError(f"line {self._n_lines} of standard input is not UTF-8; it is left out") from None
        if "\0" in text:
            raise UsageError(f"line {self._n_lines} of standard input has a NUL; it is left out")
        return text.rstrip("\r\n")

    def _raw_line(self) -> bytes:
        """The next line, empty at the end. Raises UsageError for one that is too long, after reading it."""
        raw = self._source.readline(MAX_BYTES + 1)
        self._n_lines += bool(raw)
        if self._n_lines == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16
            raw += self._source.read(MAX_BYTES)
            self._source = io.BytesIO(checked_text(raw, "standard input", "").encode())
            return self._source.readline()
        if len(raw) <= MAX_BYTES:
            return raw
        while raw and not raw.endswith(b"\n"):
            raw = self._source.readline(MAX_BYTES)
        limit = f"{MAX_BYTES >> 20} MiB"
        raise UsageError(f"line {self._n_lines} of standard input is larger than {limit}; it is left out")
