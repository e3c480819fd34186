"""The engine process of one LLM: loaded once, ended once. Knows no prompts and no outputs."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings
from specllama.config.options import as_argument
from specllama.errors import EngineError, SpecllamaError, spelled
from specllama.models import prepare
from specllama.models.progress import DownloadState
from specllama.models.resolve import Library

Progress = Callable[[str, float], None]
_IDLE_SECONDS, _POLL_SECONDS = 1.0, 0.1  # without a call, before that is used for measuring
_SLICE_SECONDS = 0.25  # of measuring, which a call may have to wait for
_log = logging.getLogger("specllama")


class EngineSession:
    """Finds models that are on disk when it is made and downloads the others in `load`, whichever thread
    calls that; may be closed at any time. Notes for the user go to the logger "specllama".

    settings: with models by name. Raises UsageError, NotFoundError, ConfigError.

    info: what the engine has loaded; empty before that.
    """

    def __init__(self, settings: LoadSettings, log: IO[str] | None, progress: Progress | None) -> None:
        try:
            found = prepare.prepared_here(Library(_Logged(None)), settings)
        except SpecllamaError as error:
            raise error.spelled(as_argument) from None
        self.info: Mapping[str, Any] = {}
        self.settings, self._complete = found or settings, found is not None
        self._engine_log, self._progress = log, progress
        self._client: EngineClient | None = None
        self._closed = False
        self._measuring, self._calls = threading.Lock(), 0

    def load(self) -> None:
        """Download what is not on disk, start the process and load the models; the process ends again where
        that fails. Raises what prepare.prepared and EngineClient.load raise.
        """
        if not self._complete:
            self._download()
        client = self._client = EngineClient(self._engine_log, _log.warning, spelling=as_argument)
        try:
            self.client()  # it may have been closed meanwhile
            self.info = client.load(self.settings, self._progress, self._engine_log is not None)
        except SpecllamaError as error:
            client.close()
            raise error.spelled(as_argument) from None
        except BaseException:
            client.close()
            raise
        for note in self.info["notes"]:
            _log_note(note)

    def client(self) -> EngineClient:
        """The running process, for a call. Raises EngineError after a close."""
        self._calls += 1
        if self._closed or self._client is None:
            raise EngineError("this LLM is closed", "make a new one")
        return self._client

    def rest(self, missing: bool) -> None:
        """After an answer: once nobody has called for a while, let the engine measure in the background what
        it does not know yet. missing: whether the answer said that there is something.
        """
        if missing and self.settings.calibrate and self._measuring.acquire(blocking=False):
            threading.Thread(target=self._measure, name="specllama_measure", daemon=True).start()

    def _download(self) -> None:
        library = Library(_Logged(self._progress))
        try:
            self.settings = prepare.prepared(library, self.settings)
        except SpecllamaError as error:
            raise error.spelled(as_argument) from None
        self._complete = True

    def _measure(self) -> None:
        try:
            calls, quiet, missing = self._calls, 0.0, True
            while quiet < _IDLE_SECONDS and not self._closed:
                time.sleep(_POLL_SECONDS)
                calls, quiet = self._calls, quiet + _POLL_SECONDS if calls == self._calls else 0.0
            with contextlib.suppress(SpecllamaError):
                while missing and calls == self._calls and self._client is not None:
                    missing = bool(self._client.calibrate(_SLICE_SECONDS).get("missing"))
        finally:
            self._measuring.release()

    def shut(self) -> None:
        """Let the process end, without waiting for it; for finalizers."""
        self._closed = True
        if self._client is not None:
            self._client.shut()

    def close(self) -> None:
        """End the process; again does nothing."""
        self._closed = True
        if self._client is not None:
            self._client.close()


class _Logged:
    """A listener of a search and a download (models/progress.py): notes go to the logger "specllama", the
    share that is downloaded to `progress`.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def note(self, text: str) -> None:
        _log_note(spelled(text, as_argument))

    def state(self, state: DownloadState) -> None:
        if self._progress is not None:
            self._progress("download", state.done / state.total if state.total else 1.0)

    def clear(self) -> None:
        pass


def _log_note(note: str) -> None:
    serious = note.startswith("warning: ")
    _log.log(logging.WARNING if serious else logging.INFO, note.removeprefix("warning: "))
