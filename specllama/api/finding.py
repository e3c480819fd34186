"""Models by name, as LLM and AsyncLLM are given them: what is on disk is found at once, the rest when it is
loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from specllama.config.load import LoadSettings
from specllama.models.prepare import Paths, here, ready
from specllama.models.progress import DownloadState
from specllama.models.resolve import Library

_log = logging.getLogger("specllama")
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A target and a draft by name. draft: "auto", "none", or a name."""

    target: str
    draft: str

    def settings(self, settings: LoadSettings) -> LoadSettings | None:
        """With paths for the names, None where something has to be downloaded.

        Raises UsageError, NotFoundError, ConfigError.
        """
        library = Library(Logged(None))
        found = here(library, self.target, self.draft)
        return None if found is None else with_paths(settings, found)

    def downloaded(self, settings: LoadSettings, progress: Progress | None) -> LoadSettings:
        """With paths for the names, once everything is on disk. Raises what models/ready.py raises."""
        library = Library(Logged(progress))
        return with_paths(settings, ready(library, self.target, self.draft))


def with_paths(settings: LoadSettings, paths: Paths) -> LoadSettings:
    """The settings with these paths; no draft where there is no path for it."""
    draft = None
    if settings.draft is not None and paths.draft is not None:
        draft = replace(settings.draft, path=paths.draft)
    return replace(settings, target=replace(settings.target, path=paths.target), draft=draft)


class Logged:
    """A listener of models/listener.py: notes go to the logger "specllama", progress to who asked for it."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def note(self, text: str) -> None:
        serious = text.startswith("warning: ")
        _log.log(logging.WARNING if serious else logging.INFO, text.removeprefix("warning: "))

    def state(self, state: DownloadState) -> None:
        if self._progress is not None:
            self._progress("download", state.done / state.total if state.total else 1.0)

    def clear(self) -> None:
        pass
