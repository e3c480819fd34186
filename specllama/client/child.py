"""The engine process as seen by its parent: starts it, serves its three pipes, and finds out why it ended.

The process is the leader of a session of its own, so that a terminal's Ctrl-C reaches only the front.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING

from specllama.client import protocol
from specllama.client.tune_messages import Heartbeat
from specllama.clock import ended, running_time, wait_until
from specllama.errors import EngineDiedError, EngineError, SpecllamaError
from specllama.processor_time import WorkMeter, exits, of_tree
from specllama.python_command import engine_process

if TYPE_CHECKING:
    import asyncio

# Cuts a stream of bytes into lines.


MAX_BYTES = 64 * 1024 * 1024  # of a line; the longest that the engine sends is the load's, with the template


class LineTooLongError(ValueError):
    """A line has more bytes than MAX_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"a line of more than {MAX_BYTES >> 20} MB")


class LineBuffer:
    """The bytes of a line that is not complete yet. The work is linear in the bytes, however they arrive."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, without their ends. Raises LineTooLongError."""
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > MAX_BYTES:
            raise LineTooLongError
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts, self._size = [rest[-1]], len(rest[-1])
        return lines


_GRACE_SECONDS = 6.0  # of work, for the process to store what it has and exit, before it is killed
_READ_BYTES = 16384  # at once; in an event loop, others get their turn in between
_SILENCE_SECONDS = 30.0  # without a byte, after which it is killed; it sends a message every half second
_LATE_SECONDS = 1.5  # without one, from which on it is watched whether the process works
_BAD_BUILD = (
    "if that happens every time and at once, llama.cpp was compiled for another processor or miscompiled: "
    "compile it here, with specllama's installation (docs/install.md)"
)
_LOST_FILE = (
    "a part of a file that it reads from the disk is gone: the model was overwritten or cut while it ran, or "
    "its disk failed; specllama models verify checks downloads; load it again when the file is whole"
)
WITHOUT_KERNELS = {"SPECLLAMA_KERNELS": "off"}
_CHILDREN: weakref.WeakSet[EngineProcess] = weakref.WeakSet()  # to be cut off in a forked child


class EngineProcess:
    """A running engine process.

    on_message: called with every message except heartbeats; on_end: called once when the process has ended
    and `dead` is set. Both are called in the reading thread (messages in the loop, if `start` has got one)
    and must not raise; nothing is read before `start`. log: receives the process's stderr too; the last lines
    are kept for error messages in any case. environ: variables to set. Raises EngineError if the process
    cannot be started.
    """

    def __init__(
        self,
        on_message: Callable[[protocol.Message], None],
        on_end: Callable[[], None],
        log: IO[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._on_message, self._on_end, self._log = on_message, on_end, log
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stderr: deque[str] = deque(maxlen=50)
        self._closing, self._ended = False, threading.Event()
        self._dead: SpecllamaError | None = None
        self._kill_reason: SpecllamaError | None = None
        self._last_bytes: float | None = None  # by running_time
        self._loop_done: threading.Event | None = None  # set when the loop has read all; None: a thread reads
        self._lines = LineBuffer()
        self.hang_hint = ""  # of the error for a hanging process
        try:
            self._process = engine_process(environ or {})
        except OSError as error:
            raise EngineError(f"the engine process cannot be started: {error}") from None
        self.pid, self._parent = self._process.pid, os.getpid()
        _CHILDREN.add(self)
        self._threads = [
            threading.Thread(target=target, name=f"specllama{target.__name__}", daemon=True)
            for target in (self._read_stderr, self._read_messages, self._watch, self._write)
        ]  # joined in this order

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start to read and write. loop: the running event loop, in which messages are read instead of in a
        thread, which would wait for the interpreter lock while the loop is busy: milliseconds for a message.
        """
        if loop is not None:
            pipe = self._process.stdout
            assert pipe is not None
            with contextlib.suppress(NotImplementedError):  # the loop cannot watch pipes
                loop.add_reader(pipe.fileno(), self._readable, loop, pipe.fileno())
                self._loop_done = threading.Event()
        for thread in self._threads:
            thread.start()

    @property
    def dead(self) -> SpecllamaError | None:
        """Why it has ended, None while it runs; a new exception each time, since these keep tracebacks."""
        return self._dead and SpecllamaError.from_dict(self._dead.to_dict())

    def wait(self) -> SpecllamaError:
        """Wait until the process has ended. Returns the reason."""
        self._ended.wait()
        return self.dead or EngineDiedError("the engine process ended")

    @property
    def silent_for(self) -> float:
        """Seconds since something arrived from it; infinite before that."""
        return math.inf if self._last_bytes is None else running_time() - self._last_bytes

    def set_reason(self, error: SpecllamaError) -> None:
        """Report this error, from the process's last message, as the reason for its end."""
        self._dead = self._dead or error

    def write(self, data: bytes) -> None:
        """Queue a line for the process, without waiting. Raises `dead` once the process has ended."""
        if error := self.dead:
            raise error
        self._outbox.put(data)

    def shut(self) -> None:
        """Let the process exit, without waiting for it; safe in finalizers, which may run at any point."""
        self._closing = True
        self._outbox.put(None)

    def close(self) -> None:
        """End the process: close its stdin, on which it exits, and kill it if it does not."""
        self.shut()
        if self._parent != os.getpid():
            return
        if not exits(self._process, _GRACE_SECONDS):
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():
                wait_until(ended(thread), _GRACE_SECONDS)

    def kill(self, reason: SpecllamaError) -> None:
        self.set_reason(reason)
        self._process.kill()

    def _write(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as pipe:
            while (data := self._outbox.get()) is not None:
                pipe.write(data)
                pipe.flush()

    def _read_messages(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            try:
                if self._loop_done is not None:
                    self._loop_done.wait()
                else:
                    while self._receive(os.read(pipe.fileno(), _READ_BYTES)):
                        pass
            finally:
                self._handle_end()

    def _readable(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        """Called in the loop when the pipe has data or is closed."""
        more = False
        try:
            more = self._receive(os.read(fd, _READ_BYTES))
        finally:
            if not more:
                assert self._loop_done is not None
                loop.remove_reader(fd)
                self._loop_done.set()

    def _receive(self, data: bytes) -> bool:
        """Dispatch what these bytes complete; False at the end of the pipe, or if that killed the process."""
        self._last_bytes = running_time()
        try:
            for line in self._lines.add(data):
                message = protocol.decode(line)
                if not isinstance(message, Heartbeat):
                    self._on_message(message)
                elif message.busy_for > message.allowed:
                    self._kill(
                        "the engine process hangs: a step has worked, or stood still, for "
                        f"{message.busy_for:.0f} s, more than the {message.allowed:.0f} s allowed; "
                        "it was ended"
                    )
                    return False
        except LineTooLongError as error:
            self._kill(f"the engine process sent {error}; it was ended")
            return False
        except (ValueError, TypeError) as error:
            self._kill("the engine process sent an invalid message", str(error))
            return False
        except BaseException:
            self._kill("a message of the engine process could not be delivered")
            raise
        return data != b""

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            for raw in pipe:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                self._stderr.append(line)
                if self._log is not None:
                    with contextlib.suppress(OSError, ValueError):
                        self._log.write(line + "\n")
                        self._log.flush()

    def _watch(self) -> None:
        """Kill a process that sends no heartbeats: it is stopped or deadlocked, or works on and on. One that
        other programs keep from working goes on, and time in which this process was paused does not count.
        """
        meter: WorkMeter | None = None
        while not self._ended.wait(1.0):
            if self._last_bytes is None or self.silent_for < _LATE_SECONDS:
                meter = None
                continue
            meter = meter or WorkMeter(of_tree(self.pid))
            over = meter.over(max(0.0, _SILENCE_SECONDS - _LATE_SECONDS))
            if over and self.silent_for > _SILENCE_SECONDS:
                self._kill(
                    f"the engine process has not responded for {self.silent_for:.0f} s, in which it {over}; "
                    "it was ended"
                )
                return

    def _kill(self, reason: str, cause: str = "") -> None:
        hint = "\n".join(filter(None, [cause, self.hang_hint]))
        self._kill_reason = self._kill_reason or EngineDiedError(reason, hint)
        self._process.kill()

    def _handle_end(self) -> None:
        code = self._process.wait()
        wait_until(ended(self._threads[0]), _GRACE_SECONDS)
        closed = EngineDiedError("the engine process was closed") if self._closing else None
        try:
            self._dead = self._dead or self._kill_reason or closed or self._exit_error(code)
        finally:  # whatever happens, everybody who waits gets an error
            self._dead = self._dead or EngineDiedError("the engine process ended")
            self._ended.set()
            self._outbox.put(None)
            self._on_end()

    def _exit_error(self, code: int) -> EngineDiedError:
        """The exit code in words. The last line of stderr is part of the hint: it may quote a user's text or
        files, and servers show only messages to their clients.
        """
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if -code == signal.SIGKILL:
            how += " (by hand, or the system was out of memory)"
        last = next((line.strip() for line in reversed(self._stderr.copy()) if line.strip()), "")
        hints = [
            f"its last line was: {last[:300]}" if last else "",
            _BAD_BUILD if -code in (signal.SIGSEGV, signal.SIGILL) else "",
            _LOST_FILE if -code == getattr(signal, "SIGBUS", None) else "",
        ]
        return EngineDiedError(f"the engine process {how}", "\n".join(filter(None, hints)))

    def _cut_off(self) -> None:
        """Close a forked child's copies of the pipes, which would keep the engine alive after the parent."""
        why = "this engine belongs to the process that this one was forked from"
        self._dead = EngineError(why, "make a new one here, or start processes by spawn")
        self._outbox = queue.SimpleQueue()
        null = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(ValueError, OSError):
                if pipe is not None:
                    os.dup2(null, pipe.fileno(), inheritable=False)
        os.close(null)


def _signal_name(number: int) -> str:
    """SIGSEGV, or "signal 34" for one of those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _after_fork() -> None:
    for child in list(_CHILDREN):
        child._cut_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
