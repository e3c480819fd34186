"""Processes that use a directory of prefix states: forks of this one, which has no threads of its own.

    python -m tests.support.prefix_forks kills DIR N      N writers, each killed at a random moment
    python -m tests.support.prefix_forks several DIR N    N processes that write and read at once
    python -m tests.support.prefix_forks as-nobody DIR    a store in a directory that may not be written
    python -m tests.support.prefix_forks file-limit DIR   a store whose files have 100,000 bytes at most

Prints one JSON object. What a child finds wrong is its exit code and a line on stderr.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import filelock  # noqa: F401 - the store imports it late, when nobody may read the folder it is in

from specllama.prefix_disk.disk_store import DiskStore, PrefixRecord
from tests.support.prefixes import equal, ids, record, states, store

BUDGET = 3_000_000
N_TEXTS = 12


def text_record(n: int) -> PrefixRecord:
    """The record of a text, of several blocks."""
    return record(ids((n, 300 + n)), 400_000 + 90_000 * (n % 9), seed=n)


def fork(act: Callable[[], None]) -> int:
    """Run it in a child; returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        act()
    except BaseException:  # noqa: BLE001 - the exit code says so
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def write_on(directory: Path) -> None:
    """Write and read in random order, until somebody ends this process."""
    rng = random.Random(os.getpid())
    found = DiskStore(directory, BUDGET, "a model", write_rate=rng.choice((10e6, 40e6, 1e9)), reserve_bytes=0)
    while True:
        n = rng.randrange(N_TEXTS)
        found.put(text_record(n))
        for state, _ in found.find("local", ids((n, 300 + n))):
            found.read(state)
        time.sleep(0.002)


def check(directory: Path) -> None:
    """All states are whole and their own, nothing unfinished is left, and the budget holds."""
    with store(directory, BUDGET) as one:
        assert one.flush(20)
        assert one.lines == [], one.lines  # type: ignore[attr-defined]
        ends = time.monotonic() + 20  # the ledger may just be written
        while list(directory.glob(".*.tmp")) and time.monotonic() < ends:
            time.sleep(0.01)
        assert not list(directory.glob(".*.tmp"))
        assert sum((directory / name).stat().st_size for name in states(directory)) <= BUDGET
        n = 0
        for seed in range(N_TEXTS):
            expected = text_record(seed)
            for found, _ in one.find("local", ids((seed, 300 + seed))):
                assert equal(one.read(found), expected)
                n += 1
        assert n == len(states(directory)), "each state belongs to a text"


def kills(directory: Path, n: int) -> dict[str, int]:
    """Kill n writers at random moments, and more (3 n at most) until n states were checked: every second one
    while it writes, one in four whatever it does. Check after each one.
    """
    rng, unfinished, kept = random.Random(7), 0, 0
    for i in range(4 * n):
        if i >= n and kept >= n:
            break
        child = fork(lambda: write_on(directory))
        ends = time.monotonic() + 1.0
        while i % 4 and time.monotonic() < ends and not list(directory.glob(".*.tmp")):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0.0, 0.01) if i % 2 else rng.uniform(0.001, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        unfinished += bool(list(directory.glob(".*.tmp"))) if directory.is_dir() else 0
        assert os.waitstatus_to_exitcode(os.waitpid(fork(lambda: check(directory)), 0)[1]) == 0
        kept += len(states(directory))
    return {"unfinished": unfinished, "kept": kept}


def several(directory: Path, n: int) -> dict[str, int]:
    """Processes at once in one directory; each checks what it reads."""

    def use() -> None:
        rng = random.Random(os.getpid())
        with store(directory, BUDGET, write_rate=1e9) as one:
            for _ in range(40):
                seed = rng.randrange(N_TEXTS)
                one.put(text_record(seed))
                for found, _ in one.find("local", ids((seed, 300 + seed))):
                    read = one.read(found)
                    assert read is None or equal(read, text_record(seed))
                time.sleep(0.004)
            assert one.flush(30)
            assert one.lines == [], one.lines  # type: ignore[attr-defined]

    children = [fork(use) for _ in range(n)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * n, codes
    check_child = os.waitpid(fork(lambda: check(directory)), 0)
    assert os.waitstatus_to_exitcode(check_child[1]) == 0
    return {"kept": len(states(directory))}


def as_nobody(directory: Path) -> dict[str, object]:
    """What a store does in a directory of its user that may be read alone, and with one state in it."""
    if os.geteuid() == 0:
        for path in (directory, *directory.iterdir()):
            os.chown(path, 65534, 65534)
        os.setgid(65534)
        os.setuid(65534)
    directory.chmod(0o500)
    with store(directory) as one:
        found = one.find("local", ids((1, 300)))
        read = [equal(one.read(state), record(ids((1, 300)))) for state, _ in found]
        taken = one.put(record(ids((2, 300))))
        flushed = one.flush(20)
        lines: list[str] = one.lines  # type: ignore[attr-defined]
        again = one.put(record(ids((3, 300))))
    return {"read": read, "taken": taken, "flushed": flushed, "again": again, "lines": lines}


def file_limit(directory: Path) -> dict[str, object]:
    """What a store does where a file cannot be written whole."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with store(directory) as one:
        small, large = record(ids((1, 300)), 50_000), record(ids((2, 300)), 200_000)
        kept = one.put(small) and one.flush(20) and bool(one.find("local", small.ids))
        one.put(large)
        flushed = one.flush(20)
        lines: list[str] = one.lines  # type: ignore[attr-defined]
        found = [equal(one.read(state), small) for state, _ in one.find("local", small.ids)]
        left = [path.name for path in directory.glob(".*.tmp")]
        return {"kept": kept, "flushed": flushed, "lines": lines, "found": found, "left": left}


def main() -> None:
    what, directory = sys.argv[1], Path(sys.argv[2])
    found: dict[str, int] | dict[str, object]
    if what == "kills":
        found = kills(directory, int(sys.argv[3]))
    elif what == "several":
        found = several(directory, int(sys.argv[3]))
    elif what == "as-nobody":
        found = as_nobody(directory)
    else:
        found = file_limit(directory)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
