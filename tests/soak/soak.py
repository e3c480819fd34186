"""Runs a soak test and checks its results: a server, its clients, kills of its engine, health and memory.

The engine process is killed several times in the first third of the time and once after the end; in between
one process lives, whose memory is measured.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.soak.bystander import Bystander
from tests.soak.costly_client import CostlyClient
from tests.soak.load_client import COMPLETIONS, LoadClient, Outcomes
from tests.support.health import HealthPoller, HealthReply, quantile
from tests.support.serving import Api, Server

MB = 1 << 20
_POLL_EVERY = 0.1  # seconds between requests of /health
_DRAIN = 20.0  # seconds for the last requests to end
_KILL_SHARE = 0.25  # of the time, at its beginning, in which engines are killed
_WARM_UP = 75.0  # seconds after which an engine has touched all of its buffers and caches
_KEY, _COSTLY_KEY, _STREAM_KEY = "ordinary", "costly", "streaming"  # of the clients, if some are costly
_POINTS = 60  # of the memory curves in the report


@dataclass(frozen=True)
class Limits:
    """What counts as a violation.

    health_ms: p99 latency of /health while there is an engine. dead_seconds: from a kill to the first 503.
    growth_mb: of the resident memory of a process, in a run without costly clients; steady_mb: the part of it
    that grows steadily, as a leak does, and not in one step with the first request of its kind. gap_seconds,
    peak_mb: with costly clients, the longest gap of another client's stream, and the most that the front's
    memory grows.
    """

    health_ms: float = 50.0
    dead_seconds: float = 1.0
    growth_mb: float = 5.0
    steady_mb: float = 5.0
    gap_seconds: float = 1.0
    peak_mb: float = 200.0


class Sample(NamedTuple):
    """Resident memory in bytes of the front and the engine process `pid`. at: seconds, monotonic."""

    at: float
    front: int
    engine: int
    pid: int


@dataclass
class Soak:
    """A run. seconds: until the last sample of memory; the last kill takes a twentieth more. n_costly: how
    many of the clients send the costliest bodies all the time; with any, no engine is killed.
    """

    home: Path
    seconds: float
    n_clients: int
    seed: int = 1
    n_costly: int = 0
    limits: Limits = Limits()
    flags: Sequence[str] = ()
    progress: Callable[[str], None] = lambda _: None
    samples: list[Sample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    replies: list[HealthReply] = field(default_factory=list)
    costly: dict[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """The report; `violations` is empty if all requirements hold."""
        outcomes, stop = Outcomes(), threading.Event()
        env = {"SPECLLAMA_API_KEY": f"{_KEY},{_COSTLY_KEY},{_STREAM_KEY}"} if self.n_costly else {}
        # Evaluated prompts may fill a quarter of the free memory, which is no leak: here they are evicted.
        with Server(self.home, "--cache-ram", "1", *self.flags, env=env) as server:
            server.key = _KEY if self.n_costly else ""
            poller = HealthPoller(server.host, server.port, _POLL_EVERY)
            self.replies = poller.replies
            began = time.monotonic()
            clients: list[LoadClient | CostlyClient] = [
                LoadClient(server.connect, self.seed * 1000 + i, outcomes, stop)
                for i in range(self.n_costly, self.n_clients)
            ]
            other = Api(server.host, server.port, _COSTLY_KEY)
            costly = [CostlyClient(other, self.seed + i, outcomes, stop) for i in range(self.n_costly)]
            clients += costly
            for client in clients:
                client.start()
            try:
                if costly:
                    self._watch(server, began, costly, outcomes)
                else:
                    self._work(server, began, outcomes)
            finally:
                stop.set()
                for client in clients:
                    client.join(_DRAIN + 10)
            if any(client.is_alive() for client in clients):
                outcomes.add_violation("a request did not end")
            problems = self._leftovers(server)
            poller.close()
            code = server.stop(signal.SIGTERM)
        logged = [line for line in server.lines if "unexpected" in line or "Traceback" in line]
        if code != 143:
            problems.append(f"the exit code is {code} after SIGTERM, not 143")
        return self._report(began, outcomes, [*problems, *logged])

    def _kill_times(self) -> list[float]:
        """Seconds from the start."""
        if self.n_costly:
            return []
        r, found = random.Random(self.seed), list[float]()
        at = 0.05 * self.seconds
        while at < _KILL_SHARE * self.seconds:
            found.append(at)
            at += min(r.uniform(0.06, 0.1) * self.seconds, r.uniform(70, 110))
        return [*found, self.seconds + 0.5]

    @property
    def _settled(self) -> float:
        """Seconds after which memory is measured: at least a third of the time, and the engine is warm."""
        return max(self.seconds / 3, _KILL_SHARE * self.seconds + min(_WARM_UP, 0.35 * self.seconds))

    def _work(self, server: Server, began: float, outcomes: Outcomes) -> None:
        """Kills engines, samples memory and reports progress until the time is over."""
        kills, front = self._kill_times(), psutil.Process(server.process.pid)
        end, reported = began + 1.05 * self.seconds + 5, began
        while (now := time.monotonic()) < end:
            engine = next(iter(front.children()), None)
            if engine is not None:
                self._sample(now, front, engine)
                if kills and now - began >= kills[0]:
                    kills.pop(0)
                    self.kills.append(time.monotonic())
                    os.kill(engine.pid, signal.SIGKILL)
            if now - reported > 60:
                reported = now
                self.progress(
                    f"{(now - began) / 60:.0f} min: {dict(outcomes.counts)}, {len(self.kills)} kills"
                )
            time.sleep(0.5)

    def _watch(
        self, server: Server, began: float, clients: Sequence[CostlyClient], outcomes: Outcomes
    ) -> None:
        """Streams while the costly clients run, and measures that stream until the time is over."""
        streaming = Api(server.host, server.port, _STREAM_KEY)
        with Bystander(streaming.connect, server.process.pid) as bystander:
            self._work(server, began, outcomes)
            noticed = bystander.noticed(began, time.monotonic() - 1)
        slowest = {
            name: max(s for client in clients for s in client.seconds.get(name, [0.0]))
            for client in clients
            for name in client.seconds
        }
        first = bystander.first_tokens
        self.costly = {
            "clients": len(clients),
            "streams": len(first),
            "first_token_p50_ms": 1000 * quantile(first, 0.5),
            "first_token_p99_ms": 1000 * quantile(first, 0.99),
            "longest_gap_seconds": noticed.gap,
            "front_peak_mb": noticed.growth / MB,
            "slowest_seconds": dict(sorted(slowest.items(), key=lambda item: -item[1])[:10]),
        }
        for lost in bystander.lost:
            outcomes.add_violation(f"the bystander's stream: {lost}")
        if noticed.gap > self.limits.gap_seconds:
            outcomes.add_violation(f"the bystander's stream stood still for {noticed.gap:.2f} s")
        if noticed.growth > self.limits.peak_mb * MB:
            outcomes.add_violation(f"the front's memory grew by {noticed.growth / MB:.0f} MB")

    def _sample(self, now: float, front: psutil.Process, engine: psutil.Process) -> None:
        try:
            sizes = front.memory_info().rss, engine.memory_info().rss
        except psutil.NoSuchProcess:
            return
        self.samples.append(Sample(now, *sizes, engine.pid))

    def _leftovers(self, server: Server) -> list[str]:
        """Violations after the clients are gone: busy slots, waiting texts, lost cache cells."""
        try:
            server.until(lambda: server.get("/health").status == 200, 60)
            server.until(lambda: not any(s["is_processing"] for s in server.get("/slots").json), _DRAIN)
            server.until(lambda: server.samples()["specllama_texts_waiting"] == 0, _DRAIN)
            server.until(lambda: server.samples()["specllama_texts_running"] == 0, _DRAIN)
        except AssertionError:
            return [f"texts are left: {server.get('/slots').json}"]
        n_ctx = server.get("/props").json["default_generation_settings"]["n_ctx"]
        body = {"prompt": [100 + i % 500 for i in range(n_ctx - 8)], "max_tokens": 4, "ignore_eos": True}
        answer = server.post(COMPLETIONS, body)  # needs the whole cache
        if answer.status != 200 or answer.json["usage"]["completion_tokens"] != 4:
            return [f"the cache has lost cells: {answer.body!r}"]
        return []

    def _report(self, began: float, outcomes: Outcomes, more: list[str]) -> dict[str, Any]:
        violations = [*outcomes.violations, *more]
        if not outcomes.counts["text"]:
            violations.append("nothing was answered")
        found = {
            "schema": "specllama.soak/1",
            "seconds": self.seconds,
            "clients": self.n_clients,
            "costly": self.costly,
            "seed": self.seed,
            "requests": dict(outcomes.counts),
            "kills": self._kill_figures(violations),
            "health": self._health(violations),
            "memory": self._memory(began, violations),
        }
        return {**found, "memory_mb": self._curve(began), "violations": violations}

    def _curve(self, began: float) -> list[tuple[float, float, float]]:
        """(seconds, MB of the front, MB of the engine process) for some of the samples."""
        some = self.samples[:: max(1, len(self.samples) // _POINTS)]
        return [(round(s.at - began, 1), round(s.front / MB, 1), round(s.engine / MB, 1)) for s in some]

    def _kill_figures(self, violations: list[str]) -> list[dict[str, float | None]]:
        found = []
        for at in self.kills:
            later = [r for r in self.replies if r.at + r.seconds >= at]
            dead = next((r.at + r.seconds - at for r in later if r.status == 503), None)
            back = next((r.at - at for r in later if r.status == 200 and dead and r.at > at + dead), None)
            if dead is None or dead > self.limits.dead_seconds:
                violations.append(
                    f"/health answered 503 {'never' if dead is None else f'{dead:.2f} s'} after a kill"
                )
            found.append({"dead_seconds": dead, "back_seconds": back})
        return found

    def _health(self, violations: list[str]) -> dict[str, float]:
        times = [1000 * r.seconds for r in self.replies if r.status == 200]
        p99 = quantile(times, 0.99)
        if p99 > self.limits.health_ms:
            violations.append(f"/health took {p99:.1f} ms (p99)")
        if unanswered := sum(r.status not in (200, 503) for r in self.replies):
            violations.append(f"/health was not answered {unanswered} times")
        if len(self.replies) < 0.5 * self.seconds / _POLL_EVERY:
            violations.append(f"/health was requested only {len(self.replies)} times")
        longest = max(times, default=0.0)
        return {"n": len(self.replies), "p50_ms": quantile(times, 0.5), "p99_ms": p99, "max_ms": longest}

    def _memory(self, began: float, violations: list[str]) -> dict[str, Any]:
        """Growth over the time without kills: the median of its last tenth against that of its first. The
        steady part is the median growth from tenth to tenth, times their number.
        """
        begin, end = began + self._settled, began + self.seconds
        quiet = [s for s in self.samples if begin <= s.at < end]
        edges = [len(quiet) * i // 10 for i in range(11)]
        if len({s.pid for s in quiet}) != 1:
            violations.append("the engine process did not survive the time without kills")
            return {}
        found: dict[str, Any] = {"from_second": self._settled, "samples": len(quiet)}
        for name in ("front", "engine"):
            sizes = [getattr(s, name) / MB for s in quiet]
            tenths = [statistics.median(sizes[a:b]) for a, b in pairwise(edges) if a < b]
            before, after = tenths[0], tenths[-1]
            steady = statistics.median([b - a for a, b in pairwise(tenths)] or [0.0]) * (len(tenths) - 1)
            if after - before >= self.limits.growth_mb and not self.n_costly:
                violations.append(f"the {name} process grew by {after - before:.1f} MB")
            elif steady >= self.limits.steady_mb:
                violations.append(f"the {name} process grows steadily, {steady:.1f} MB")
            found[name] = {
                "before_mb": before, "after_mb": after, "growth_mb": after - before, "steady_mb": steady
            }  # fmt: skip
        return found
