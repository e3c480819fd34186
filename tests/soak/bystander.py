"""What a server's other clients notice: the gaps in a stream, the latency of /health, the front's memory.

Knows no bodies and no limits; `python -m tests.soak` and tests/server/test_costly_bodies.py judge them.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import psutil

from tests.support.health import HealthPoller, quantile

_SAMPLE_SECONDS = 0.01  # between two samples of memory
_HEALTH_SECONDS = 0.02  # between two requests of /health
_STREAM = {"prompt": "def read(", "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
MB = 1 << 20


class Noticed(NamedTuple):
    """Over a span of time: latencies of /health and the longest gap of the stream, in seconds; the bytes by
    which the front's resident memory grew at most; unanswered: requests of /health without a 200.
    """

    health_p99: float
    health_max: float
    gap: float
    growth: int
    unanswered: int


class Bystander:
    """Streams one answer after another and watches, while a block runs. lost: streams that did not end well.

    connect: opens a connection to the server; pid: of the front.
    """

    def __init__(self, connect: Callable[[], http.client.HTTPConnection], pid: int) -> None:
        self._connect, self._front = connect, psutil.Process(pid)
        link = connect()
        self._poller = HealthPoller(link.host, link.port, _HEALTH_SECONDS)
        self._stop = threading.Event()
        self._moved: list[float] = []  # when the stream went on, monotonic
        self._sizes: list[tuple[float, int]] = []
        self.lost: list[str] = []
        self.first_tokens: list[float] = []  # seconds from a request to its first event
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._read, self._sample)]

    def __enter__(self) -> Bystander:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        self._poller.close()

    def wait_until_streaming(self, seconds: float = 30.0) -> None:
        """Wait for the first events and answers. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while len(self._moved) < 3 or len(self._poller.replies) < 3:
            if time.monotonic() > end:
                raise TimeoutError(f"nothing is streamed: {self.lost}")
            time.sleep(0.01)

    def latencies(self, begin: float) -> list[float]:
        """Seconds of the answers of /health since a monotonic time."""
        return [r.seconds for r in list(self._poller.replies) if r.at + r.seconds >= begin]

    def noticed(self, begin: float, end: float) -> Noticed:
        """What happened between two monotonic times."""
        replies = [r for r in list(self._poller.replies) if r.at <= end and r.at + r.seconds >= begin]
        times = [r.seconds for r in replies if r.status == 200]
        before = [at for at in self._moved if at <= begin][-1:] or [begin]
        moved = [*before, *(at for at in self._moved if begin < at <= end), end]
        sizes = [size for at, size in self._sizes if begin <= at <= end]
        earlier = [size for at, size in self._sizes if at < begin][-1:] or sizes[:1]
        return Noticed(
            quantile(times, 0.99),
            max(times, default=0.0),
            max(b - a for a, b in pairwise(moved)),
            max(sizes, default=0) - min(earlier, default=0),
            sum(r.status != 200 for r in replies),
        )

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            try:
                self._sizes.append((time.monotonic(), self._front.memory_info().rss))
            except psutil.Error:
                return

    def _read(self) -> None:
        while not self._stop.is_set():
            link = self._connect()
            try:
                self._stream(link)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.lost.append(f"{type(error).__name__}: {error}")
                time.sleep(0.1)
            finally:
                link.close()

    def _stream(self, link: http.client.HTTPConnection) -> None:
        began, n = time.monotonic(), 0
        link.request("POST", "/v1/completions", json.dumps(_STREAM).encode())
        answer = link.getresponse()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.read()[:200]!r}")
        while line := answer.readline():
            if self._stop.is_set() or line == b"data: [DONE]\n":
                return
            if line.startswith(b"data: "):
                self._moved.append(time.monotonic())
                if not n:
                    self.first_tokens.append(self._moved[-1] - began)
                n += 1
                if b'"error"' in line[:20]:
                    raise ValueError(line[:200].decode())
        raise ValueError(f"a stream was cut off after {n} events")
