"""Runs specllama command lines in forks of one process that has imported the commands: importing them takes
most of the processor time of a short one.

A fork has its own streams, environment, directory and exit code, and ends as an interpreter does. What
depends on how an interpreter starts (encodings, paths of modules) needs a new process: `ForkServer.fits`.
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
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tests.support.paths import ROOT

OFF = "TESTS_WITHOUT_FORKS"  # scripts/test --all sets it: each command is a new process
_AT_START = ("PYTHON", "LC_", "LANG")  # beginnings of variables that an interpreter reads when it starts
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


def _import_commands() -> None:
    for name in ("specllama.cli.app", "typer._adapters", "pydantic.type_adapter"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from specllama.cli.app import COMMANDS

    for command in COMMANDS.values():
        command.table()
        command.function()
    gc.freeze()  # what is shared with the forks is not copied by their collections


if __name__ == "__main__":
    _import_commands()
    _wait_for_command(socket.socket(fileno=int(sys.argv[1])))
    from specllama import python_command
    from specllama.__main__ import main

    # Most commands of the tests fail before they need an engine: none starts early.
    python_command.start_engine_early = lambda: None
    main()
