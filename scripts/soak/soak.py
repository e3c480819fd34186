"""A soak from its start to its verdict: a server, clients, kills, figures of health and memory.

The engine process is killed in the first third of the time and behind its end; in between one process lives,
over which memory is measured.
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

from scripts.soak.clients import COMPLETIONS, Client, Tally
from scripts.soak.health import EVERY, Look, Watcher, percentile
from tests.support.serving import Server

MB = 1 << 20
_REST = 20.0  # seconds for what runs at the end
_KILLING = 0.25  # share of the time in which engines are killed at the beginning
_WARM = 75.0  # seconds of work by which an engine has touched all of its buffers and caches
_POINTS = 60  # of the curves of memory in the report


@dataclass(frozen=True)
class Limits:
    """What is a violation. health_ms: p99 of /health while there is an engine. dead_seconds: from a kill to
    the first 503. growth_mb: of the resident memory of a process; steady_mb: what of it comes by and by, as
    from a leak, and not at once with the first request of its kind.
    """

    health_ms: float = 50.0
    dead_seconds: float = 1.0
    growth_mb: float = 5.0
    steady_mb: float = 5.0


class Sample(NamedTuple):
    """Resident memory (bytes) at a time."""

    at: float
    front: int
    engine: int
    pid: int


@dataclass
class Soak:
    """One run. seconds: until memory is measured for the last time; kills take a twentieth more."""

    home: Path
    seconds: float
    n_clients: int
    seed: int = 1
    limits: Limits = Limits()
    flags: Sequence[str] = ()
    say: Callable[[str], None] = lambda _: None
    samples: list[Sample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """The figures, with `violations`, none of which there should be."""
        tally, over = Tally(), threading.Event()
        with Server(self.home, *self.flags) as server:
            watcher = Watcher(server.host, server.port)
            watching = threading.Thread(target=self._watch, args=(watcher,), daemon=True)
            watching.start()
            began = time.monotonic()
            clients = [
                Client(server.connect, self.seed * 1000 + i, tally, over) for i in range(self.n_clients)
            ]
            for client in clients:
                client.start()
            try:
                self._go_on(server, began, tally)
            finally:
                over.set()
                for client in clients:
                    client.join(_REST + 10)
            if any(client.is_alive() for client in clients):
                tally.wrong("a request had not ended at the end")
            left = self._what_is_left(server)
            watcher.close()
            watching.join()
            code = server.stop(signal.SIGTERM)
        said = [line for line in server.lines if "unexpected" in line or "Traceback" in line]
        if code != 143:
            left.append(f"the exit code is {code} after SIGTERM, not 143")
        return self._report(began, tally, [*left, *said])

    def _watch(self, watcher: Watcher) -> None:
        try:
            while True:
                self.looks.append(watcher.poll())
        except ValueError:  # it has ended
            return

    def _kill_times(self) -> list[float]:
        """Seconds from the start."""
        r, found = random.Random(self.seed), list[float]()
        at = 0.05 * self.seconds
        while at < _KILLING * self.seconds:
            found.append(at)
            at += min(r.uniform(0.06, 0.1) * self.seconds, r.uniform(70, 110))
        return [*found, self.seconds + 0.5]

    @property
    def _settled(self) -> float:
        """Seconds after which memory is measured: a third of the time, and the engine is warm by then."""
        return max(self.seconds / 3, _KILLING * self.seconds + min(_WARM, 0.35 * self.seconds))

    def _go_on(self, server: Server, began: float, tally: Tally) -> None:
        """Kill, sample, say how it goes, until the time is over."""
        kills, front = self._kill_times(), psutil.Process(server.process.pid)
        end, said = began + 1.05 * self.seconds + 5, began
        while (now := time.monotonic()) < end:
            engine = next(iter(front.children()), None)
            if engine is not None:
                self._sample(now, front, engine)
                if kills and now - began >= kills[0]:
                    kills.pop(0)
                    self.kills.append(time.monotonic())
                    os.kill(engine.pid, signal.SIGKILL)
            if now - said > 60:
                said = now
                self.say(f"{(now - began) / 60:.0f} min: {dict(tally.ends)}, {len(self.kills)} kills")
            time.sleep(0.5)

    def _sample(self, now: float, front: psutil.Process, engine: psutil.Process) -> None:
        try:
            sizes = front.memory_info().rss, engine.memory_info().rss
        except psutil.NoSuchProcess:
            return
        self.samples.append(Sample(now, *sizes, engine.pid))

    def _what_is_left(self, server: Server) -> list[str]:
        """Violations of a server whose clients have gone."""
        try:
            server.until(lambda: server.get("/health").status == 200, 60)
            server.until(lambda: not any(s["is_processing"] for s in server.get("/slots").json), _REST)
            server.until(lambda: server.samples()["specllama_texts_waiting"] == 0, _REST)
            server.until(lambda: server.samples()["specllama_texts_running"] == 0, _REST)
        except AssertionError:
            return [f"texts are left: {server.get('/slots').json}"]
        n_ctx = server.get("/props").json["default_generation_settings"]["n_ctx"]
        body = {"prompt": [100 + i % 500 for i in range(n_ctx - 8)], "max_tokens": 4, "ignore_eos": True}
        answer = server.post(COMPLETIONS, body)  # needs the whole cache
        if answer.status != 200 or answer.json["usage"]["completion_tokens"] != 4:
            return [f"the cache has lost cells: {answer.body!r}"]
        return []

    def _report(self, began: float, tally: Tally, more: list[str]) -> dict[str, Any]:
        violations = [*tally.violations, *more]
        if not tally.ends["text"]:
            violations.append("nothing was answered")
        found = {
            "schema": "specllama.soak/1",
            "seconds": self.seconds,
            "clients": self.n_clients,
            "seed": self.seed,
            "requests": dict(tally.ends),
            "kills": self._kill_figures(violations),
            "health": self._health(violations),
            "memory": self._memory(began, violations),
        }
        return {**found, "memory_mb": self._curve(began), "violations": violations}

    def _curve(self, began: float) -> list[tuple[float, float, float]]:
        """Seconds, and the size of front and engine process then: some of the samples."""
        some = self.samples[:: max(1, len(self.samples) // _POINTS)]
        return [(round(s.at - began, 1), round(s.front / MB, 1), round(s.engine / MB, 1)) for s in some]

    def _kill_figures(self, violations: list[str]) -> list[dict[str, float | None]]:
        found = []
        for at in self.kills:
            later = [look for look in self.looks if look.at + look.seconds >= at]
            dead = next((look.at + look.seconds - at for look in later if look.status == 503), None)
            again = next((x.at - at for x in later if x.status == 200 and dead and x.at > at + dead), None)
            if dead is None or dead > self.limits.dead_seconds:
                violations.append(
                    f"/health said 503 {'never' if dead is None else f'{dead:.2f} s'} after a kill"
                )
            found.append({"dead_seconds": dead, "back_seconds": again})
        return found

    def _health(self, violations: list[str]) -> dict[str, float]:
        times = [1000 * look.seconds for look in self.looks if look.status == 200]
        p99 = percentile(times, 0.99)
        if p99 > self.limits.health_ms:
            violations.append(f"/health took {p99:.1f} ms (p99)")
        if unanswered := sum(look.status not in (200, 503) for look in self.looks):
            violations.append(f"/health was not answered {unanswered} times")
        if len(self.looks) < 0.5 * self.seconds / EVERY:
            violations.append(f"/health was asked {len(self.looks)} times only")
        longest = max(times, default=0.0)
        return {"n": len(self.looks), "p50_ms": percentile(times, 0.5), "p99_ms": p99, "max_ms": longest}

    def _memory(self, began: float, violations: list[str]) -> dict[str, Any]:
        """Over the time in which nothing was killed: medians of its tenths, the last against the first. It
        grows by and by as far as half of the tenths have it.
        """
        begin, end = began + self._settled, began + self.seconds
        quiet = [s for s in self.samples if begin <= s.at < end]
        edges = [len(quiet) * i // 10 for i in range(11)]
        if len({s.pid for s in quiet}) != 1:
            violations.append("the engine process did not live through the time in which nothing was killed")
            return {}
        found: dict[str, Any] = {"from_second": self._settled, "samples": len(quiet)}
        for name in ("front", "engine"):
            sizes = [getattr(s, name) / MB for s in quiet]
            tenths = [statistics.median(sizes[a:b]) for a, b in pairwise(edges) if a < b]
            before, after = tenths[0], tenths[-1]
            steady = statistics.median([b - a for a, b in pairwise(tenths)] or [0.0]) * (len(tenths) - 1)
            if after - before >= self.limits.growth_mb:
                violations.append(f"the {name} process grew by {after - before:.1f} MB")
            elif steady >= self.limits.steady_mb:
                violations.append(f"the {name} process grows by and by, {steady:.1f} MB")
            found[name] = {
                "before_mb": before, "after_mb": after, "growth_mb": after - before, "steady_mb": steady
            }  # fmt: skip
        return found
