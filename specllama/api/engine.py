"""The engine process of one LLM: loaded once, ended once. Knows no prompts and no outputs."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from specllama.api.words import in_python, translated
from specllama.errors import EngineError, SpecllamaError
from specllama.process.client import EngineClient
from specllama.settings import LoadSettings

Progress = Callable[[str, float], None]
_CALIBRATE_SECONDS = 1.0
_log = logging.getLogger("specllama")


class Engine:
    """Loads in `load`, wherever that is called; may be closed at any time. What the user should know goes to
    the logger "specllama".

    info: what the engine says of what it loaded; empty before that.
    """

    def __init__(self, settings: LoadSettings, log: IO[str] | None, progress: Progress | None) -> None:
        self.info: Mapping[str, Any] = {}
        self._settings, self._engine_log, self._progress = settings, log, progress
        self._client: EngineClient | None = None
        self._closed = False
        self._measuring, self._measured = threading.Lock(), not settings.calibrate

    def load(self) -> None:
        """Start the process and load the models; it is ended again where that fails. Raises what
        EngineClient.load raises.
        """
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
        """The running process. Raises EngineError after a close."""
        if self._closed or self._client is None:
            raise EngineError("this LLM is closed", "make a new one")
        return self._client

    def rest(self, stored_t1: float | None) -> None:
        """After an answer: let the engine measure for a second, in the background and if it is idle, what it
        does not know yet. stored_t1: what the answer said of that.
        """
        if stored_t1 is not None or self._measured or not self._measuring.acquire(blocking=False):
            return
        threading.Thread(target=self._measure, name="specllama_measure", daemon=True).start()

    def _measure(self) -> None:
        try:
            with contextlib.suppress(SpecllamaError):
                self._measured = bool(self.client().calibrate(_CALIBRATE_SECONDS))
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
