"""Writing to file descriptors: all of a text or an error, whatever the other end is. Knows no text
of ours.
"""

from __future__ import annotations

import io
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


def write_all(stream: TextIO, text: str) -> None:
    """Write a text, waiting where the stream is a full pipe without blocking, as one that is shared with a
    program in an event loop: Python's own streams drop the rest there. Raises OSError, ValueError if the
    stream is closed.
    """
    stream.flush()
    try:
        number = stream.fileno()
    except io.UnsupportedOperation:  # no file
        stream.write(text)
        stream.flush()
        return
    rest = memoryview(text.encode(stream.encoding or "utf-8", stream.errors or "replace"))
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:
            select.select((), (number,), ())


def check_written(stream: TextIO) -> None:
    """Raises OSError for what the system reports only when a file is closed, as on a network's file
    system.
    """
    try:
        number = os.dup(stream.fileno())
    except (OSError, ValueError):  # no file, or closed
        return
    os.close(number)


class LogFile(io.TextIOWrapper):
    """A log file whose errors never end an answer: after the first one, `failed` is called with the reason,
    and the rest of the log is dropped. Raises OSError if it cannot be opened.
    """

    def __init__(self, path: Path, failed: Callable[[str], None]) -> None:
        super().__init__(path.open("wb", buffering=0), encoding="utf-8", write_through=True)
        self._failed: Callable[[str], None] | None = failed

    def write(self, text: str, /) -> int:
        if self._failed is not None:
            try:
                return super().write(text)
            except OSError as error:
                self._fail(error)
        return len(text)

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self._failed is not None:
            self._failed(error.strerror or str(error))
        self._failed = None
