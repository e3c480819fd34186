"""Progress on stderr: a bar redrawn on a terminal. A pipe or a file gets none, whatever the command."""

from __future__ import annotations

import io
import os
import sys
from types import TracebackType

from specllama.cli import console, formatting
from specllama.clock import running_time
from specllama.text.terminal import printable

_BAR = 24  # columns of the bar
_EVERY = 0.1  # seconds between two drawings


class Progress:
    """The progress of one thing, redrawn on a terminal.

    delay: seconds before anything is shown. A context manager that clears the line at the end.
    """

    def __init__(self, delay: float = 2.0) -> None:
        self._started, self._last, self._delay = running_time(), 0.0, delay
        self._is_drawn, self._stage = False, ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.clear()

    def show(self, label: str, share: float, detail: str = "", stage: str = "") -> None:
        """Show the line, unless it was shown a moment ago.

        share: from 0 to 1. stage: what is in progress; a new one is shown at once.
        """
        if console.is_quiet() or not console.supports_ansi(sys.stderr):
            return
        now = running_time()
        due = now - self._last >= _EVERY
        if now - self._started < self._delay or (not due and stage == self._stage):
            return
        self._last, self._stage = now, stage
        console.write(sys.stderr, f"\r\x1b[2K{_drawn(printable(label), share, printable(detail))}")
        self._is_drawn = True

    def loading(self, name: str, share: float) -> None:
        """Show how much of a model is loaded, or of the kernels compiled."""
        self.show(f"{'compiling' if name == 'kernels' else 'loading'} the {name}", share, stage=name)

    def clear(self) -> None:
        """Clear the line."""
        if self._is_drawn:
            console.write(sys.stderr, "\r\x1b[2K")
            self._is_drawn = False


class _Drawing(io.StringIO):
    """Collects what rich draws, in characters that stderr can show."""

    encoding = property(lambda _: getattr(sys.stderr, "encoding", None) or "ascii")


def _drawn(label: str, share: float, detail: str) -> str:
    """One line with label, bar, percentage and detail; without room for it there is no bar."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    width = (formatting.columns(sys.stderr) or 80) - 1
    figures = f"{share:4.0%} {detail}".rstrip()
    line = Table.grid(padding=(0, 1, 0, 0))
    if cell_len(label) + _BAR + len(figures) + 2 <= width:
        bar = ProgressBar(1.0, min(1.0, share), width=_BAR, complete_style="green", finished_style="green")
        line.add_row(Text(label), bar, Text(figures))
    else:
        text = Text(f"{label[: max(1, width - 5)]} {figures}")
        text.truncate(width, overflow="crop")
        line.add_row(text)
    file = _Drawing()
    colours = None if "NO_COLOR" in os.environ else "standard"
    Console(file=file, width=width, force_terminal=True, color_system=colours).print(line, end="")  # type: ignore[arg-type]
    return file.getvalue().partition("\n")[0].rstrip()
