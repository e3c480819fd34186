"""The installed command in a subprocess, kept away from the user's files, with deadlines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

MAIN = [sys.executable, "-m", "specllama"]


@dataclass(frozen=True)
class Result:
    """What a finished command left: exit code, stdout as bytes, stderr as text."""

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


@dataclass(frozen=True)
class CommandLine:
    """Arguments, changes of the environment, and the working directory, None for the home."""

    args: Sequence[str]
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: Path | None = None


def _readable(err: bytes) -> str:
    """What a command writes on stderr, without the progress of loading, which slow machines show."""
    return re.sub(r"(?m)^loading the (?:target|draft) +\d+%\n", "", err.decode("utf-8", "replace"))


class Command:
    """Runs specllama with a home of its own; `home` is also the working directory.

    One thread, unless a test says otherwise: two wait for each other at every operation, and a busy machine
    makes that hundreds of times slower.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.cache = home, home / "cache"
        self._started: list[subprocess.Popen[bytes]] = []
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECLLAMA_")}
        for name in ("NO_COLOR", "COLUMNS", "PYTHONIOENCODING", "LC_ALL"):
            kept.pop(name, None)
        self.env = kept | {
            "SPECLLAMA_CACHE": str(self.cache),
            "XDG_CONFIG_HOME": str(home / "config"),
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "SPECLLAMA_N_THREADS": "1",
            "LC_ALL": "C.UTF-8",
        }

    def environment(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """The command's environment with changes; None takes a variable out."""
        merged = {**self.env, **(changes or {})}
        return {k: v for k, v in merged.items() if v is not None}

    def __call__(
        self,
        *args: str | bytes,
        stdin: bytes | None = b"",
        env: Mapping[str, str | None] | None = None,
        timeout: float = 60,
    ) -> Result:
        done = subprocess.run(
            [*MAIN, *args],
            input=stdin,
            capture_output=True,
            env=self.environment(env),
            cwd=self.home,
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, done.stdout, _readable(done.stderr))

    def generate(self, *args: str | bytes, **more: Any) -> Result:
        """`specllama run` without the measuring afterwards; it must succeed."""
        result = self("run", "--no-calibrate", *args, **more)
        assert result.code == 0, result.err
        assert "Traceback" not in result.err
        return result

    def many(self, *lines: Sequence[str | bytes], **more: Any) -> list[Result]:
        """Results of several command lines, as many at a time as there are cores."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda line: self(*line, **more), lines))

    def batch(self, *lines: CommandLine) -> list[Result]:
        """Results of command lines that end soon, each in a fork of one process (batch.py)."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.batch"],
            input=json.dumps([[x.args, x.env, str(x.cwd or self.home)] for x in lines]).encode(),
            capture_output=True,
            env=self.environment(),
            cwd=self.home,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        found = json.loads(done.stdout)
        return [Result(code, bytes.fromhex(out), _readable(bytes.fromhex(err))) for code, out, err in found]

    def start(
        self, *args: str, env: Mapping[str, str | None] | None = None, **more: Any
    ) -> subprocess.Popen[bytes]:
        """The command, running. Whoever starts it ends it; `end_started` ends what a failed test left."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        line = [*MAIN, *args]
        process = subprocess.Popen(line, env=self.environment(env), cwd=self.home, **(pipes | more))
        self._started.append(process)
        return process

    def end_started(self) -> None:
        """Kill what `start` started and nobody has ended."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._started.clear()
