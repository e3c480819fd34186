"""Child processes whose output goes to the log, and which end with the installation, however that ends."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from specllama.clock import sleep, wait_until
from specllama.processor_time import TooLongError, WorkMeter, kill, kill_tree, of_tree, processes, tree

from .errors import Interrupted

_GRACE_SECONDS = 3.0  # to end by themselves, after which they are killed
# ninja runs each compiler in a group of its own, and ends them when it gets SIGTERM.
_WATCH = "trap : TERM; read _; kill -TERM 0; sleep 3; kill -KILL 0"


class Children:
    """Starts processes in one group of their own.

    A watcher in the group ends it when this process is gone: its end of a pipe is closed even by SIGKILL.
    """

    def __init__(self, log: BinaryIO, environ: Mapping[str, str], wait_seconds: float = 0.5) -> None:
        self._log, self._environ, self._wait_seconds = log, dict(environ), wait_seconds
        self._parent = os.getppid()
        self._started: list[subprocess.Popen[bytes]] = []
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def write(self, line: str) -> None:
        """A line for the log."""
        self._log.write(f"{line}\n".encode("utf-8", "surrogateescape"))
        self._log.flush()

    def start(
        self,
        command: Sequence[str | Path],
        output: int | BinaryIO = subprocess.PIPE,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process with stdout and stderr together in `output`. environ: changes, "" removes."""
        merged = {**self._environ, **(environ or {})}
        self.write(f"\n$ {shlex.join(map(str, command))}")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in merged.items() if value},
            cwd=directory,
            process_group=self._watcher.pid,
        )
        self._started.append(process)
        return process

    def run(
        self,
        command: Sequence[str | Path],
        tick: Callable[[], None],
        line: Callable[[str], None] = lambda _: None,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
        seconds: float | None = None,
    ) -> tuple[int, str]:
        """Run a process to its end; returns its exit code and its output, which also goes to the log.

        tick: called at least every half second; line: gets each line. seconds: that it may work, or stand
        still (WorkMeter.over). Raises TooLongError then, with its descendants killed, and Interrupted if the
        process that started this one has ended.
        """
        process = self.start(command, environ=environ, directory=directory)
        assert process.stdout is not None
        meter = None if seconds is None else WorkMeter(of_tree(process.pid))
        output, rest = bytearray(), b""
        with process.stdout as pipe:
            while True:
                if select.select([pipe], [], [], self._wait_seconds)[0]:
                    data = os.read(pipe.fileno(), 1 << 16)
                    if not data:
                        break
                    self._log.write(data)
                    self._log.flush()
                    output += data
                    *lines, rest = (rest + data).split(b"\n")
                    for one in lines:
                        line(one.decode("utf-8", "replace"))
                tick()
                self.check_parent()
                if meter is not None and seconds is not None and (over := meter.over(seconds)):
                    kill_tree(process.pid)
                    self.write(f"ended: it {over}")
                    raise TooLongError(over)
        return process.wait(), output.decode("utf-8", "replace")

    def check_parent(self) -> None:
        """Raise Interrupted if the shell that called the installation has ended."""
        if os.getppid() != self._parent:
            raise Interrupted(signal.SIGTERM)

    def end(self) -> None:
        """End all processes of the group, and those that they have put into groups of their own."""
        group = self._watcher.pid
        started = [pid for one in self._started for pid in tree(one.pid, processes())]
        self._watcher.kill()
        self._watcher.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
            wait_until(self._has_ended, _GRACE_SECONDS)
            os.killpg(group, signal.SIGKILL)
        kill(set(started) & processes().keys())
        for process in self._started:
            process.wait()
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()

    def _has_ended(self, seconds: float) -> bool:
        """Whether no process of the group is left; waits a moment if there is one."""
        for process in self._started:
            process.poll()  # without this an ended process counts as one of the group
        try:
            os.killpg(self._watcher.pid, 0)
        except (ProcessLookupError, PermissionError):
            return True
        sleep(min(seconds, 0.02))
        return False
