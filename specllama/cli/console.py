"""The only place that prints. stdout carries data, stderr everything else; colour and bars on terminals
only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TextIO

from specllama.errors import ResourceError


class ReaderGoneError(Exception):
    """Nobody reads stdout any more. No OSError, since Typer has an exit code of its own for a broken pipe."""


def prepare() -> None:
    """Make both streams survive any text: what the terminal's encoding lacks is shown as '?'.

    Streams that were closed before we came lead to nowhere, and no pipe of ours takes their numbers.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
                if number:
                    setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def data(text: str) -> None:
    """Write to stdout, at once. Raises ReaderGoneError without a reader, ResourceError on a full disk."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        raise ReaderGoneError from None
    except OSError as problem:
        drop_stdout()
        raise ResourceError(f"standard output cannot be written: {problem.strerror}") from None


def note(text: str) -> None:
    """A line to stderr."""
    _write(sys.stderr, text + "\n")


def warning(text: str) -> None:
    """A line to stderr that the user should act on."""
    _write(sys.stderr, _styled("warning: ", "33") + text + "\n")


def error(message: str, hint: str = "") -> None:
    """What happened and why; what to do next."""
    _write(sys.stderr, _styled("error: ", "31") + message + "\n" + (f"{hint}\n" if hint else ""))


def dim(text: str) -> str:
    """The text, paler where that can be shown."""
    return _styled(text, "2")


def drop_stdout() -> None:
    """After a broken pipe: nothing more goes to stdout, not even at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def fancy(stream: TextIO) -> bool:
    """Whether the stream is a terminal that understands more than text."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _styled(text: str, code: str) -> str:
    plain = "NO_COLOR" in os.environ or not fancy(sys.stderr)
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (BrokenPipeError, ValueError):
        pass  # nobody listens


class Progress:
    """A line on stderr that says how far something is: redrawn on a terminal, else a line now and then.

    delay: seconds before anything is shown. every: seconds between two lines where lines cannot be redrawn.
    """

    def __init__(self, delay: float = 2.0, every: float = 5.0) -> None:
        self._started, self._shown, self._delay, self._every = time.monotonic(), 0.0, delay, every
        self._open = False

    def show(self, label: str, share: float, detail: str = "") -> None:
        """`share` from 0 to 1."""
        now = time.monotonic()
        redraw = fancy(sys.stderr)
        if now - self._started < self._delay or now - self._shown < (0.1 if redraw else self._every):
            return
        self._shown = now
        text = f"{label} {share:4.0%}" + (f" {detail}" if detail else "")
        if redraw:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            _write(sys.stderr, f"\r\x1b[2K{text[: width - 1]}")
            self._open = True
        else:
            _write(sys.stderr, text + "\n")

    def clear(self) -> None:
        """Take the line away."""
        if self._open:
            _write(sys.stderr, "\r\x1b[2K")
            self._open = False
