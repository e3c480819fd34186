"""The engine process, `python -m specllama.worker.main`: reads messages from stdin, writes them to stdout.

The main thread decodes. One thread reads stdin and ends the process soon after it closes, so that the process
and its memory never outlive the front; another thread sends a heartbeat every half second.
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
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from specllama.client import protocol
from specllama.client.tune_messages import Heartbeat, Loading, Serve, Trim
from specllama.clock import running_time
from specllama.errors import EngineError, SpecllamaError, UsageError
from specllama.llama.kernel_build import compiles
from specllama.processor_time import kill, of_tree, processes, tree, wait_while_working

if TYPE_CHECKING:
    from specllama.worker.engine_core import EngineCore

_HEARTBEAT_SECONDS = 0.5
_MESSAGE_SECONDS = 0.05  # of handling messages between two steps
_STORE_SECONDS = 5.0  # of work, to store what was learnt and evaluated, once the front is gone


class _Sized(NamedTuple):
    """A message, and the bytes that it had in the pipe."""

    message: protocol.Message
    size: int


class _Pipes:
    """stdin and stdout as message streams; all other output to stdout is redirected to stderr.

    blocked: whether the main thread waits for the front to read.
    inbox: messages with their bytes, functions for the main thread to call, None when the front is gone.
    stored: set when what was learnt is stored.
    """

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[_Sized | Callable[[], None] | None] = queue.SimpleQueue()
        self.stored = threading.Event()
        self.blocked = False
        self.core: EngineCore | None = None
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: protocol.Message) -> None:
        data, is_main = protocol.encode(message), threading.current_thread() is threading.main_thread()
        if not is_main:
            self._write(data)
            return
        began, self.blocked = running_time(), True
        self._write(data)
        self.blocked = False
        if self.core is not None and self.core.busy_since is not None:
            self.core.busy_since += running_time() - began  # the front was stopped, or slow: this is no hang

    def _write(self, data: bytes) -> None:
        with self._lock:
            try:
                while data:
                    data = data[self._out.write(data) or 0 :]
            except OSError:
                _end()  # the front is gone

    def read(self) -> None:
        # Not sys.stdin: the interpreter takes its lock on exit.
        with os.fdopen(0, "rb", closefd=False) as pipe:
            for line in pipe:
                try:
                    self.inbox.put(_Sized(protocol.decode(line), len(line)))
                except ValueError as error:
                    refusal = UsageError(f"the request cannot be read: {error}")
                    self.send(protocol.Failed(refusal.to_dict(), protocol.request_id(line)))
        self.inbox.put(None)
        if self.core is not None and self.core.loaded is not None:
            wait_while_working(self.stored.wait, of_tree(os.getpid()), _STORE_SECONDS)
        _end()


def _end() -> None:
    """End this process, and before it the compilers that it runs, whose files the main thread removes."""
    while not compiles.acquire(timeout=0.1):
        kill(tree(os.getpid(), processes())[1:])
    os._exit(0)


def main() -> None:
    """Serve one front until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides what Ctrl-C means
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain the user's text
    pipes = _Pipes()
    threading.Thread(target=pipes.read, daemon=True).start()
    try:
        _serve(pipes)
    except SpecllamaError as error:
        pipes.send(protocol.Failed(error.to_dict()))
    except Exception as error:  # noqa: BLE001 - whatever it is, the front shows it
        import traceback

        traceback.print_exc()
        pipes.send(
            protocol.Failed(EngineError(f"{type(error).__name__} in the engine process: {error}").to_dict())
        )
    sys.stderr.flush()
    os._exit(1)


def _serve(pipes: _Pipes) -> None:
    """Handle messages as they arrive; between them step the engine while it has work to do."""
    compile_kernels(pipes.send)
    gc.disable()  # what is imported stays
    from specllama.worker.engine_core import EngineCore  # loads llama.cpp
    from specllama.worker.intake import refusing

    gc.freeze()
    gc.enable()
    core = pipes.core = EngineCore(pipes.send, post=pipes.inbox.put)
    threading.Thread(target=_send_heartbeats, args=(pipes, core), daemon=True).start()
    step_at = 0.0
    while True:
        try:
            due = core.step_due_in
            if due == 0.0 and core.decoding and running_time() > step_at:
                raise queue.Empty
            message = pipes.inbox.get(timeout=due)
        except queue.Empty:
            core.step()
            step_at = running_time() + _MESSAGE_SECONDS
            continue
        if message is None:
            core.shut_down()
            pipes.stored.set()
            threading.Event().wait()  # until the process ends
        elif not isinstance(message, _Sized):
            core.run(message)
        elif isinstance(message.message, Serve):
            from specllama.worker.rpc import serve

            serve(message.message, pipes.send)  # until the process ends
        elif isinstance(message.message, Trim):
            from specllama.worker.trim import trim

            with refusing(pipes.send, message.message):
                pipes.send(trim(message.message, pipes.send))
        else:
            core.handle(message.message, message.size)
            if isinstance(message.message, protocol.Load):
                gc.freeze()  # the loaded objects stay: no collection needs to scan them


def compile_kernels(send: protocol.Send) -> None:
    """Compile specllama's kernels once, and report it: the front ends a process that sends nothing."""
    from specllama.llama import kernels

    if not kernels.must_compile():
        return
    share, done = [0.0], threading.Event()

    def report() -> None:
        while not done.wait(_HEARTBEAT_SECONDS):
            send(Loading("kernels", share[0]))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        kernels.compile_into_cache(lambda value: share.__setitem__(0, value))
    finally:
        done.set()
        thread.join()


def _send_heartbeats(pipes: _Pipes, core: EngineCore) -> None:
    while True:
        time.sleep(_HEARTBEAT_SECONDS)
        busy_for, allowed = core.hang()
        pipes.send(Heartbeat(0.0 if pipes.blocked else busy_for, allowed))


if __name__ == "__main__":
    main()
