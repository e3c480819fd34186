"""A user at a terminal: types, and waits for what appears. Standard library only; waits have deadlines."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO

from tests.support.command import Command

SECONDS = 30.0
CTRL_C, CTRL_D, ALT_ENTER, TAB, UP = "\x03", "\x04", "\x1b\r", "\t", "\x1b[A"
_WHERE = b"\x1b[6n"  # the question for the cursor's position
_READY = "\x1b[?2004h"  # what the editor asks of the terminal before every input
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Terminal:
    """`specllama chat`, or another command, on a pseudo-terminal; a context manager that ends it.

    seen: all that came, with control sequences; text(): without them. `expect` looks after what an earlier
    one found.
    """

    def __init__(
        self,
        command: Command,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        verb: str = "chat",
        fork: bool = True,
        **files: IO[bytes],
    ) -> None:
        """fork: unless a test is about the start. files: stdout and stderr where they are no terminal."""
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, 200))
        self.before = termios.tcgetattr(theirs)
        changes = {"TERM": "xterm", "COLUMNS": None, **(env or {})}
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **files}
        self.process = command.start(verb, *args, env=changes, fork=fork, terminal=True, **streams)
        self._theirs = theirs  # kept open, so that what was written last can be read after the end
        self._raw, self._at = b"", 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._ours >= 0:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal."""
        os.close(self._theirs)
        os.close(self._ours)
        self._ours = -1

    @property
    def seen(self) -> str:
        return self._raw.decode("utf-8", "replace")

    def text(self) -> str:
        return _CONTROL.sub("", self.seen.replace(_READY, "[ready]"))

    def type(self, keys: str) -> None:
        """Keys without Enter."""
        os.write(self._ours, keys.encode())

    def enter(self, line: str) -> None:
        """A line and Enter."""
        self.type(line + "\r")

    def expect(self, pattern: str, seconds: float = SECONDS) -> re.Match[str]:
        """The next match after the last one, in the text without control sequences."""
        end = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self.text(), self._at)) is None:
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.text()[self._at :]!r}"
            self.read(min(left, 0.2))
        self._at = found.end()
        return found

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C, and once more where nothing came of it: a signal just before a program that is no editor
        begins to read is handled when the read ends, as with input() of Python.
        """
        for _ in range(4):
            self.type(CTRL_C)
            with contextlib.suppress(AssertionError):
                self.expect(pattern, SECONDS / 4)
                return
        self.expect(pattern, 1)

    def ask(self, line: str, seconds: float = SECONDS) -> re.Match[str]:
        """Send a message at the prompt and wait for the line below its answer."""
        self.enter(line)
        return self.expect(r"prompt (?P<evaluated>\d+) evaluated, (?P<reused>\d+) reused[^\n]*\n", seconds)

    def prompt(self) -> None:
        """Wait until something may be typed."""
        self.expect(r"\[ready\]")

    def wait(self, seconds: float = SECONDS) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"does not end: {self.text()[-500:]!r}"
            self.read(0.1)
        self.read(0.1)
        return self.process.returncode

    def restored(self) -> bool:
        """Whether the terminal echoes and edits lines as before the command."""
        return termios.tcgetattr(self._theirs)[:4] == self.before[:4]

    def read(self, seconds: float = 0.05) -> None:
        """What has come, and what comes meanwhile."""
        if select.select([self._ours], [], [], seconds)[0]:
            data = os.read(self._ours, 65536)
            if _WHERE in data:
                os.write(self._ours, b"\x1b[40;1R")  # the last line: nothing is free below
            self._raw += data
