"""`bench` and `tune` in the middle of a measurement. Progress appears on a terminal alone: stderr is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.chat_pty import Terminal
from tests.support.command import Command


class UnderWay:
    """A measurement whose progress was seen. user: its terminal, which has stderr."""

    def __init__(self, user: Terminal, output: Path) -> None:
        self.user, self.process, self._output = user, user.process, output

    def ended(self, seconds: float) -> tuple[int, str, str]:
        """Wait for its end; exit code, stdout and stderr."""
        code = self.user.wait(seconds)
        return code, self._output.read_text("utf-8"), self.user.text()


@contextlib.contextmanager
def under_way(command: Command, verb: str, *args: str, until: str) -> Iterator[UnderWay]:
    """A measurement once its progress matches `until`; it is ended whatever becomes of the test."""
    output = command.home / "stdout"
    with output.open("wb") as file, Terminal(command, *args, verb=verb, stdout=file) as user:
        user.expect(until)
        yield UnderWay(user, output)
