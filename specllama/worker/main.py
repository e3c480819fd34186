"""The engine process: `python -m specllama.worker.main`, messages in on stdin, out on stdout.

The main thread decodes. One thread reads stdin and ends the process soon after it closes, so that no front,
however it dies, leaves a process of gigabytes; another one sends a heartbeat every half second.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, NoReturn

from specllama.client import protocol
from specllama.errors import EngineError, SpecllamaError, UsageError

if TYPE_CHECKING:
    from specllama.worker.engine_core import EngineCore

_BEAT_SECONDS = 0.5
_LEAVE_SECONDS = 0.5  # for storing what was learnt, once the front is gone


class _Pipes:
    """stdin and stdout as message streams. Whatever else prints to stdout is sent to stderr instead."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[protocol.Message | None] = (
            queue.SimpleQueue()
        )  # None: the front is gone
        self.left = threading.Event()  # what was learnt is stored then
        self.core: EngineCore | None = None
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: protocol.Message) -> None:
        data = protocol.encode(message)
        with self._lock:
            try:
                while data:
                    data = data[self._out.write(data) or 0 :]
            except OSError:
                os._exit(0)  # the front is gone

    def read(self) -> None:
        with os.fdopen(0, "rb", closefd=False) as pipe:  # not sys.stdin, whose lock a dying interpreter wants
            for line in pipe:
                try:
                    self.inbox.put(protocol.decode(line))
                except ValueError as error:
                    refusal = UsageError(f"the request cannot be read: {error}")
                    self.send(protocol.Failed(refusal.to_dict(), protocol.request_id(line)))
        self.inbox.put(None)
        if self.core is not None and self.core.loaded is not None:
            self.left.wait(_LEAVE_SECONDS)
        os._exit(0)


def main() -> None:
    """Serve one front until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides what Ctrl-C means
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold the user's text
    pipes = _Pipes()
    threading.Thread(target=pipes.read, daemon=True).start()
    try:
        _serve(pipes)
    except SpecllamaError as error:
        pipes.send(protocol.Failed(error.to_dict()))
    except Exception as error:  # noqa: BLE001 - the last line of defence; the front shows it
        traceback.print_exc()
        pipes.send(
            protocol.Failed(EngineError(f"{type(error).__name__} in the engine process: {error}").to_dict())
        )
    sys.stderr.flush()
    os._exit(1)


def _serve(pipes: _Pipes) -> None:
    """Handle messages as they come; step the engine while there are none and it has something to do."""
    from specllama.worker.engine_core import EngineCore

    core = pipes.core = EngineCore(pipes.send)
    threading.Thread(target=_beat, args=(pipes, core), daemon=True).start()
    while True:
        try:
            message = pipes.inbox.get(timeout=core.step_due_in)
        except queue.Empty:
            core.step()
            continue
        if message is None:
            core.leave()
            pipes.left.set()
            threading.Event().wait()  # for the end of the process
        elif isinstance(message, protocol.Serve):
            _serve_rpc(message, pipes)
        else:
            core.handle(message)
            if isinstance(message, protocol.Load):
                gc.freeze()  # what stays need not be looked through in mid-answer


def _serve_rpc(message: protocol.Serve, pipes: _Pipes) -> NoReturn:
    """In this thread for the rest of the process's life."""
    from specllama.worker.rpc.serve import serve

    serve(message, pipes.send)


def _beat(pipes: _Pipes, core: EngineCore) -> None:
    while True:
        time.sleep(_BEAT_SECONDS)
        started = core.busy_since
        busy = time.perf_counter() - started if started is not None else 0.0
        pipes.send(protocol.Heartbeat(busy, core.allowed_seconds()))


if __name__ == "__main__":
    main()
