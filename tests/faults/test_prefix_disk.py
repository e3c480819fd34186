"""The store of prefix states where processes are killed, disks are full, and directories cannot be used."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specllama.prefix_disk import state_file
from tests.support.examples import examples
from tests.support.paths import ROOT
from tests.support.prefixes import equal, ids, record, states, store, written

TEXT = ids((1, 300))


def forks(*arguments: object) -> dict[str, Any]:
    """The report of tests.support.prefix_forks."""
    line = [sys.executable, "-m", "tests.support.prefix_forks", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_writers_killed_at_random_moments_leave_only_whole_states(tmp_path: Path) -> None:
    n = examples(100)
    found = forks("kills", tmp_path / "p", n)
    assert found["unfinished"] >= 2, "some were killed while they wrote"
    assert found["kept"] >= n


def test_several_processes_share_a_directory(tmp_path: Path) -> None:
    assert forks("several", tmp_path / "p", 4)["kept"] >= 2


def test_what_another_process_writes_is_found(tmp_path: Path) -> None:
    with store(tmp_path) as one:
        assert one.find("local", TEXT) == []
        written(tmp_path, record(TEXT))
        ends = time.monotonic() + 20
        while not one.find("local", TEXT) and time.monotonic() < ends:
            time.sleep(0.01)
        assert equal(one.read(one.find("local", TEXT)[0][0]), record(TEXT))
        for name in states(tmp_path):
            (tmp_path / name).unlink()
        while one.find("local", TEXT) and time.monotonic() < ends:
            time.sleep(0.01)
        assert one.find("local", TEXT) == []


def test_a_directory_that_may_be_read_alone_is_read() -> None:
    directory = Path(tempfile.mkdtemp())  # another user gets into it, unlike pytest's own
    directory.chmod(0o755)
    try:
        written(directory / "p", record(TEXT))
        found = forks("as-nobody", directory / "p")
    finally:
        shutil.rmtree(directory)
    assert found["read"] == [True]
    assert found["flushed"]
    assert not found["again"], "it is not tried again at once"
    assert len(found["lines"]) == 1
    assert "prompts are not kept on disk for now" in found["lines"][0]


def test_a_file_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    found = forks("file-limit", tmp_path / "p")
    assert found["kept"]
    assert found["flushed"]
    assert found["found"] == [True], "what was there before is still there"
    assert found["left"] == []
    assert len(found["lines"]) == 1
    assert "File too large" in found["lines"][0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_an_error_of_the_disk_is_one_line_and_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    now = [0.0]
    clock_lock = threading.Lock()

    def clock() -> float:
        with clock_lock:
            now[0] += 1e-4
            return now[0]

    real, n_writes = os.pwrite, [0]

    def failing(descriptor: int, data: bytes, at: int) -> int:
        n_writes[0] += 1
        if n_writes[0] == 3:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data, at)

    monkeypatch.setattr(state_file.os, "pwrite", failing)
    big = record(TEXT, 6 << 20)
    with store(tmp_path, clock=clock, write_rate=1e12) as one:
        assert one.put(big)
        assert one.flush(20)
        assert one.lines == [  # type: ignore[attr-defined]
            f"prompts are not kept on disk for now: {tmp_path}: {os.strerror(number)}"
        ]
        assert [p.name for p in tmp_path.glob(".*.tmp")] == []
        assert not one.put(big), "the disk is left alone for a while"
        now[0] += 61.0
        assert one.put(big)
        assert one.flush(20)
        assert equal(one.read(one.find("local", TEXT)[0][0]), big)
        assert len(one.lines) == 1  # type: ignore[attr-defined]


def test_a_part_of_the_disk_stays_free(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    first = record(ids((2, 300)), 100_000)
    with store(tmp_path) as one:
        assert one.put(first)
        assert one.flush(20)
    with store(tmp_path, reserve_bytes=2 * free) as one:
        assert one.put(record(TEXT, 100_000, seconds=90.0))
        assert one.flush(20)
        assert one.find("local", TEXT) == []
        assert one.find("local", first.ids), "nothing goes where that is not enough"


def test_a_directory_that_is_removed_is_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "p"
    with store(directory) as one:
        assert one.put(record(TEXT))
        assert one.flush(20)
        secret = one.secret
        ((found, _),) = one.find("local", TEXT)
        shutil.rmtree(directory)
        assert one.read(found) is None
        assert one.put(record(ids((2, 300))))
        assert one.flush(20)
        assert one.find("local", TEXT) == []
        assert one.find("local", ids((2, 300)))
        assert one.secret == secret
    assert (directory / "secret").read_text() == secret.hex()
    with store(directory) as one:
        assert one.find("local", ids((2, 300)))


def test_a_directory_that_became_another_ones_is_not_written(tmp_path: Path) -> None:
    directory = tmp_path / "p"
    with store(directory) as one:
        assert one.put(record(TEXT))
        assert one.flush(20)
        shutil.rmtree(directory)
        written(directory, record(TEXT))
        assert one.put(record(ids((2, 300))))
        assert one.flush(20)
        assert len(one.lines) == 1  # type: ignore[attr-defined]
        for _ in range(20):
            assert all(one.read(found) is None for found, _ in one.find("local", TEXT))
            time.sleep(0.01)
    assert len(states(directory)) == 1, "the other one's is still there"


@pytest.mark.parametrize("at", ["file", "parent", "link"])
def test_a_path_that_cannot_be_a_directory_keeps_nothing(tmp_path: Path, at: str) -> None:
    path = tmp_path / "p"
    if at == "file":
        path.write_text("mine")
    elif at == "parent":
        (tmp_path / "f").write_text("mine")
        path = tmp_path / "f" / "p"
    else:
        path.symlink_to(tmp_path / "nothing")
    with store(path) as one:
        assert one.find("local", TEXT) == []
        one.put(record(TEXT))
        assert one.flush(20)
        assert one.find("local", TEXT) == []
        assert 1 <= len(one.lines) <= 2  # type: ignore[attr-defined]
    assert at != "file" or path.read_text() == "mine"


def test_a_clock_that_was_set_back_changes_nothing(tmp_path: Path) -> None:
    """Files of the future, of the past, and of the same moment go by their use alone."""
    kept = record(ids((1, 300)), 100_000, seconds=5.0)
    written(tmp_path, kept, *(record(ids((n, 300)), 100_000, seed=n, seconds=5.0) for n in (2, 3)))
    for when in (4e9, 0.0, 1e9):
        for name in states(tmp_path):
            os.utime(tmp_path / name, (when, when))
        os.utime(tmp_path, (when, when))
        with store(tmp_path, 420_000) as one:
            for seed in range(10, 16):
                assert equal(one.read(one.find("local", kept.ids)[0][0]), kept)
                assert one.put(record(ids((int(when) % 97 + seed, 300)), 100_000, seed=seed, seconds=5.0))
                assert one.flush(20)
            assert one.find("local", kept.ids)
            assert len(states(tmp_path)) == 4


def test_a_lock_that_another_process_holds_for_ever_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    from specllama.prefix_disk import directory

    written(tmp_path, record(TEXT))
    monkeypatch.setattr(directory, "LOCK_SECONDS", 0.2)
    with FileLock(tmp_path / ".lock"), store(tmp_path) as one:
        found = one.find("local", TEXT)
        assert equal(one.read(found[0][0]), record(TEXT)), "reading needs no lock"
        one.put(record(ids((2, 300))))
        assert one.flush(20)
        assert len(one.lines) == 1  # type: ignore[attr-defined]
        assert "another process holds the lock" in one.lines[0]  # type: ignore[attr-defined]


def test_cleared_while_a_state_is_being_written(tmp_path: Path) -> None:
    with store(tmp_path, write_rate=1 << 20) as one:
        cleared = False
        while not cleared:  # until one is not whole before it is removed, as it may be on a busy machine
            for name in states(tmp_path):
                (tmp_path / name).unlink()
            assert one.put(record(TEXT, 8 << 20))
            while not (writing := list(tmp_path.glob(".*.state.*.tmp"))) and not states(tmp_path):
                time.sleep(0.001)
            with contextlib.suppress(FileNotFoundError):
                for path in writing:
                    path.unlink()
                    cleared = True
            assert one.flush(20)
        assert one.find("local", TEXT) == []
        assert states(tmp_path) == []
