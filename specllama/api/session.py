"""The engine process of one LLM: loaded once, ended once. Knows no prompts and no outputs."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from specllama.api.finding import ModelRequest
from specllama.api.words import in_python, translated
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings
from specllama.errors import EngineError, SpecllamaError

Progress = Callable[[str, float], None]
_IDLE_SECONDS, _POLL_SECONDS = 1.0, 0.1  # without a call, before that is used for measuring
_SLICE_SECONDS = 0.25  # of measuring, which a call may have to wait for
_log = logging.getLogger("specllama")


class EngineSession:
    """Loads in `load`, wherever that is called; may be closed at any time. What the user should know goes to
    the logger "specllama".

    info: what the engine says of what it loaded; empty before that.
    """

    def __init__(
        self,
        settings: LoadSettings,
        log: IO[str] | None,
        progress: Progress | None,
        wanted: ModelRequest | None = None,
    ) -> None:
        self.info: Mapping[str, Any] = {}
        self._settings, self._engine_log, self._progress = settings, log, progress
        self._wanted = wanted
        self._client: EngineClient | None = None
        self._closed = False
        self._measuring, self._calls = threading.Lock(), 0

    def load(self) -> None:
        """Download what is wanted, start the process and load the models; it is ended again where that fails.
        Raises what Wanted.downloaded and EngineClient.load raise.
        """
        if self._wanted is not None:
            try:
                self._settings = self._wanted.downloaded(self._settings, self._progress)
            except SpecllamaError as error:
                raise translated(error) from None
            self._wanted = None
        client = self._client = EngineClient(self._engine_log, _log.warning)
        try:
            self.client()  # it may have been closed meanwhile
            info = client.load(self._settings, self._progress, self._engine_log is not None)
        except SpecllamaError as error:
            client.close()
            raise translated(error) from None
        except BaseException:
            client.close()
            raise
        notes = [in_python(note) for note in info["notes"]]
        self.info = {**info, "notes": notes, "reason": in_python(info["reason"])}
        for note in notes:
            serious = note.startswith("warning: ")
            _log.log(logging.WARNING if serious else logging.INFO, note.removeprefix("warning: "))

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
        if missing and self._settings.calibrate and self._measuring.acquire(blocking=False):
            threading.Thread(target=self._measure, name="specllama_measure", daemon=True).start()

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
