"""A process that runs during the other steps of an installation. Its output goes to the log at its end."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .tools import Tools


class BackgroundProcess:
    """A process that has been started. name: of the file for its output. idle: it gets the time that others
    leave.
    """

    def __init__(
        self,
        tools: Tools,
        name: str,
        command: Sequence[str | Path],
        environ: Mapping[str, str] | None = None,
        idle: bool = False,
    ) -> None:
        nice = ["nice", "-n", "10"] if idle and shutil.which("nice") else []
        self._tools, self._output = tools, tools.work / f"{name}.log"
        with self._output.open("wb") as output:
            self._process = tools.children.start([*nice, *command], output, environ)

    def finish(self, what: str) -> int:
        """Wait for its end; returns the exit code. what: shown meanwhile."""
        tick = self._tools.ticker(what)
        while self._process.poll() is None:
            tick()
            self._tools.children.check_parent()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
        self._tools.children.write(self._output.read_text("utf-8", "replace").rstrip())
        return self._process.returncode
