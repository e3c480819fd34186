"""A process that runs during the other steps of an installation. Its output goes to the log at its end."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from specllama.clock import running_time

from .tools import Tools


class BackgroundProcess:
    """A process that has been started. name: of the file for its output."""

    def __init__(
        self,
        tools: Tools,
        name: str,
        command: Sequence[str | Path],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._tools, self._output = tools, tools.work / f"{name}.log"
        with self._output.open("wb") as output:
            self._process = tools.children.start(command, output, environ)

    def finish(self, what: str) -> tuple[int, str]:
        """Wait for its end; returns the exit code and the output. what: shown meanwhile."""
        tick, began = self._tools.ticker(what), running_time()
        while self._process.poll() is None:
            tick()
            self._tools.children.check_parent()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
        printed = self._output.read_text("utf-8", "replace").strip()
        self._tools.children.write(f"waited {running_time() - began:.0f} s for: {what}\n{printed}".rstrip())
        return self._process.returncode, printed
