"""Finding and downloading models by name, with notes and one progress line for all files on stderr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.cli import console
from specllama.cli.formatting import duration
from specllama.cli.progress import Progress
from specllama.config.load import LoadSettings
from specllama.models import prepare
from specllama.models.progress import DownloadState
from specllama.models.resolve import Library


class DownloadProgress:
    """A listener of models/progress.py that prints on stderr."""

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
        parts = [_amount(state.done, state.total)]
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
    """The settings with paths instead of names, after both models are on disk. v: option values by name.
    Raises what prepare raises.
    """
    return prepare.prepare(library(models_dir=v.get("models_dir", "")), settings, v.get("force", False))


def _amount(done: int, total: int) -> str:
    unit, factor = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
    return f"{done / factor:.1f} of {total / factor:.1f} {unit}"
