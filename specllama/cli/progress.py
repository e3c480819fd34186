"""Progress on stderr: a bar redrawn on a terminal. A pipe or a file gets none, whatever the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from specllama.cli import console
from specllama.cli.formatting import columns, duration
from specllama.clock import running_time
from specllama.config.build import placed
from specllama.config.load import LoadSettings
from specllama.models import prepare
from specllama.models.progress import DownloadState, Listener
from specllama.models.resolve import Library
from specllama.text.terminal import printable

_BAR = 24  # columns of the bar
_EVERY = 0.1  # seconds between two drawings
_VERBS = {"kernels": "compiling", "vision encoder": "compiling", "source of llama.cpp": "downloading"}


class Progress(AbstractContextManager["Progress"]):
    """The progress of one thing, redrawn on a terminal.

    delay: seconds before anything is shown. A context manager that clears the line at the end.
    """

    def __init__(self, delay: float = 2.0) -> None:
        self._started, self._last, self._delay = running_time(), 0.0, delay
        self._is_drawn, self._stage = False, ""

    def __exit__(self, *_: object) -> None:
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


def _drawn(label: str, share: float, detail: str) -> str:
    """One line with label, bar, percentage and detail; without room for it there is no bar."""
    from rich.cells import cell_len, set_cell_size

    width, figures = (columns(sys.stderr) or 80) - 1, f"{share:4.0%} {detail}".rstrip()
    if cell_len(label) + _BAR + len(figures) + 2 > width:
        text = f"{label[: max(1, width - 5)]} {figures}"
        return set_cell_size(text, min(width, cell_len(text)))
    line, n = "━" if "utf" in (sys.stderr.encoding or "").lower() else "-", round(_BAR * min(1.0, share))
    bar = f"{line * n:{_BAR}}"
    if "NO_COLOR" not in os.environ:
        bar = console.styled(line * n, "32") + console.styled(line * (_BAR - n), "90")
    return f"{label} {bar} {figures}"


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
    with placed(v):
        if settings.pooling is not None:
            return prepare.prepare_embedder(models, settings)
        return prepare.prepare(models, settings, v.get("force", False))
