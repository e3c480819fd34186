"""The engine process of one LLM: started once, ended once. Knows no prompts and no outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import IO, Any

from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.config.load import LoadSettings
from specllama.config.options import as_argument
from specllama.errors import EngineError, SpecllamaError, with_option_names
from specllama.models import prepare
from specllama.models.progress import DownloadState
from specllama.models.resolve import Library

Progress = Callable[[str, float], None]
_log = logging.getLogger("specllama")


class EngineSession:
    """Finds models on disk at construction; `load` downloads the others. Any thread may call `load`, and
    close at any time. Notes for the user go to the logger "specllama".

    settings: models may be names. info: what the engine has loaded; empty before that. Raises UsageError,
    NotFoundError, ConfigError.
    """

    def __init__(self, settings: LoadSettings, log: IO[str] | None, progress: Progress | None) -> None:
        try:
            on_disk = prepare.prepare_if_on_disk(Library(_Logged(None)), settings)
        except SpecllamaError as error:
            raise error.with_option_names(as_argument) from None
        self.info: Mapping[str, Any] = {}
        self._loaded: LoadInfo | None = None
        self.settings, self._complete = on_disk or settings, on_disk is not None
        self._engine_log, self._progress = log, progress
        self._client: EngineClient | None = None
        self._closed = False

    def load(self) -> None:
        """Download models that are not on disk, start the process and load them; end it again if that fails.

        Raises what prepare.prepare and EngineClient.load raise.
        """
        if not self._complete:
            self._download()
        client = self._client = EngineClient(self._engine_log, _log.warning, option_names=as_argument)
        try:
            self.client()  # it may have been closed meanwhile
            info = client.load(
                self.settings, self._progress, self._engine_log is not None, measure_when_idle=True
            )
        except SpecllamaError as error:
            client.close()
            raise error.with_option_names(as_argument) from None
        except BaseException:
            client.close()
            raise
        self._loaded = info
        self.info = info.to_dict()
        for note in info.notes:
            _log.log(logging.WARNING if note.severity == "warning" else logging.INFO, "%s", note.message)

    def answer_reader(self, tools: Tools | None) -> CallReader | None:
        """See LoadInfo.answer_reader; of the loaded model."""
        assert self._loaded is not None
        return self._loaded.answer_reader(tools)

    def client(self) -> EngineClient:
        """The client of the running process, for a call. Raises EngineError after a close."""
        if self._closed or self._client is None:
            raise EngineError("this LLM is closed", "make a new one")
        return self._client

    def _download(self) -> None:
        library = Library(_Logged(self._progress))
        try:
            self.settings = prepare.prepare(library, self.settings)
        except SpecllamaError as error:
            raise error.with_option_names(as_argument) from None
        self._complete = True

    def shut(self) -> None:
        """End the process without waiting for it; for finalizers."""
        self._closed = True
        if self._client is not None:
            self._client.shut()

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._closed = True
        if self._client is not None:
            self._client.close()


class _Logged:
    """A listener (models/progress.py): notes go to the logger "specllama", shares to `progress`."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def note(self, text: str) -> None:
        _log.info("%s", with_option_names(text, as_argument))

    def warning(self, text: str) -> None:
        _log.warning("%s", with_option_names(text, as_argument))

    def state(self, state: DownloadState) -> None:
        if self._progress is not None:
            self._progress("download", state.done / state.total if state.total else 1.0)

    def clear(self) -> None:
        pass
