"""Polls a server's /health from a process of its own, so that the latencies are not those of a busy client.

`python -m tests.support.health HOST PORT SECONDS` prints a line for each answer until it is terminated.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TIMEOUT = 10.0  # seconds for an answer
_ROOT = Path(__file__).parents[2]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class HealthReply(NamedTuple):
    """An answer. at: monotonic time of the request; status: 0 if there was none; seconds: latency."""

    at: float
    status: int
    seconds: float


class HealthPoller:
    """Polls while a block runs; a context manager. replies: the answers so far.

    every: seconds between two requests.
    """

    def __init__(self, host: str, port: int, every: float) -> None:
        command = [sys.executable, "-m", "tests.support.health", host, str(port), str(every)]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.replies: list[HealthReply] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> HealthPoller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; all its answers are in `replies` then."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # it ended while it wrote
            at, status, seconds = line.split()
            self.replies.append(HealthReply(float(at), int(status), float(seconds)))


def _request(
    host: str, port: int, link: http.client.HTTPConnection | None
) -> tuple[int, http.client.HTTPConnection | None]:
    link = link or http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        link.request("GET", "/health")
        answer = link.getresponse()
        answer.read()
        return answer.status, link
    except (OSError, http.client.HTTPException):
        link.close()
        return 0, None


def _main(host: str, port: int, every: float) -> None:
    link, due = None, time.monotonic()
    while True:
        began = time.monotonic()
        status, link = _request(host, port, link)
        print(f"{began:.6f} {status} {time.monotonic() - began:.6f}", flush=True)
        due = max(due + every, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
