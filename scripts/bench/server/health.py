"""GET /health again and again, from a process of its own, until stdin closes: then all latencies in ms.

usage: health.py PORT
"""

from __future__ import annotations

import http.client
import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Sequence

_EVERY = 0.05  # seconds between two requests


class Health:
    """Asks while a block runs; a context manager. found: latencies in ms afterwards."""

    def __init__(self, port: int) -> None:
        self._port, self.found = port, list[float]()

    def __enter__(self) -> Health:
        command = [sys.executable, __file__, str(self._port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        out, _ = self._process.communicate(timeout=30)
        self.found = json.loads(out or b"[]")


def p99(values: Sequence[float]) -> float | None:
    """The value that one in a hundred exceeds."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else None


def main() -> None:
    link, found = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10), []
    while not select.select([sys.stdin], [], [], _EVERY)[0]:
        began = time.perf_counter()
        try:
            link.request("GET", "/health")
            link.getresponse().read()
        except (OSError, http.client.HTTPException):
            link.close()
            continue  # the sweep says what is wrong
        found.append(1000 * (time.perf_counter() - began))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
