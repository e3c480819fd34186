"""Shows how far an installation is, on stderr; stdout stays empty. Knows what pip, CMake and ninja print."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import TextIO

from specllama.clock import running_time

PREFIX = "specllama: "
PIPE_SECONDS = 15.0
TERMINAL_SECONDS = 0.5


class Progress:
    """One line that is redrawn on a terminal, a line every 15 seconds elsewhere."""

    def __init__(self, stream: TextIO, terminal: bool, clock: Callable[[], float] = running_time) -> None:
        self._stream, self._terminal, self._clock = stream, terminal, clock
        self._shown, self._width = clock(), 0

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._stream.write(f"{PREFIX}{text}\n")
        self._stream.flush()
        self._shown = self._clock()

    def show(self, text: str) -> None:
        """What goes on now; called often."""
        now = self._clock()
        if now - self._shown < (TERMINAL_SECONDS if self._terminal else PIPE_SECONDS):
            return
        if not self._terminal:
            self.say(text)
            return
        self._shown = now
        line = f"{PREFIX}{text}"[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def clear(self) -> None:
        """Remove the redrawn line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STEP = re.compile(r"\s*\[(\d+)/(\d+)\] ")
_PERCENT = re.compile(r"\s*\[ *(\d+)%\] ")
_BYTES = re.compile(r"\s*Progress (\d+) of (\d+)")
_SIZE = re.compile(r"\s*Downloading .*\(([\d.]+ [kMG]B)\)")
_PHASES = (
    ("Installing build dependencies", "fetching the tools of the compilation"),
    ("Getting requirements to build wheel", "unpacking llama.cpp"),
    ("Preparing metadata", "unpacking llama.cpp"),
    ("*** Configuring CMake", "configuring llama.cpp"),
    ("*** Building project", "compiling llama.cpp"),
    ("*** Installing project", "packing the result"),
)
_ENOUGH = 0.03  # share of the steps before which the time left is not estimated


class BuildProgress:
    """What is going on in `pip wheel -v`, from the lines it prints."""

    def __init__(self, clock: Callable[[], float] = running_time) -> None:
        self._clock = clock
        self._began = clock()
        self._phase = "preparing to compile llama.cpp"
        self._done = self._total = 0
        self._compiling_since = 0.0

    def feed(self, line: str) -> None:
        """A line of the output."""
        line = _ANSI.sub("", line)
        if found := _STEP.match(line):
            self._step(int(found[1]), int(found[2]))
        elif found := _PERCENT.match(line):
            self._step(int(found[1]), 100)
        elif found := _BYTES.match(line):
            self._phase = f"downloading ({int(found[1]) / 1e6:.0f} of {int(found[2]) / 1e6:.0f} MB)"
        elif found := _SIZE.match(line):
            self._phase = f"downloading ({found[1]})"
        else:
            for start, phase in _PHASES:
                if line.strip().startswith(start):
                    self._phase = phase

    def text(self) -> str:
        """How far it is."""
        now = self._clock()
        if not self._total or self._phase != "compiling llama.cpp":
            return f"{self._phase}, {now - self._began:.0f} s"
        share = self._done / self._total
        text = f"compiling llama.cpp: {100 * share:.0f} % ({self._done} of {self._total})"
        if share < _ENOUGH:
            return f"{text}, {now - self._began:.0f} s"
        left = (now - self._compiling_since) * (1 - share) / share
        return f"{text}, {now - self._began:.0f} s, about {_rounded(left)} left"

    def _step(self, done: int, total: int) -> None:
        if not self._total:
            self._compiling_since = self._clock()
        self._phase = "compiling llama.cpp"
        self._done, self._total = done, total


def _rounded(seconds: float) -> str:
    """Minutes from two on, else seconds, in steps of 5 from 10 on: an estimate that does not flicker."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{round(seconds) if seconds < 10 else 5 * round(seconds / 5)} s"
