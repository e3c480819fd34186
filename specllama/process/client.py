"""The client that every front talks to: starts the engine process, sends requests, hands out what comes back.

Imports no llama.cpp. The process is a session leader of its own, so that a terminal's Ctrl-C reaches the
front alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import specllama
from specllama.errors import EngineDiedError, SpecllamaError
from specllama.process import messages as m
from specllama.settings import LoadSettings

_GRACE_SECONDS = 2.0  # that the process has to end by itself
_SILENCE_SECONDS = 30.0  # between two messages of a living process; it sends one every half second


class EngineClient:
    """An engine process and the pipes to it; a context manager that ends it.

    log: where the process's stderr goes as well (its last lines are kept for error messages anyhow). Threads
    may share a client. Raises EngineDiedError from any call once the process has ended.
    """

    def __init__(self, log: IO[str] | None = None) -> None:
        self._log, self._ids = log, itertools.count(1)
        self._stderr: deque[str] = deque(maxlen=50)
        self._inboxes: dict[int | None, queue.SimpleQueue[m.Message | SpecllamaError]] = {}
        self._lock = threading.Lock()
        self._dead: SpecllamaError | None = None
        self._closing = threading.Event()
        self._heard: float | None = None  # when the last message came
        self._problem: SpecllamaError | None = None
        self.notices: list[str] = []
        package = str(Path(specllama.__file__).parent.parent)
        path = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "specllama.process.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "GGML_NO_BACKTRACE": "1"},
        )
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._read_stderr, self._read_messages, self._watch)  # joined in this order
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def load(
        self,
        settings: LoadSettings,
        progress: Callable[[str, float], None] | None = None,
        verbose: bool = False,
    ) -> dict[str, Any]:
        """Load the models; what the engine says of them. progress: called with (model, share loaded).

        Raises what the load raises: IntegrityError, IncompatiblePairError, ResourceError, UsageError …
        """
        for message in self._ask(m.Load(settings.to_dict(), verbose), None):
            if isinstance(message, m.Loading) and progress is not None:
                progress(message.model, message.share)
            elif isinstance(message, m.Ready):
                return message.info
        raise EngineDiedError("the engine process did not answer")

    def generate(self, request: m.Generate) -> Iterator[m.Message]:
        """Started, Prefilled …, Tokens (of this generation only), at last Done. Leaving the iterator cancels.

        Raises UsageError and others before the first message, EngineError where decoding fails.
        """
        ended = False
        try:
            for message in self._ask(request, request.id):
                ended = isinstance(message, m.Done)
                yield message
                if ended:
                    return
        finally:
            if not ended and self._dead is None:
                with contextlib.suppress(SpecllamaError):
                    self.send(m.Cancel(request.id))

    def calibrate(self, seconds: float = 1.0) -> dict[str, Any]:
        """Let the idle engine measure what it does not know yet; what it found."""
        for message in self._ask(m.Calibrate(seconds), None):
            if isinstance(message, m.Calibrated):
                return message.found
        return {}

    def next_id(self) -> int:
        """An id for a request, unique in this client."""
        return next(self._ids)

    def send(self, message: m.Message) -> None:
        """Write a message to the process."""
        if self._dead is not None:
            raise self._dead
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(m.encode(message))
                self._process.stdin.flush()
        except OSError:
            self._threads[1].join(timeout=_GRACE_SECONDS)
            raise self._dead or EngineDiedError("the engine process has closed its pipe") from None

    def close(self) -> None:
        """End the process: it exits when its stdin closes, and is killed if it does not."""
        self._closing.set()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(timeout=_GRACE_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _ask(self, message: m.Message, id_: int | None) -> Iterator[m.Message]:
        inbox = self._inboxes[id_] = queue.SimpleQueue()
        try:
            self.send(message)
            while True:
                answer = inbox.get()
                if isinstance(answer, SpecllamaError):
                    raise answer
                yield answer
        finally:
            self._inboxes.pop(id_, None)

    def _read_messages(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._heard = time.monotonic()
                message = m.decode(line)
                if isinstance(message, m.Beat) and message.busy_for > message.allowed:
                    self._kill(
                        f"the engine process hangs: a decode has run for {message.busy_for:.0f} s, "
                        f"{message.allowed:.0f} s would be slow; it was ended"
                    )
                    break
                self._dispatch(message)
        except (ValueError, TypeError) as error:
            self._kill(f"the engine process sent what is no message: {error}")
        self._die()

    def _watch(self) -> None:
        """A process that does not even beat is stopped or deadlocked; waiting for it would last for ever."""
        while not self._closing.wait(1.0) and self._dead is None:
            if self._heard is not None and time.monotonic() - self._heard > _SILENCE_SECONDS:
                self._kill(f"the engine process has said nothing for {_SILENCE_SECONDS:.0f} s; it was ended")
                return

    def _kill(self, why: str) -> None:
        self._problem = self._problem or EngineDiedError(why)
        self._process.kill()

    def _dispatch(self, message: m.Message) -> None:
        if isinstance(message, m.Tokens):
            for item in message.items:
                self._deliver(item[0], m.Tokens([item]))
        elif isinstance(message, m.Notice):
            self.notices.append(message.text)
        elif isinstance(message, m.Failed):
            error = SpecllamaError.from_dict(message.error)
            if message.id is None:
                self._dead = self._dead or (None if None in self._inboxes else error)
            self._deliver(message.id, error)
        elif not isinstance(message, m.Beat):
            self._deliver(getattr(message, "id", None), message)

    def _deliver(self, id_: int | None, message: m.Message | SpecllamaError) -> None:
        inbox = self._inboxes.get(id_)
        if inbox is not None:
            inbox.put(message)

    def _die(self) -> None:
        """Tell everybody who waits that the process has ended, and why."""
        code = self._process.wait()
        self._threads[0].join(timeout=_GRACE_SECONDS)
        closed = EngineDiedError("the engine process was closed") if self._closing.is_set() else None
        self._dead = self._dead or self._problem or closed or EngineDiedError(self._obituary(code))
        for inbox in list(self._inboxes.values()):
            inbox.put(self._dead)

    def _obituary(self, code: int) -> str:
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was ended by {signal.Signals(-code).name}"
                if -code == signal.SIGKILL:
                    how += " (by hand, or the system had no memory left)"
        else:
            how = f"ended with exit code {code}"
        last = next((line for line in reversed(self._stderr) if line.strip()), "")
        return f"the engine process {how}" + (f": {last[:300]}" if last else "")

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            self._stderr.append(line)
            if self._log is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._log.write(line + "\n")
                    self._log.flush()
