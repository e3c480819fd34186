"""Downloads of known models requested by clients, one at a time, each in a thread. Knows no HTTP.

Only models of the catalogue can be downloaded: a client chooses a name, never an address.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from specllama.errors import SpecllamaError, UsageError
from specllama.models.catalogue import CatalogueModel
from specllama.models.names import DEMO
from specllama.models.progress import DownloadState, Listener
from specllama.models.resolve import Library
from specllama.server.supervisor import Say


class PullStoppedError(SpecllamaError):
    """A client has stopped the download."""


@dataclass(frozen=True, slots=True)
class PullState:
    """Progress of a download. done, total: bytes, 0 until known. error: why it ended without the model, ""
    otherwise. running: whether it continues.
    """

    done: int = 0
    total: int = 0
    error: str = ""
    running: bool = True


class Pulls:
    """environ: determines the model directories and the hub. say: gets lines for the operator."""

    def __init__(self, environ: Mapping[str, str], say: Say) -> None:
        self._environ, self._say = environ, say
        self._lock = threading.Lock()
        self._states: dict[str, PullState] = {}  # by the model's id
        self._stopped = set[str]()

    def of(self, model: CatalogueModel) -> PullState | None:
        return self._states.get(model.id)

    def start(self, model: CatalogueModel) -> None:
        """Start the download of a model unless it is running. Raises UsageError during another download."""
        with self._lock:
            running = [id_ for id_, state in self._states.items() if state.running]
            if model.id in running:
                return
            if running:
                raise UsageError(f"{running[0]} is being downloaded, one model at a time")
            self._states[model.id] = PullState()
            self._stopped.discard(model.id)
        # A daemon: what has arrived is kept, and a later download resumes it.
        threading.Thread(target=self._run, args=(model,), daemon=True).start()

    def stop(self, model: CatalogueModel) -> None:
        self._stopped.add(model.id)

    def _run(self, model: CatalogueModel) -> None:
        self._say(f"downloading {model.id}")
        try:
            self._download(model)
        except PullStoppedError as error:
            self._end(model, error.message)
        except SpecllamaError as error:
            self._say(f"{model.id}: {error.message}")
            self._end(model, error.message)
        except Exception as error:  # noqa: BLE001 - whatever it is, another download may begin
            self._say(f"{model.id}: unexpected: {type(error).__name__}: {error}")
            self._end(model, "the download failed unexpectedly; the server's log says why")
        else:
            self._say(f"{model.id} is on this disk")
            self._end(model, "")

    def _download(self, model: CatalogueModel) -> None:
        library = Library(_Progress(self, model), self._environ)
        if model.pull == DEMO:
            from specllama.models.demo import DemoStore, fetch

            fetch(DemoStore(self._environ), library.listener)
            return
        from specllama.models.prepare import prepare_models

        prepare_models(library, [library.on_hub(library.parse(model.pull, "model"))], pair=False)

    def _end(self, model: CatalogueModel, error: str) -> None:
        with self._lock:
            self._states[model.id] = replace(self._states[model.id], error=error, running=False)

    def advance(self, model: CatalogueModel, state: DownloadState) -> None:
        """Record the progress of a download. Raises PullStoppedError."""
        if model.id in self._stopped:
            raise PullStoppedError("the download was stopped; what has arrived is kept")
        with self._lock:
            self._states[model.id] = PullState(state.done, state.total)


class _Progress(Listener):
    """Forwards the progress of a model's download."""

    def __init__(self, pulls: Pulls, model: CatalogueModel) -> None:
        self._pulls, self._model = pulls, model

    def state(self, state: DownloadState) -> None:
        self._pulls.advance(self._model, state)
