"""The only place that prints. stdout carries data, stderr all else; colour and bars on terminals only.

Texts may quote models, files and servers: on a terminal all but `write` pass text/terminal.py's filter.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import IO, Any, TextIO

from specllama.cli.formatting import check_written, columns, wrapped, write_all
from specllama.errors import Note, ResourceError, with_option_names
from specllama.json_types import JsonObject
from specllama.text.terminal import visible

_INDENT = "  "  # of the further lines of a wrapped one
_quiet = False  # --quiet
_closed = False  # stdout was closed when the program started


class ReaderGoneError(Exception):
    """stdout has no reader any more. Not an OSError, for which Typer has an exit code of its own."""


def prepare() -> None:
    """Make both streams accept any text: characters that the encoding lacks are shown as '?'.

    Streams closed at the start are opened on the null device, so that no pipe gets their descriptors.
    """
    threading.excepthook = _thread_failed
    be_quiet(False)
    global _closed
    _closed = sys.stdout is None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
                if number:
                    setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def data(text: str, style: str = "") -> None:
    """Write to stdout, at once. style: codes of SGR, for terminals only.

    Raises ReaderGoneError without a reader, ResourceError on a full disk or where it is closed.
    """
    if not text:
        return
    if _closed:
        raise ResourceError("standard output is closed, so that nothing can be written")
    with _mapped_errors():
        write_all(sys.stdout, styled(_shown(sys.stdout, text), style))


def report(given: Mapping[str, Any], about: JsonObject, lines: Iterable[str]) -> int:
    """Write a report to stdout: with --json, which is in `given`, the object in a line, dataclasses in it as
    objects, else its lines, which are made only then. Returns 0, the exit code.
    """
    text = (
        f"{json.dumps(about, default=asdict)}\n"
        if given.get("json")
        else "".join(f"{line}\n" for line in lines)
    )
    data(text)
    return 0


def width() -> int | None:
    """How wide lines on stdout may be, None for as wide as they are."""
    return columns(sys.stdout)


def end_of_data() -> None:
    """After the last `data`: raises ResourceError if not all of it has arrived on the disk."""
    with _mapped_errors():
        check_written(sys.stdout)


@contextlib.contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        _drop(sys.stdout)
        raise ReaderGoneError from None
    except OSError as problem:
        _drop(sys.stdout)
        raise ResourceError(f"standard output cannot be written: {problem.strerror}") from None


def be_quiet(quiet: bool) -> None:
    """Whether `note` and `show` leave out what is no warning."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether only warnings and errors are shown."""
    return _quiet


def note(text: str, style: str = "") -> None:
    """Write a line to stderr, unless only warnings are wanted. style: codes of SGR, for terminals only."""
    if _quiet:
        return
    write(sys.stderr, styled(_message(text), style) + "\n")


def warning(text: str) -> None:
    """Write a line to stderr that the user should act on."""
    write(sys.stderr, _word("warning: ", "33") + _message(text, "warning: ") + "\n")


def show(note_: Note) -> None:
    """Write a note or a warning to stderr, with that word before it."""
    if note_.severity == "warning":
        warning(note_.message)
    else:
        note(f"note: {note_.message}")


def error(message: str, hint: str = "") -> None:
    """Write an error to stderr: what happened and why; what to do next."""
    text = message + "\n" + (f"{hint}\n" if hint else "")
    write(sys.stderr, _word("error: ", "31") + _message(text, "error: "))


def traceback(error: BaseException) -> None:
    from traceback import format_exception

    write(sys.stderr, _shown(sys.stderr, "".join(format_exception(error))))


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        traceback(args.exc_value)


def log_stream(stream: IO[str]) -> IO[str]:
    """A stream for the log of the engine process, which quotes models: where `stream` is a terminal, one that
    shows it there as other texts; else `stream` itself. The descriptor stays the stream's.
    """
    if not stream.isatty():
        return stream
    file = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115
    return _TerminalLog(file, encoding=getattr(stream, "encoding", "utf-8"), errors="replace")


class _TerminalLog(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        return int(super().write(visible(text)))


def as_flag(name: str, value: str | None) -> str:
    """How the command line spells an option, with a value or without."""
    from specllama.config import options

    return options.as_flag(name, value)


def discard_unwritten() -> None:
    """Before the process ends: discard text that stderr does not accept. The interpreter would try to write
    it once more and end with an exit code of its own.
    """
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """After a broken pipe: send the stream to the null device, so that nothing fails at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def supports_ansi(stream: TextIO) -> bool:
    """Whether the stream is a terminal that understands escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str) -> str:
    """The text between control sequences; as it is if `style`, the codes of SGR, is empty."""
    return f"\x1b[{style}m{text}\x1b[0m" if style else text


def _word(text: str, style: str) -> str:
    plain = "NO_COLOR" in os.environ or not supports_ansi(sys.stderr)
    return text if plain else styled(text, style)


def _shown(stream: IO[str], text: str) -> str:
    return visible(text) if stream.isatty() else text


def _message(text: str, before: str = "") -> str:
    """A text for stderr, wrapped at words where the width is known. before: stands before the first line."""
    lines, width = list[str](), columns(sys.stderr) if sys.stderr.isatty() else None
    for line in _shown(sys.stderr, with_option_names(text, as_flag)).split("\n"):
        first = "" if lines else before
        is_long = width is not None and len(first) + len(line) > width
        lines += wrapped(line, width, first, _INDENT) if is_long else [first + line]
    return "\n".join(lines).removeprefix(before)


def write(stream: TextIO, text: str) -> None:
    """Write at once, control sequences too; text that the stream does not accept is lost."""
    with contextlib.suppress(OSError, ValueError):  # no reader, or the disk is full
        write_all(stream, text)
