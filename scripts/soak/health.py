"""Asks a server for its health ten times a second, from a process of its own, so that nobody else's work is
in the figures: `python -m scripts.soak.health HOST PORT` writes a line for each answer until it is ended.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

EVERY = 0.1  # seconds
_PATIENCE = 10.0  # seconds for an answer
_ROOT = Path(__file__).parents[2]


class Look(NamedTuple):
    """An answer: when it was asked for (seconds, monotonic), its status (0: none came), how long it took."""

    at: float
    status: int
    seconds: float


class Watcher:
    """The process that asks; a context manager. `looks` are there once it has ended."""

    def __init__(self, host: str, port: int) -> None:
        command = [sys.executable, "-m", "scripts.soak.health", host, str(port)]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.looks: list[Look] = []

    def poll(self) -> Look:
        """The next answer."""
        assert self._process.stdout is not None
        at, status, seconds = self._process.stdout.readline().split()
        self.looks.append(Look(float(at), int(status), float(seconds)))
        return self.looks[-1]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _ask(
    host: str, port: int, link: http.client.HTTPConnection | None
) -> tuple[int, http.client.HTTPConnection | None]:
    link = link or http.client.HTTPConnection(host, port, timeout=_PATIENCE)
    try:
        link.request("GET", "/health")
        answer = link.getresponse()
        answer.read()
        return answer.status, link
    except (OSError, http.client.HTTPException):
        link.close()
        return 0, None


def _main(host: str, port: int) -> None:
    link, due = None, time.monotonic()
    while True:
        began = time.monotonic()
        status, link = _ask(host, port, link)
        print(f"{began:.6f} {status} {time.monotonic() - began:.6f}", flush=True)
        due = max(due + EVERY, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
