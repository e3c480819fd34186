"""The installed command in a process of its own, isolated from the user's files, with timeouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.forks import COMMAND, fork_server, take_terminal
from tests.support.paths import ROOT

MAIN = [sys.executable, "-m", "specllama"]


@dataclass(frozen=True)
class Result:
    """The result of a command: exit code, stdout as bytes, stderr as text."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode("utf-8")

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


def assert_error(result: Result, code: int, *needles: str) -> None:
    """One error: the exit code, a message with all needles, no traceback, nothing on stdout."""
    assert result.code == code, result.err
    assert result.raw == b""
    assert "Traceback" not in result.err
    assert sum(line.startswith("error: ") for line in result.lines) == 1, result.err
    assert len(result.err) < 3000
    for needle in needles:
        assert needle in result.err, (needle, result.err)


@dataclass(frozen=True)
class CommandLine:
    """Arguments, changes to the environment, and the working directory (None for the home)."""

    args: Sequence[str]
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: Path | None = None


class Command:
    """Runs specllama with a temporary home, which is also the working directory; in forks, where they do what
    new processes do (forks.py).

    With one thread, unless a test sets another number: several wait for each other at every operation, which
    makes them hundreds of times slower on a busy machine.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.cache = home, home / "cache"
        self._started: list[Any] = []
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECLLAMA_")}
        for name in ("NO_COLOR", "COLUMNS", "PYTHONIOENCODING", "LC_ALL"):
            kept.pop(name, None)
        self.env = kept | {
            "SPECLLAMA_CACHE": str(self.cache),
            "XDG_CONFIG_HOME": str(home / "config"),
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "SPECLLAMA_DATA": str(home / "data"),
            "SPECLLAMA_MODEL": "pydoc",  # whether or not the demo model is on this disk
            "SPECLLAMA_N_THREADS": "1",
            "LC_ALL": "C.UTF-8",
        }

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """The command's environment with changes; None removes a variable."""
        merged = {**self.env, **(changes or {})}
        return {k: v for k, v in merged.items() if v is not None}

    def __call__(
        self,
        *args: str | bytes,
        stdin: bytes | None = b"",
        env: Mapping[str, str | None] | None = None,
        timeout: float = 60,
    ) -> Result:
        return self._result(args, stdin, self.environment(env), self.home, timeout)

    def _result(
        self,
        args: Sequence[str | bytes],
        stdin: bytes | None,
        environ: Mapping[str, str],
        cwd: Path,
        timeout: float,
    ) -> Result:
        forks = fork_server(self.environment())
        if forks is not None and stdin is not None and forks.fits(environ):
            done = forks.run(args, stdin, environ, cwd, timeout)
        else:
            line = [*MAIN, *args]
            done = subprocess.run(
                line, input=stdin, capture_output=True, env=environ, cwd=cwd, timeout=timeout, check=False
            )
        return Result(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))

    def python(
        self,
        option: str,
        program: str,
        *args: object,
        cwd: Path = ROOT,
        timeout: float = 60,
        imports: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """`python -m MODULE ARGS` or `python -c PROGRAM ARGS`. imports: see ForkServer."""
        environ = self.environment() | {"GGML_NO_BACKTRACE": "1"}  # an abort is quick
        words = [option, program, *map(str, args)]
        forks = fork_server(self.environment(), imports)
        if forks is not None and forks.has_engine:
            done = forks.run(words[1:], b"", environ, cwd, timeout, option)
        else:
            done = subprocess.run(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environ,
                cwd=cwd,
                timeout=timeout,
                check=False,
            )
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())

    def generate(self, *args: str | bytes, **more: Any) -> Result:
        """`specllama run` without calibration; it must succeed."""
        result = self("run", "--no-calibrate", *args, **more)
        assert result.code == 0, result.err
        assert "Traceback" not in result.err
        return result

    def many(self, *lines: Sequence[str | bytes], **more: Any) -> list[Result]:
        """The results of several command lines, run in parallel on all cores."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda line: self(*line, **more), lines))

    def batch(self, *lines: CommandLine) -> list[Result]:
        """The results of several command lines with environments and directories of their own."""
        return [self._result(x.args, b"", self.environment(x.env), x.cwd or self.home, 60) for x in lines]

    def start(
        self,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        module: str = COMMAND,
        fork: bool = False,
        terminal: bool = False,
        **more: Any,
    ) -> Any:
        """Start the command, or another module with its arguments, as a subprocess.Popen. The caller ends it;
        `end_started` does so after a failed test. Its pipes have no buffers here: what comes along with a
        line that is read stays in the pipe, for `communicate` and `select`. fork: unless a test is about the
        start. terminal: stdin is one, and controls the process.
        """
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environ = self.environment(env)
        forks = fork_server(self.environment()) if fork else None
        if forks is not None and forks.fits(environ):
            program, words = (COMMAND, args) if module == COMMAND else ("-m", (module, *args))
            more = {**pipes, **more, "terminal": terminal}
            process = forks.start(program, words, environ, self.home, bufsize=0, **more)
        else:
            if terminal:
                more |= {"start_new_session": True, "preexec_fn": take_terminal}
            line = [sys.executable, "-m", module, *args]
            process = subprocess.Popen(line, bufsize=0, env=environ, cwd=self.home, **(pipes | more))
        self._started.append(process)
        return process

    def end_started(self) -> None:
        """Kill all processes of `start` that are still running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._started.clear()
