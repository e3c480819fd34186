"""Text for people: tables, wrapped lines, durations. rich is imported when there is a table."""

from __future__ import annotations

import difflib
import io
import os
import select
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

NARROWEST = 20  # columns; narrower terminals are treated as this wide


def columns(stream: TextIO) -> int | None:
    """How wide lines on a stream may be: COLUMNS, else the terminal's width; None if it is not a terminal,
    where nothing is wrapped.
    """
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return max(NARROWEST, int(given))
    if not stream.isatty():
        return None
    try:
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns or 80)
    except (OSError, ValueError):
        return 80


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    n_labels: int = 1,
    left: Iterable[int] = (0,),
    gap: int = 1,
) -> Iterator[str]:
    """Lines of a table. Columns for which `width` has no room follow below, after the first n_labels again.

    left: indexes of columns aligned to the left, the others are to the right. gap: blanks between columns.
    """
    from rich.cells import cell_len

    widths = [max(cell_len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    labels, blocks, to_left = list(range(n_labels)), [list[int]()], set(left)
    used = first = sum(widths[i] + gap for i in labels)
    for at in range(n_labels, len(header)):
        if blocks[-1] and used + widths[at] > (width or 1 << 20):
            blocks, used = [*blocks, []], first
        blocks[-1].append(at)
        used += widths[at] + gap
    for block in blocks:
        shown = [*labels, *block]
        for row in [header, *rows]:
            blanks = [" " * (widths[i] - cell_len(row[i])) for i in shown]
            cells = [row[i] + b if i in to_left else b + row[i] for i, b in zip(shown, blanks, strict=True)]
            yield (" " * gap).join(cells).rstrip()


def listing(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, least: Sequence[int] = ()
) -> Iterator[str]:
    """A table of texts, indented; where `width` has no room for it, of the columns `least` alone, or else one
    entry below the other.
    """
    for shown in [range(len(header)), least] if least else [range(len(header))]:
        cells = [[row[i] for i in shown] for row in rows]
        lines = list(table([header[i] for i in shown], cells, None, left=range(len(header)), gap=2))
        if width is None or max(map(len, lines)) + 2 <= width:
            yield from (f"  {line}" for line in lines)
            return
    for first, *others in rows:
        yield from wrapped(first, width, "  ", "    ")
        for name, text in zip(header[1:], others, strict=True):
            if text:
                yield from wrapped(f"{name}: {text}" if name else text, width, "    ", "      ")


def wrapped(text: str, width: int | None, first: str = "", more: str = "") -> list[str]:
    """Lines no longer than `width` where that can be: paths and commands are not broken, so that they can be
    copied. first, more: what the first and the other lines begin with.
    """
    if width is None:
        return [first + text]
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=more,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def duration(seconds: float) -> str:
    """Seconds for people to read, to the second: "3 min 05 s"."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rough_duration(seconds: float) -> str:
    """Seconds for people to read, in one unit: "3 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def age(seconds: float) -> str:
    """How long ago something changed, for people to read."""
    return duration(seconds) if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; did you mean X?", "" where no name is similar."""
    matches = difflib.get_close_matches(name[:60], list(names), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def side_by_side(rows: Sequence[tuple[str, str, str]], second: str, width: int | None) -> Iterator[str]:
    """The rows (label, text, text) of a target and a draft side by side, or one below the other where `width`
    columns are too few for that. second: what the draft is called.
    """
    lines = list(table(("", "target", second), rows, left=(0, 1, 2), gap=2))
    if width is None or max(map(len, lines)) <= width:
        yield from lines
        return
    for at, title in enumerate(("target", second), 1):
        yield title
        for row in rows:
            yield from wrapped(f"{row[0]} {row[at]}", width, "  ", "    ")


def write_all(stream: TextIO, text: str) -> None:
    """Write a text, waiting where the stream is a full pipe without blocking, as one that is shared with a
    program in an event loop: Python's own streams drop the rest there. Raises OSError, ValueError if closed.
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
    """Raises OSError for what is reported only when a file is closed, as on a network's file system."""
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
