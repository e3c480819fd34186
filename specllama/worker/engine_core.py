"""The engine process without its pipes: loads a pair, serves requests, and sends events as messages.

Runs in the worker's main thread, or in a test. Knows nothing about how messages are transported. What it
does once a pair is loaded is in loaded_engine.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from specllama.client import protocol
from specllama.clock import running_time
from specllama.config.store import Store
from specllama.core.engine import Engine
from specllama.errors import EngineError
from specllama.llama.library import show_log
from specllama.processor_time import WorkMeter, of_thread
from specllama.worker.intake import refusing
from specllama.worker.load_info import inspect_build
from specllama.worker.loaded_engine import LoadedEngine, open_engine
from specllama.worker.loader import Loaded

_LEAST_SECONDS = 30.0  # of work that a step may take


class EngineCore:
    """An engine before and after its pair is loaded.

    send: sends a message to the front, in any thread. post: makes the thread that calls `handle` and `step`
    call a function; large requests are then prepared in another thread. None: everything happens in this one.
    loaded_engine: None before a Load. busy_since: running_time at the start of the current work, None without
    any or during a load.
    """

    def __init__(
        self,
        send: Callable[[protocol.Message], None],
        store: Store | None = None,
        post: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.send, self.store = send, store if store is not None else Store()
        self._post = post
        self.loaded_engine: LoadedEngine | None = None
        self.busy_since: float | None = None
        self._thread = threading.current_thread()  # which calls `handle` and `step`
        self._metered: tuple[float, WorkMeter] | None = None  # the work of that start

    @property
    def loaded(self) -> Loaded | None:
        """What was loaded."""
        return self.loaded_engine.loaded if self.loaded_engine is not None else None

    @property
    def engine(self) -> Engine | None:
        """The engine of what was loaded."""
        return self.loaded_engine.engine if self.loaded_engine is not None else None

    def handle(self, message: protocol.Message, size: int = 0) -> None:
        """Handle a message from the front. size: its bytes. Errors are sent as Failed, not raised."""
        with refusing(self.send, message):
            if isinstance(message, protocol.Load):  # reports its progress, and has no time limit
                show_log(message.verbose)
                self._load(message)
            else:
                with self._working():
                    self._handle(message, size)

    def _handle(self, message: protocol.Message, size: int) -> None:
        if isinstance(message, protocol.Inspect):
            self.send(protocol.Inspected(inspect_build()))
        elif self.loaded_engine is not None:
            self.loaded_engine.handle(message, size)
        elif isinstance(message, protocol.Calibrate):
            self.send(protocol.Calibrated(None, None, False))
        elif not isinstance(message, protocol.Cancel):
            raise EngineError("no model is loaded")

    def _load(self, message: protocol.Load) -> None:
        if self.loaded_engine is not None:
            raise EngineError("this engine process has loaded its models already")
        self.loaded_engine, ready = open_engine(message, self.send, self.store, self._post)
        self.send(ready)

    def run(self, posted: Callable[[], None]) -> None:
        """Call a function that was posted."""
        with self._working():
            posted()

    def step(self) -> None:
        """Step the engine, and send the new tokens of all sequences in one message; if the engine is idle,
        measure for one slice of time.
        """
        if self.loaded_engine is not None:
            with self._working():
                self.loaded_engine.step()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        self.busy_since = running_time()
        try:
            yield
        finally:
            self.busy_since = None

    @property
    def busy(self) -> bool:
        return self.loaded_engine is not None and self.loaded_engine.busy

    @property
    def decoding(self) -> bool:
        """Whether `step` has something to decode."""
        return self.loaded_engine is not None and self.loaded_engine.decoding

    @property
    def step_due_in(self) -> float | None:
        """Seconds until `step` has work to do if no message arrives; None for never."""
        return self.loaded_engine.step_due_in if self.loaded_engine is not None else None

    def hang(self) -> tuple[float, float]:
        """How long the current work has run and how long it may, in seconds (WorkMeter.seconds): of this
        thread, or of the preparer's if that is nearer to its end. Called every half second by another thread,
        from whose first call on it counts.
        """
        started = self.busy_since
        if started is None:
            self._metered = None
        elif self._metered is None or self._metered[0] != started:
            self._metered = started, WorkMeter(of_thread(self._thread))
        own = (self._metered[1].seconds if self._metered is not None else 0.0, self.allowed_seconds())
        other = self.loaded_engine.intake.hang if self.loaded_engine is not None else None
        return max(own, other, key=lambda hang: hang[0] / hang[1]) if other is not None else own

    def allowed_seconds(self) -> float:
        """Seconds after which a step counts as hung: 30 s plus ten times its predicted duration."""
        predicted = self.loaded_engine.predicted_seconds if self.loaded_engine is not None else 0.0
        return _LEAST_SECONDS + 10.0 * predicted

    def shut_down(self) -> None:
        """Store what was learnt and the prompts that are worth it, when the front is gone."""
        if self.loaded_engine is not None:
            self.loaded_engine.shut_down()
