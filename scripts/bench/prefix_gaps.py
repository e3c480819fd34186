"""How long a stream waits while the state of another text is written to the disk, and read from it.

usage: python -m scripts.bench.prefix_gaps [--tokens 4000] [--threads N]

A model of random weights whose cache has 262 kB a token (4,000 tokens: 1.05 GB) runs in an engine process
with two slots and a new directory of prompts. One slot writes a long text, of whose tokens the times are
taken: with nothing else to do; while a text of the other slot gives way to a short one and is kept in memory;
while it is written; after kill -9 and a restart, while it is read from the disk. Prints JSON. Run nothing
else on the machine.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts import cli
from scripts.bench.prefix_restart import ask, wait_for_state
from scripts.bench.random_shapes import SHAPES, write
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings, ModelSettings
from specllama.prefix_disk.directory import default_directory


class Stream:
    """A long text that is being written; times: of its tokens, by time.perf_counter."""

    def __init__(self, client: EngineClient) -> None:
        self.times: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(client,))
        self._thread.start()
        while len(self.times) < 20:
            time.sleep(0.01)

    def _run(self, client: EngineClient) -> None:
        ids = [7 + i % 900 for i in range(64)]
        params = {"max_tokens": 100_000, "temperature": 0.8, "seed": 1, "ignore_eos": True}
        request = m.Generate(client.next_id(), m.MixedInput([ids]), params, kept=False, disk_scope="")
        for event in client.generate(request):
            if isinstance(event, m.Tokens):
                self.times.append(time.perf_counter())
            if self._stop.is_set():
                client.send(m.Cancel(request.id))

    def longest_gap(self, act: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """(what `act` returns, its seconds and the longest time between two tokens meanwhile)."""
        began = time.perf_counter()
        found = act()
        ended = time.perf_counter()
        time.sleep(0.2)
        inside = [t for t in self.times if began - 0.2 <= t <= ended + 0.2]
        gaps = [b - a for a, b in pairwise(inside)]
        return found, {"seconds": round(ended - began, 3), "longest_gap": round(max(gaps, default=9e9), 3)}

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)


def measure(path: Path, n_tokens: int, n_threads: int) -> dict[str, Any]:
    target = ModelSettings(path=str(path), n_ctx=2 * n_tokens + 8192, n_threads=n_threads)
    settings = LoadSettings(
        target=target,
        n_slots=2,
        drafters=(),
        memory=False,
        calibrate=False,
        cache_disk=1 << 34,
        kept_seconds=0.0,
    )
    text = [5 + i * 7 % 900 for i in range(n_tokens)]
    other = [9 + i * 5 % 900 for i in range(200)]
    found: dict[str, Any] = {"state_bytes": n_tokens * SHAPES["cells"].bytes_per_token}
    client = EngineClient()
    try:
        client.load(settings)
        ask(client, text, 1)
        stream = Stream(client)
        wait_for_state()  # an engine that is never idle writes between rounds
        found["nothing"] = stream.longest_gap(lambda: time.sleep(5))[1]
        more = [*text, *other]
        ask(client, more[: n_tokens + 100], 1)
        for state in default_directory().glob("*.state"):
            state.unlink()
        found["give_way"] = stream.longest_gap(lambda: ask(client, other, 1))[1]
        found["written"] = stream.longest_gap(lambda: time.sleep(20))[1]
        found["n_written"] = len(list(default_directory().glob("*.state")))
        stream.end()
        os.kill(client.pid, signal.SIGKILL)
    finally:
        client.close()
    client = EngineClient()
    try:
        client.load(settings)
        stream = Stream(client)
        (done, _), found["read"] = stream.longest_gap(lambda: ask(client, [*text, *other[:8]], 1))
        found["n_reused"] = done.stats.n_reused
        stream.end()
    finally:
        client.close()
    return found


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SPECLLAMA_CACHE"] = directory
        path = write(Path(directory) / "cells.gguf", SHAPES["cells"])
        print(json.dumps(measure(path, given.tokens, given.threads), indent=2))


if __name__ == "__main__":
    main()
