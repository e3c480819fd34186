"""Progress on stderr: a bar redrawn on a terminal. A pipe or a file gets none, whatever the command."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from specllama.cli import console, formatting
from specllama.cli.formatting import duration
from specllama.clock import running_time
from specllama.config.load import LoadSettings
from specllama.models import prepare
from specllama.models.progress import DownloadState, Listener
from specllama.models.resolve import Library
from specllama.text.terminal import printable

_BAR = 24  # columns of the bar
_EVERY = 0.1  # seconds between two drawings
_VERBS = {"kernels": "compiling", "vision encoder": "compiling", "source of llama.cpp": "downloading"}


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
        """Show how much of a model is loaded, or of what is compiled for it: that is a line in a log, too."""
        if name in _VERBS and name != self._stage and not console.supports_ansi(sys.stderr):
            self._stage = name
            console.note(f"{_VERBS[name]} the {name}, once for this machine")
        self.show(f"{_VERBS.get(name, 'loading')} the {name}", share, stage=name)

    def clear(self) -> None:
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


class DownloadProgress(Listener):
    """Prints on stderr."""

    def __init__(self) -> None:
        self._progress = Progress(delay=0.0)

    def note(self, text: str) -> None:
        self.clear()
        console.note(text)

    def warning(self, text: str) -> None:
        self.clear()
        console.warning(text)

    def state(self, state: DownloadState) -> None:
        share = state.done / state.total if state.total else 1.0
        unit, factor = ("GB", 1e9) if state.total >= 1e9 else ("MB", 1e6)
        parts = [f"{state.done / factor:.1f} of {state.total / factor:.1f} {unit}"]
        if state.rate:
            parts.append(f"{state.rate / 1e6:.1f} MB/s")
        if state.left is not None:
            parts.append(f"{duration(state.left)} left")
        self._progress.show(f"{state.phase} {state.name.rpartition('/')[2]}", share, ", ".join(parts))

    def clear(self) -> None:
        self._progress.clear()


def library(verify: bool = True, models_dir: str = "") -> Library:
    """The library of models; its downloads are shown on stderr. verify, models_dir: see Library."""
    return Library(DownloadProgress(), verify=verify, models_dir=models_dir)


def prepared(settings: LoadSettings, v: Mapping[str, Any]) -> LoadSettings:
    """The settings with paths, once both models are on disk. v: option values. Raises as `prepare`."""
    models = library(models_dir=v.get("models_dir", ""))
    if settings.pooling is not None:
        return prepare.prepare_embedder(models, settings)
    return prepare.prepare(models, settings, v.get("force", False))
