"""The one reader of text files that a user names: prompts, grammars, schemas, templates, keys, conversations.

A text is UTF-8, or UTF-16 with its mark at the beginning, as editors and shells on Windows write it. Anything
else is refused with its place, and nothing is read without a limit: a path may lead to an endless device.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specllama.errors import NotFoundError, UsageError, option

MAX_BYTES = 4 << 20  # as of a request to the server
STDIN = "-"
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)


class TextProblem(ValueError):
    """Why bytes are no text, in a clause."""


class StandardInput:
    """Standard input, which can be read once. taken_by: what reads it, "" for nothing yet."""

    def __init__(self) -> None:
        self.taken_by = ""

    def read(self, by: str, max_bytes: int = MAX_BYTES) -> str:
        """All of its text. by: what it is read for, in words or an option's reference. Raises UsageError,
        also if something else reads it.
        """
        if self.taken_by:
            raise UsageError(f"{by}: standard input is already read as {self.taken_by}")
        self.taken_by = by
        if sys.stdin is None:
            return ""
        try:
            data = sys.stdin.buffer.read(max_bytes + 1)
        except OSError as error:
            raise UsageError(f"standard input cannot be read: {error.strerror or error}") from None
        if sys.stdin.isatty() and any(map(is_cut, data.splitlines())):
            raise UsageError(CUT, CUT_HINT)
        return checked_text(data, "standard input", "", max_bytes)


standard_input = StandardInput()
LONGEST_LINE = 1023 if sys.platform == "darwin" else 4095  # bytes that a terminal keeps of a line
CUT = f"the terminal keeps only {LONGEST_LINE} bytes of a line, and has cut this one"
CUT_HINT = "put the text into a file, or break it into lines"


def is_cut(line: bytes) -> bool:
    """Whether a line from a terminal has the length beyond which terminals drop what is typed or pasted."""
    return len(line.rstrip(b"\r\n")) >= LONGEST_LINE


def read_text(path: str, name: str, max_bytes: int = MAX_BYTES) -> str:
    """The text of the file that the option `name` names ("" for none); "-" is standard input, "~" the home
    directory.

    Raises NotFoundError, UsageError, which name the file and the place of what is no text in it.
    """
    if not path.strip():
        raise UsageError("needs the path of a file" if name else "a path is empty", option=name)
    if "\0" in path:
        raise UsageError(_about(name, "not a usable path"), option=name)
    if path == STDIN:
        return standard_input.read(option(name) if name else "standard input", max_bytes)
    return checked_text(read_bytes(path, name, max_bytes), path, name, max_bytes)


def read_bytes(path: str, name: str, max_bytes: int) -> bytes:
    """The first bytes of a file, one more than allowed. Raises NotFoundError, UsageError."""
    try:
        with expanded(path).open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise NotFoundError(_about(name, f"there is no file {path}"), option=name) from None
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror or error}"
        raise UsageError(_about(name, why), option=name) from None


def checked_text(data: bytes, where: str, name: str, max_bytes: int = MAX_BYTES) -> str:
    """The text of bytes that were read up to one more than allowed. where: the file, for the message. name:
    of the option, "" for none. Raises UsageError.
    """
    if len(data) > max_bytes:
        raise UsageError(_about(name, f"{where} is larger than {max_bytes >> 20} MiB"), option=name)
    try:
        text = decoded(data)
    except TextProblem as problem:
        raise UsageError(_about(name, f"{where}: {problem}"), "convert it to UTF-8", option=name) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(_about(name, f"{where} is no text: there is a NUL in line {line}"), option=name)
    return text


def _about(name: str, message: str) -> str:
    return f": {message}" if name else message


def decoded(data: bytes) -> str:
    """The text without the mark at its beginning. Raises TextProblem."""
    mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", "utf-8"))
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        at = len(mark) + error.start
        if encoding != "utf-8":
            raise TextProblem(f"it is not whole {encoding[:6].upper()} (at byte {at})") from None
        raise TextProblem(_not_utf8(data, at)) from None


def _not_utf8(data: bytes, at: int) -> str:
    return f"line {data.count(10, 0, at) + 1} is not UTF-8 (byte {at} is 0x{data[at]:02x})"


def argument(text: str, name: str) -> str:
    """A text of the command line, UTF-8 in any locale. name: of the option. Raises UsageError."""
    try:
        return text.encode("utf-8", "surrogateescape").decode()
    except UnicodeDecodeError as error:
        problem = f": {_not_utf8(error.object, error.start)}"
        raise UsageError(problem, "convert it to UTF-8", option=name) from None


def without_last_newline(text: str) -> str:
    """The text without the newline that ends it, if one does; editors and `echo` write one."""
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with `~` and `~user` at its beginning as home directories; unchanged without such a home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
