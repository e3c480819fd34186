"""How fast prefix states are written, read and found, and how long other threads wait meanwhile.

    python -m scripts.bench.prefix_disk [--bytes N] [--directory DIR]

Writes one state of N random bytes (default 1 GB), at the rate of the background and as fast as the disk can,
and reads it, with the file in the cache of the system and without. Another Python thread runs meanwhile: its
longest pause is compared with that of an idle time. Then looks texts up among 100 and 1,000 states. Prints
JSON.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.prefix_disk.disk_store import DiskStore, PrefixRecord

N_IDS, N_SHARED = 8000, 2000  # tokens of a state, and of what all states begin with
_STEP = 0.001  # seconds that the other thread sleeps between two looks at the clock


def random_ids(n: int, seed: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 150_000, n).astype(np.int32)


def longest_pause(act: Callable[[], Any]) -> tuple[Any, float, float]:
    """(what `act` returns, its seconds, the longest time in which another thread did not get to run)."""
    done, gaps = threading.Event(), [0.0]

    def count() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(_STEP)
            now = time.perf_counter()
            gaps.append(now - last - _STEP)
            last = now

    thread = threading.Thread(target=count)
    thread.start()
    began = time.perf_counter()
    found = act()
    seconds = time.perf_counter() - began
    done.set()
    thread.join()
    return found, seconds, max(gaps)


def in_background(store: DiskStore, record: PrefixRecord) -> None:
    """Write at the rate of the background, which `flush` would lift."""
    store.put(record)
    while store.n_written < 1:
        time.sleep(0.01)


def rates(directory: Path, n_bytes: int) -> dict[str, float]:
    """Writing and reading one state."""
    memory = mmap.mmap(-1, n_bytes)
    for begin in range(0, n_bytes, 1 << 24):
        memory[begin : begin + (1 << 24)] = os.urandom(min(1 << 24, n_bytes - begin))
    ids = random_ids(N_IDS, 1)
    record = PrefixRecord("local", ids, {"target": memory}, 600.0)
    found: dict[str, float] = {"idle_pause_ms": 1e3 * longest_pause(lambda: time.sleep(5))[2]}
    for name in ("background", "flush"):
        store = DiskStore(directory, 4 * n_bytes, "key", say=print, reserve_bytes=0)

        def write(store: DiskStore = store, name: str = name) -> None:
            if name == "background":
                in_background(store, record)
            else:
                store.put(record)
                store.flush(300)

        _, seconds, pause = longest_pause(write)
        found |= {f"write_{name}_MB_s": n_bytes / seconds / 1e6, f"write_{name}_pause_ms": 1e3 * pause}
        if name == "background":
            shutil.rmtree(directory)
        else:
            ((state, _),) = store.find("local", ids)
            for cached in (False, True):
                if cached:
                    (directory / state.name).read_bytes()
                read, seconds, pause = longest_pause(lambda: store.read(state))  # noqa: B023
                assert read is not None
                label = "cached" if cached else "cold"
                found |= {
                    f"read_{label}_MB_s": n_bytes / seconds / 1e6,
                    f"read_{label}_pause_ms": 1e3 * pause,
                }
                del read
        store.close()
    return found


def look_ups(directory: Path, n_states: int) -> dict[str, float]:
    """The time of a look-up among states that all begin with the same text."""
    shared = random_ids(N_SHARED, 0)
    store = DiskStore(directory, 1 << 40, "key", reserve_bytes=0)
    texts = [np.concatenate([shared, random_ids(N_IDS - N_SHARED, seed + 1)]) for seed in range(n_states)]
    for ids in texts:
        store.put(PrefixRecord("local", ids, {"target": b"x" * 4096}, 60.0))
        store.flush(60)
    store.close()
    began = time.perf_counter()
    store = DiskStore(directory, 1 << 40, "key", reserve_bytes=0)
    opened = time.perf_counter() - began
    store.flush(60)
    time.sleep(0.5)
    found: dict[str, float] = {"states": len(os.listdir(directory)) - 3, "open_ms": 1e3 * opened}
    requests = {
        "hit": [np.append(ids, ids[:50]) for ids in texts],
        "shared_part": [np.concatenate([shared, random_ids(6000, 10**6 + i)]) for i in range(200)],
        "miss": [random_ids(N_IDS, 10**7 + i) for i in range(200)],
    }
    for name, ids_of in requests.items():
        times = []
        for ids in ids_of[:200]:
            began = time.perf_counter()
            store.find("local", ids)
            times.append(time.perf_counter() - began)
        found |= {f"{name}_median_ms": 1e3 * statistics.median(times), f"{name}_max_ms": 1e3 * max(times)}
    store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--directory", type=Path, help="on the disk to measure (default: a temporary one)")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=given.directory))
    try:
        report: dict[str, Any] = rates(directory / "rates", given.bytes)
        report["look_up"] = [look_ups(directory / f"{n}", n) for n in (100, 1000)]
    finally:
        shutil.rmtree(directory)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
