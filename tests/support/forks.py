"""Runs specllama command lines in forks of one process that has imported the commands: importing them takes
most of the processor time of a short one.

A fork has its own streams, environment, directory and exit code, and ends as an interpreter does. What
depends on how an interpreter starts (encodings, paths of modules) needs a new process: `ForkServer.fits`.
Its engine is a fork of it, which has imported llama.cpp, where no GPU is in use: `_start_engine`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from specllama.errors import SpecllamaError
from tests.support.paths import ROOT

OFF = "TESTS_WITHOUT_FORKS"  # scripts/test --all sets it: each command is a new process
_AT_START = ("PYTHON", "LC_", "LANG")  # beginnings of variables that an interpreter reads when it starts
_WITH_ENGINE = (
    "OMP_",
    "GOMP_",
    "GGML_",
    "OPENBLAS_",
    "LD_",
    "SPECLLAMA_KERNELS",
)  # those that llama.cpp reads
_N_PIPES = 3


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_START)}


class ForkServer:
    """The process that is forked; it ends with this one. environ: its environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._folder = dict(environ), tempfile.TemporaryDirectory()
        self._address = f"{self._folder.name}/forks"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forks", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # as the commands have it
                stderr=subprocess.PIPE,
                env=self._environ,
                cwd=ROOT,
                pass_fds=[listener.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it. Commands that are running go on."""
        self._process.communicate()
        self._folder.cleanup()

    def fits(self, environ: Mapping[str, str]) -> bool:
        """Whether a fork with this environment does what a new process would."""
        return _at_start(environ) == _at_start(self._environ)

    def run(
        self, args: Sequence[str | bytes], stdin: bytes, environ: Mapping[str, str], cwd: Path, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """What subprocess.run returns for a command, or raises."""
        ends = time.monotonic() + timeout
        command = json.dumps([[os.fsdecode(arg) for arg in args], dict(environ), str(cwd)]).encode()
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(_N_PIPES))
            link = stack.enter_context(socket.socket(socket.AF_UNIX))
            link.settimeout(timeout)
            link.connect(self._address)
            given, out, err = (stack.enter_context(pipe) for pipe in _handed_over(link))
            link.sendall(command)
            link.shutdown(socket.SHUT_WR)
            replies = stack.enter_context(link.makefile())
            pid = int(replies.readline())
            pool.submit(_write, given, stdin)
            texts = [pool.submit(pipe.read) for pipe in (out, err)]
            try:
                code = int(replies.readline())
                read = [text.result(ends - time.monotonic()) for text in texts]
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(args, timeout) from None
            return subprocess.CompletedProcess(args, code, *read)


def _handed_over(link: socket.socket) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    """This side of a command's stdin, stdout and stderr; the other side is sent."""
    pipes = [os.pipe() for _ in range(_N_PIPES)]
    theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
    socket.send_fds(link, [b"\n"], theirs)
    for end in theirs:
        os.close(end)
    return open(pipes[0][1], "wb"), open(pipes[1][0], "rb"), open(pipes[2][0], "rb")


def _write(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(data)


@functools.cache
def _server(environ: tuple[tuple[str, str], ...]) -> ForkServer:
    return ForkServer(dict(environ))


def fork_server(environ: Mapping[str, str]) -> ForkServer | None:
    """This process's server, None where commands are not forked. environ: the usual one of a command."""
    if OFF in os.environ or not hasattr(os, "fork"):
        return None
    return _server(tuple(sorted(_at_start(environ).items())))


def _wait_for_command(listener: socket.socket) -> None:
    """Returns in a fork, which has a command's streams, environment and arguments."""
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if listener not in ready:
            sys.exit()  # the tests have ended
        link, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listener.close()
            _become(link)
            return
        link.close()


def _become(link: socket.socket) -> None:
    """Fork once more: this process reports what becomes of its child, in which the function returns."""
    _, pipes, _, _ = socket.recv_fds(link, 1, _N_PIPES)
    with link.makefile("rb") as sent:
        args, environ, cwd = json.load(sent)
    if pid := os.fork():
        for pipe in pipes:
            os.close(pipe)
        link.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    link.close()
    for stream, pipe in enumerate(pipes):
        os.dup2(pipe, stream)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.argv[1:] = args


def _import_engine() -> bool:
    """Import what the engine process does; False where that starts what a fork cannot go on with."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(SpecllamaError, ImportError):
        from specllama.llama.library import devices
        from specllama.worker import engine_core  # noqa: F401

        return not any(device.gpu for device in devices())
    return False


def _start_engine(start: Callable[..., subprocess.Popen[bytes]], before: Mapping[str, str]) -> Any:
    """`start`, which starts an engine process, or one that forks it where a new one would do the same.
    before: the environment in which the engine was imported.
    """

    def with_engine(environ: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environ.items() if name.startswith(_WITH_ENGINE)}

    def forked(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        others = {x for x in threading.enumerate() if x.name not in ("MainThread", "specllama_clock")}
        for thread in others:
            thread.join(0.2)  # one that has to end
        alone = not any(thread.is_alive() for thread in others)
        if not alone or with_engine({**os.environ, **environ}) != with_engine(before):
            return start(environ)
        sys.stdout.flush()
        sys.stderr.flush()
        pipe, become = subprocess.PIPE, functools.partial(_become_engine, {**os.environ, **environ})
        return subprocess.Popen(
            [sys.executable], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, preexec_fn=become
        )

    return forked


def _become_engine(environ: Mapping[str, str]) -> None:
    """In the child of a Popen, before its program would start: never returns."""
    os.closerange(_N_PIPES, 4096)  # one of these tells the parent that the program has started
    os.environ.clear()
    os.environ.update(environ)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    gc.enable()  # Popen disables it
    from specllama.worker.main import main

    main()


def _import_commands() -> None:
    for name in ("specllama.cli.app", "typer._adapters", "pydantic.type_adapter"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from specllama.cli.app import COMMANDS

    for command in COMMANDS.values():
        command.table()
        command.function()


if __name__ == "__main__":
    before = dict(os.environ)
    _import_commands()
    has_engine = _import_engine()
    gc.freeze()  # what is shared with the forks is not copied by their collections
    _wait_for_command(socket.socket(fileno=int(sys.argv[1])))
    from specllama import python_command
    from specllama.__main__ import main

    # Most commands of the tests fail before they need an engine: none starts early.
    python_command.start_engine_early = lambda: None
    if has_engine:
        python_command._start_engine = _start_engine(python_command._start_engine, before)
    main()
