"""The engine process as its parent sees it: three pipes, a thread each, and how it ended.

Knows messages and nothing of what they ask for. The process is a session leader of its own, so that a
terminal's Ctrl-C reaches the front alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import specllama
from specllama.client import protocol
from specllama.errors import EngineDiedError, EngineError, SpecllamaError

_GRACE_SECONDS = 2.0  # that the process has to end by itself
_READ_BYTES = 65536
_SILENCE_SECONDS = 30.0  # between two messages of a living process; it sends one every half second
_BAD_BUILD = (
    "if that happens at once and always, llama.cpp was compiled for another processor or by a compiler that "
    "it does not agree with: see the README, Limits"
)
_CHILDREN: weakref.WeakSet[EngineProcess] = weakref.WeakSet()  # for a fork, which none of them survives


class EngineProcess:
    """A running engine process. take: gets its messages but heartbeats; ended: is called once, with why.

    Both are called in the reading thread (see `start` for the former) and must not raise; nothing is read
    before `start`. log: where its stderr goes as well (the last lines are kept for error messages anyhow).
    Raises EngineError where it cannot be started.
    """

    def __init__(
        self, take: Callable[[protocol.Message], None], ended: Callable[[], None], log: IO[str] | None = None
    ) -> None:
        self._take, self._tell, self._log = take, ended, log
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stderr: deque[str] = deque(maxlen=50)
        self._closing, self._ended = False, threading.Event()
        self._dead: SpecllamaError | None = None
        self._problem: SpecllamaError | None = None  # for which it was killed
        self._heard: float | None = None  # when the last message came
        self._read: threading.Event | None = None  # all was, in a loop; None: a thread reads
        self._rest = b""  # of a line, read in a loop
        self.hang_hint = ""  # what to do about a hang
        package = str(Path(specllama.__file__).parent.parent)
        path = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "specllama.worker.main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "GGML_NO_BACKTRACE": "1"},
            )
        except OSError as error:
            raise EngineError(f"the engine process cannot be started: {error}") from None
        self.pid, self._parent = self._process.pid, os.getpid()
        _CHILDREN.add(self)
        self._threads = [
            threading.Thread(target=target, name=f"specllama{target.__name__}", daemon=True)
            for target in (self._read_stderr, self._read_messages, self._watch, self._write)
        ]  # joined in this order

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin to read and write. loop: the running one, where messages are read and taken instead of in a
        thread of their own, which saves a wake-up and a handing over of the interpreter for each.
        """
        if loop is not None:
            pipe = self._process.stdout
            assert pipe is not None
            with contextlib.suppress(NotImplementedError):  # of a loop that cannot watch pipes
                loop.add_reader(pipe.fileno(), self._readable, loop, pipe.fileno())
                self._read = threading.Event()
        for thread in self._threads:
            thread.start()

    @property
    def dead(self) -> SpecllamaError | None:
        """Why nothing more will come, None while it lives; a new one each time, as errors remember where
        they were raised.
        """
        return self._dead and SpecllamaError.from_dict(self._dead.to_dict())

    def wait(self) -> SpecllamaError:
        """Why it has ended, once it has."""
        self._ended.wait()
        return self.dead or EngineDiedError("the engine process ended")

    @property
    def silent_for(self) -> float:
        """Seconds since its last message; infinite before the first."""
        return math.inf if self._heard is None else time.monotonic() - self._heard

    def blame(self, error: SpecllamaError) -> None:
        """Take the error in its last message as the reason for its end."""
        self._dead = self._dead or error

    def write(self, data: bytes) -> None:
        """Have a line written to the process, without waiting for that. Raises what `dead` says."""
        if error := self.dead:
            raise error
        self._outbox.put(data)

    def shut(self) -> None:
        """Let the process end, without waiting for it; for finalizers, which may run at any point."""
        self._closing = True
        self._outbox.put(None)

    def close(self) -> None:
        """End the process: it exits when its stdin closes, and is killed if it does not."""
        self.shut()
        if self._parent != os.getpid():
            return
        try:
            self._process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=_GRACE_SECONDS)

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
                if self._read is None:
                    self._hear(pipe)
                else:
                    self._read.wait()
            finally:
                self._die()

    def _readable(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        """In the loop: there is something in the pipe, or its end."""
        data = os.read(fd, _READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        more = False
        try:
            more = self._hear(lines) and data != b""
        finally:
            if not more:
                assert self._read is not None
                loop.remove_reader(fd)
                self._read.set()

    def _hear(self, lines: Iterable[bytes]) -> bool:
        """Dispatch its messages; whether to go on reading."""
        try:
            for line in lines:
                self._heard = time.monotonic()
                message = protocol.decode(line)
                if not isinstance(message, protocol.Heartbeat):
                    self._take(message)
                elif message.busy_for > message.allowed:
                    self._kill(
                        f"the engine process hangs: a decode has run for {message.busy_for:.0f} s, "
                        f"{message.allowed:.0f} s would be slow; it was ended"
                    )
                    return False
        except (ValueError, TypeError) as error:
            self._kill(f"the engine process sent what is no message: {error}")
            return False
        except BaseException:
            self._kill("what the engine process sent could not be delivered")
            raise
        return True

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
        """End a process without heartbeats: it is stopped or deadlocked, and would never answer."""
        while not self._ended.wait(1.0):
            if self._heard is not None and time.monotonic() - self._heard > _SILENCE_SECONDS:
                self._kill(f"the engine process has said nothing for {_SILENCE_SECONDS:.0f} s; it was ended")
                return

    def _kill(self, why: str) -> None:
        self._problem = self._problem or EngineDiedError(why, self.hang_hint)
        self._process.kill()

    def _die(self) -> None:
        """Find out why the process has ended and say so."""
        code = self._process.wait()
        self._threads[0].join(timeout=_GRACE_SECONDS)
        closed = EngineDiedError("the engine process was closed") if self._closing else None
        hint = _BAD_BUILD if -code in (signal.SIGSEGV, signal.SIGILL) else ""
        self._dead = self._dead or self._problem or closed or EngineDiedError(self._obituary(code), hint)
        self._ended.set()
        self._outbox.put(None)
        self._tell()

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

    def _forked(self) -> None:
        """In a forked child: its copies of the pipes would keep the engine alive when the parent dies."""
        why = "this engine belongs to the process that this one was forked from"
        self._dead = EngineError(why, "make a new one here, or start processes by spawn")
        self._outbox = queue.SimpleQueue()
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(ValueError, OSError):
                if pipe is not None:
                    os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)


def _after_fork() -> None:
    for child in list(_CHILDREN):
        child._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
