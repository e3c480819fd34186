"""What is seen of a search and a download: notes, and one line for all files with rate and time left."""

from __future__ import annotations

from specllama.cli import console
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
        detail = f"{_amount(state.done, state.total)}"
        if state.rate:
            detail += f", {state.rate / 1e6:.1f} MB/s"
        if state.left is not None:
            detail += f", {duration(state.left)} left"
        self._progress.show(f"{state.phase} {state.name.rpartition('/')[2]}", share, detail)

    def clear(self) -> None:
        self._progress.clear()


def library() -> Library:
    """All models that can be named, with what happens to them shown on stderr."""
    return Library(DownloadProgress())


def prepared(settings: LoadSettings, force: bool = False) -> LoadSettings:
    """The settings with paths instead of names, once both models are on disk. Raises what prepare raises."""
    return prepare.prepared(library(), settings, force)


def duration(seconds: float) -> str:
    """Seconds for people."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _amount(done: int, total: int) -> str:
    unit, size = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
    return f"{done / size:.1f} of {total / size:.1f} {unit}"
