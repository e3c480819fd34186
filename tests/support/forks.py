"""Runs processes of specllama as forks of one process that has imported its modules: importing them takes
most of the processor time of a short command, of a server's start and of an engine's.

A fork has its own streams, environment, directory and exit code, and ends as an interpreter does. What
depends on how an interpreter starts (encodings, paths of modules) needs a new process: `ForkServer.fits`.
Other programs of Python are forked in the same way, and those that use llama.cpp without specllama from a
process that has imported llama_cpp alone.
An engine, which has imported llama.cpp, is forked where no GPU is in use: from here for a process that tests
(`fork_engines`), and from itself for a command or server that is a fork (`_start_engine`), as is the
engine's process for chat templates.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from unittest import mock

from specllama import python_command
from specllama.errors import SpecllamaError
from tests.support.paths import ROOT

OFF = "TESTS_WITHOUT_FORKS"  # scripts/test --all sets it: each command is a new process
COMMAND, ENGINE = "specllama", "specllama.worker.main"  # modules that are run
PROGRAMS = ("-m", "-c")  # instead of one of these: the first argument is a module, or the text of a program
BARE = "llama_cpp"  # what a server has imported that forks programs without specllama
_AT_START = ("PYTHON", "LC_", "LANG")  # beginnings of variables that an interpreter reads when it starts
_WITH_ENGINE = (
    "OMP_",
    "GOMP_",
    "GGML_",
    "OPENBLAS_",
    "LD_",
    "SPECLLAMA_KERNELS",
)  # those that llama.cpp reads
_AT_ABORT = "GGML_NO_BACKTRACE"  # but for this one, which it reads late
_IMPORTS = (
    *("specllama.cli.app", "specllama.server.main", "typer._adapters", "pydantic.type_adapter"),
    *("specllama.text.chat_template", "specllama.cli.completion", "specllama.cli.llama_cpp_flags"),
    *("httpcore2", "yaml"),  # of requests to the hub; huggingface_hub itself reads variables when imported
)
_N_PIPES = 3
_SHIM = """#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
socket.send_fds(link, [b"\\n"], [0, 1, 2])
link.sendall(json.dumps([{module!r}, sys.argv[1:], dict(os.environ), os.getcwd(), False, False]).encode())
link.shutdown(socket.SHUT_WR)
with link.makefile("rb") as replies:
    code = int(replies.readlines()[1])
sys.exit(code if code >= 0 else 128 - code)
"""


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_START)}


def _with_engine(environ: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in environ.items() if name.startswith(_WITH_ENGINE)}
    found.pop(_AT_ABORT, None)
    return found


class Fork:
    """A process of a fork server; what it has of subprocess.Popen does the same.

    link: tells its pid, and its exit code when it has ended. pipes: this side of its streams, None for those
    that are no pipes.
    """

    def __init__(self, args: Sequence[Any], link: socket.socket, pipes: Sequence[IO[bytes] | None]) -> None:
        self.args, self.returncode = args, None
        self.stdin, self.stdout, self.stderr = pipes
        self._replies = link.makefile("rb", buffering=0)  # reads no more than is asked for
        self._lock = threading.Lock()
        weakref.finalize(self, link.close)
        weakref.finalize(self, self._replies.close)
        self.pid = int(self._replies.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        ready = select.poll()
        ready.register(self._replies, select.POLLIN)
        if self.returncode is None and ready.poll(None if timeout is None else max(0.0, timeout) * 1000):
            with self._lock:
                if self.returncode is None:
                    self.returncode = int(self._replies.readline() or -signal.SIGKILL)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, data: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """As that of Popen, but a process that takes too long is killed."""
        ends = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        with ThreadPoolExecutor(_N_PIPES) as pool:
            if self.stdin is not None and not self.stdin.closed:
                pool.submit(_write, self.stdin, data)
            texts = [pool.submit(_read, pipe) for pipe in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
                out, err = (text.result(ends - time.monotonic()) for text in texts)
            except (TimeoutError, subprocess.TimeoutExpired):
                self.kill()
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            return out, err


def _write(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(data)


def _read(pipe: IO[bytes] | None) -> bytes:
    if pipe is None or pipe.closed:
        return b""
    with pipe:
        return pipe.read()


class ForkServer:
    """The process that is forked; it ends with this one. environ: its environment. imports: BARE, or "" for
    what commands and engines import.
    """

    def __init__(self, environ: Mapping[str, str], imports: str = "") -> None:
        self._environ, self._folder = dict(environ), tempfile.TemporaryDirectory()
        self._address = f"{self._folder.name}/forks"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forks", str(listener.fileno()), imports],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # as the commands have it
                stderr=subprocess.PIPE,
                env=self._environ,
                cwd=ROOT,
                pass_fds=[listener.fileno()],
            )
        atexit.register(self.close)

    @functools.cached_property
    def has_engine(self) -> bool:
        """Whether engines and other programs that use llama.cpp can be forked."""
        assert self._process.stdout is not None
        return self._process.stdout.readline() == b"1\n"

    def close(self) -> None:
        """End it. Processes that are running go on."""
        self._process.communicate()
        self._folder.cleanup()

    def fits(self, environ: Mapping[str, str]) -> bool:
        """Whether a fork with this environment does what a new process would."""
        return _at_start(environ) == _at_start(self._environ)

    def start(
        self,
        module: str,
        args: Sequence[str | bytes],
        environ: Mapping[str, str],
        cwd: Path,
        stdin: int | IO[bytes] = subprocess.PIPE,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
        bufsize: int = -1,
        start_new_session: bool = False,
        terminal: bool = False,
    ) -> Fork:
        """A module that runs as a program with these arguments. terminal: stdin is one, and controls it."""
        words = [os.fsdecode(arg) for arg in args]
        order = json.dumps([module, words, dict(environ), str(cwd), start_new_session, terminal]).encode()
        ends = [_ends(stream, i, bufsize) for i, stream in enumerate((stdin, stdout, stderr))]
        link = socket.socket(socket.AF_UNIX)
        link.connect(self._address)
        socket.send_fds(link, [b"\n"], [theirs for theirs, _ in ends])
        for theirs, _ in ends:
            os.close(theirs)
        link.sendall(order)
        link.shutdown(socket.SHUT_WR)
        return Fork([module, *args], link, [ours for _, ours in ends])

    def write_command(self, path: Path) -> None:
        """Write a program that runs the command in a fork with what it is given itself, for shells."""
        path.write_text(_SHIM.format(python=sys.executable, address=self._address, module=COMMAND), "utf-8")
        path.chmod(0o755)

    def run(
        self,
        args: Sequence[str | bytes],
        stdin: bytes,
        environ: Mapping[str, str],
        cwd: Path,
        timeout: float,
        module: str = COMMAND,
    ) -> subprocess.CompletedProcess[bytes]:
        """What subprocess.run returns for a command, or raises."""
        process = self.start(module, args, environ, cwd)
        out, err = process.communicate(stdin, timeout)
        return subprocess.CompletedProcess(args, process.wait(), out, err)


def _ends(stream: int | IO[bytes], number: int, bufsize: int) -> tuple[int, IO[bytes] | None]:
    """A process's side of one of its streams, and this side, None where it is no pipe."""
    if stream == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    if stream != subprocess.PIPE:
        return os.dup(stream if isinstance(stream, int) else stream.fileno()), None
    read, write = os.pipe()
    return (read, open(write, "wb", bufsize)) if number == 0 else (write, open(read, "rb", bufsize))


@functools.cache
def _server(environ: tuple[tuple[str, str], ...], imports: str) -> ForkServer:
    return ForkServer(dict(environ), imports)


def fork_server(environ: Mapping[str, str], imports: str = "") -> ForkServer | None:
    """This process's server, None where processes are not forked. environ: the usual one of a command."""
    measures = "PYTEST_VERSION" not in os.environ  # a campaign of its own: soak, measure
    if OFF in os.environ or measures or not hasattr(os, "fork"):
        return None
    return _server(tuple(sorted((_at_start(environ) | _with_engine(environ)).items())), imports)


ENGINES: list[Fork] = []
"""The engine processes that were forked for this one."""


def fork_engines(usual: Mapping[str, str]) -> None:
    """From now on, fork the engine processes of this one where new ones would do the same. usual: as for
    `fork_server`.
    """
    start, before = python_command._start_engine, (sys.executable, [*sys.path], _at_start(os.environ))

    def forked(environ: Mapping[str, str]) -> Any:
        merged, server = {**os.environ, **environ}, fork_server(usual)
        same = (sys.executable, sys.path, _at_start(merged)) == before
        if server is None or not same or _with_engine(merged) != _with_engine(usual) or not server.has_engine:
            return start(environ)
        ENGINES.append(server.start(ENGINE, [], merged, Path.cwd()))
        return ENGINES[-1]

    python_command._start_engine = forked


def _wait_for_order(listener: socket.socket) -> str:
    """Returns in a fork, which has a process's streams, environment and arguments: the module to run."""
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
            return _become(link)
        link.close()


def _become(link: socket.socket) -> str:
    """Fork once more: this process reports what becomes of its child, in which the function returns."""
    _, pipes, _, _ = socket.recv_fds(link, 1, _N_PIPES)
    with link.makefile("rb") as sent:
        module, args, environ, cwd, start_new_session, terminal = json.load(sent)
    if pid := os.fork():
        for pipe in pipes:
            os.close(pipe)
        for stream in range(_N_PIPES):
            os.close(stream)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it
            link.sendall(f"{pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    link.close()
    for stream, pipe in enumerate(pipes):
        os.dup2(pipe, stream)
        os.close(pipe)
    if start_new_session or terminal:
        os.setsid()
    if terminal:
        take_terminal()
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.argv[1:] = args
    return module


def take_terminal() -> None:
    """stdin is the controlling terminal of this process, which leads a session: Ctrl-C becomes a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def _ended_soon() -> Iterator[None]:
    """End this process after the block as an interpreter does, but without freeing what it has in memory:
    that would copy all that it shares with the process it was forked from.
    """
    code: Any = None
    try:
        yield
    except SystemExit as stop:
        code = stop.code
    if code is None or isinstance(code, int):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):  # what cannot be written ends it as ever
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 0xFF)
    sys.exit(code)


def _run_program(option: str, program: str, *args: str) -> None:
    """As an interpreter with this option does."""
    sys.argv[:] = [option, *args]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def _import_engine() -> bool:
    """Import what the engine process does; False where that starts what a fork cannot go on with."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(SpecllamaError, ImportError):
        from specllama import drafters
        from specllama.llama.library import devices
        from specllama.worker import engine_core  # noqa: F401

        for found in pkgutil.iter_modules(drafters.__path__, "specllama.drafters."):
            importlib.import_module(found.name)
        return not any(device.gpu for device in devices())
    return False


def _others() -> list[threading.Thread]:
    """Threads that may hold a lock that a fork waits for: all others but the clock's, and those of pools that
    wait for work.
    """
    frames, mine = sys._current_frames(), (threading.current_thread(), threading.main_thread())
    idle = {ident for ident, frame in frames.items() if frame.f_code.co_qualname == "_worker"}
    known = [thread for thread in threading.enumerate() if thread.name != "specllama_clock"]
    return [thread for thread in known if thread not in mine and thread.ident not in idle]


def _start_engine(start: Callable[..., subprocess.Popen[bytes]], before: Mapping[str, str]) -> Any:
    """`start`, which starts an engine process, or one that forks it where a new one would do the same.
    before: the environment in which the engine was imported.
    """

    def forked(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        merged = {**os.environ, **environ}
        if _with_engine(merged) != _with_engine(before):
            return start(environ)
        seconds = (
            0.2 if asyncio._get_running_loop() is None else 0.03
        )  # a server's loop stands still meanwhile
        ends = time.monotonic() + seconds
        while _others():
            if time.monotonic() > ends:
                return start(environ)
            time.sleep(0.002)
        sys.stdout.flush()
        sys.stderr.flush()
        pipe, become = subprocess.PIPE, functools.partial(_become_engine, merged)
        return subprocess.Popen(
            [sys.executable],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=become,
            restore_signals=False,  # a new interpreter ignores SIGPIPE, too
        )

    return forked


def _become_engine(environ: Mapping[str, str]) -> None:
    """In the child of a Popen, before its program would start: never returns."""
    os.closerange(_N_PIPES, 4096)  # one of these tells the parent that the program has started
    os.environ.clear()
    os.environ.update(environ)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    sys.setswitchinterval(0.005)  # a server has another one
    gc.enable()  # Popen disables it
    with _ended_soon():
        _run_engine()


def measure_little() -> None:
    """From now on, a load of this process that stores nothing times no decodes but those of one row, as that
    of a large model: to time the others is half of its work. What is timed then is the subject of
    tests/unit/core/test_measured_widths.py.
    """
    from specllama.worker import calibrate, loader

    def briefly(warm_up: Callable[..., None], *args: Any) -> None:
        keeps = any(arg.keep for arg in args if isinstance(arg, loader.ModelProfile))
        with contextlib.nullcontext() if keeps else mock.patch.object(calibrate, "LOAD_SECONDS", 0.0):
            warm_up(*args)

    for name in ("warm_up_target", "warm_up_drafts"):
        setattr(loader, name, functools.partial(briefly, getattr(loader, name)))


def _run_engine() -> None:
    """Never returns."""
    from specllama.text import template_process
    from specllama.worker.main import main

    measure_little()

    def popen(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        if threading.current_thread() is threading.main_thread():
            more |= {"preexec_fn": _become_template, "restore_signals": False}
        return subprocess.Popen(*args, **more)

    # Once, while nothing is decoded.
    template_process.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    main()


def _become_template() -> None:
    """As `_become_engine`, for the engine's process for chat templates."""
    os.closerange(_N_PIPES, 4096)
    gc.enable()
    from specllama.text.template_process import main

    try:
        main()
    finally:
        os._exit(0)


def _import_commands() -> None:
    for name in _IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import typer

    from specllama.cli import typer_options
    from specllama.cli.app import COMMANDS, app

    for command in COMMANDS.values():
        command.function()
    # Typer makes its commands again at each call, and a fork has one.
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)
    build = typer_options.build
    made = {id(command): build(name, command) for name, command in COMMANDS.items()}
    typer_options.build = lambda name, entry: made.get(id(entry)) or build(name, entry)


if __name__ == "__main__":
    before = dict(os.environ)
    if bare := sys.argv[2]:
        importlib.import_module(bare)
        has_engine = sys.platform == "linux"
    else:
        _import_commands()
        has_engine = _import_engine()
    sys.stdout.write(f"{has_engine:d}\n")
    sys.stdout.flush()
    gc.freeze()  # what is shared with the forks is not copied by their collections
    module = _wait_for_order(socket.socket(fileno=int(sys.argv[1])))
    if module == ENGINE:
        os.setsid()
        with _ended_soon():
            _run_engine()
    # Most commands of the tests fail before they need an engine: none starts early.
    python_command.start_engine_early = lambda: None
    if has_engine and not bare:
        python_command._start_engine = _start_engine(python_command._start_engine, before)
    with _ended_soon():
        if module in PROGRAMS:
            _run_program(module, *sys.argv[1:])
        else:
            from specllama.__main__ import main

            main()
