"""How far something is: a line redrawn on a terminal, lines now and then elsewhere. Uses console to print."""

from __future__ import annotations

import os
import sys
import time

from specllama.cli import console


class Progress:
    """A line on stderr that says how far something is: redrawn on a terminal, else a line now and then.

    delay: seconds before anything is shown. every: seconds between two lines where lines cannot be redrawn.
    """

    def __init__(self, delay: float = 2.0, every: float = 5.0) -> None:
        self._started, self._shown, self._delay, self._every = time.monotonic(), 0.0, delay, every
        self._open, self._stage = False, ""

    def show(self, label: str, share: float, detail: str = "", stage: str = "") -> None:
        """`share` from 0 to 1. stage: of what is shown; another one begins a line at once."""
        now = time.monotonic()
        redraw = console.supports_ansi(sys.stderr)
        due = now - self._shown >= (0.1 if redraw else self._every)
        if now - self._started < self._delay or (not due and stage == self._stage):
            return
        self._shown, self._stage = now, stage
        text = f"{label} {share:4.0%}" + (f" {detail}" if detail else "")
        if redraw:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            console.write(sys.stderr, f"\r\x1b[2K{text[: width - 1]}")
            self._open = True
        else:
            console.write(sys.stderr, text + "\n")

    def clear(self) -> None:
        """Take the line away."""
        if self._open:
            console.write(sys.stderr, "\r\x1b[2K")
            self._open = False
