"""Texts of earlier requests on disk: what comes back, for whom, within which bounds, after which damage."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specllama.clock import running_time
from specllama.prefix_disk import memory_store
from specllama.prefix_disk.directory import MEMORY, StateDirectory, clear
from specllama.prefix_disk.memory_store import MemoryStore, listed_memories
from specllama.prefix_disk.scopes import LOCAL, SHARED

ONE, TWO = list(range(100, 130)), list(range(5, 12))
LONG = 60.0  # seconds, so that nothing is given up on a busy machine


@contextmanager
def opened(folder: Path, key: str = "a model", lines: list[str] | None = None) -> Iterator[MemoryStore]:
    store = MemoryStore(folder, key, "Model Q4_0", (lines if lines is not None else []).append)
    yield store
    store.close(LONG)


def written(
    folder: Path, *texts: list[int], owner: str = "", scope: str = LOCAL, key: str = "a model"
) -> None:
    with opened(folder, key) as store:
        store.note_scope(owner, scope)
        for text in texts:
            store.add(owner, text)


def loaded(folder: Path, owner: str = "", scope: str = LOCAL, key: str = "a model") -> list[list[int]]:
    with opened(folder, key) as store:
        store.note_scope(owner, scope)
        return [list(text) for text in store.load(owner)]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if MEMORY.fullmatch(path.name)]


def test_texts_come_back_the_oldest_first(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    assert loaded(folder) == []
    assert not folder.exists(), "reading creates nothing"
    written(folder, ONE)
    written(folder, TWO)
    assert loaded(folder) == [ONE, TWO]
    (file,) = files(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_nobody_reads_what_is_anothers(tmp_path: Path) -> None:
    written(tmp_path, ONE, owner="key 1", scope="aaaa")
    written(tmp_path, TWO, owner="key 2", scope="bbbb")
    assert loaded(tmp_path, "key 1", "aaaa") == [ONE]
    assert loaded(tmp_path, "key 1", "bbbb") == [TWO], "the scope counts, not the place in the list of keys"
    assert loaded(tmp_path, "key 2", LOCAL) == []
    assert loaded(tmp_path, "key 1", "aaaa", key="another model") == []
    names = {path.name for path in files(tmp_path)}
    assert len(names) == 2
    assert not any("aaaa" in name for name in names)


@pytest.mark.parametrize("scope", ["", SHARED])
def test_without_a_scope_of_its_own_nothing_is_kept(tmp_path: Path, scope: str) -> None:
    written(tmp_path / "prefixes", ONE, scope=scope)
    assert not (tmp_path / "prefixes").exists()
    assert loaded(tmp_path / "prefixes", scope=scope) == []


def test_only_the_latest_ids_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store, "MOST_IDS", 40)
    written(tmp_path, ONE, TWO, ONE)
    assert loaded(tmp_path) == [ONE[-1:], TWO, ONE]
    written(tmp_path, list(range(1000)))
    assert loaded(tmp_path) == [list(range(961, 1000))]


def test_only_some_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store, "MOST_FILES", 2)
    for scope in "abc":
        old = set(files(tmp_path))
        for path in old:
            os.utime(path, (path.stat().st_mtime - 100,) * 2)
        written(tmp_path, ONE, scope=scope)
    assert loaded(tmp_path, scope="a") == []
    assert loaded(tmp_path, scope="c") == [ONE]


def test_a_damaged_file_is_ignored_and_replaced(tmp_path: Path) -> None:
    written(tmp_path, ONE)
    (file,) = files(tmp_path)
    data, rng = file.read_bytes(), random.Random(3)
    for cut in (0, 5, 19, 60, len(data) - 1):
        file.write_bytes(data[:cut])
        assert loaded(tmp_path) == [], cut
    for _ in range(40):
        at = rng.randrange(len(data))
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        assert loaded(tmp_path) == [], at
    file.write_bytes(data + bytes(8 << 20))
    assert loaded(tmp_path) == []
    assert listed_memories(StateDirectory(tmp_path)) == []
    written(tmp_path, TWO)
    assert loaded(tmp_path) == [TWO]


def test_something_else_in_its_place_is_ignored(tmp_path: Path) -> None:
    written(tmp_path, ONE)
    (file,) = files(tmp_path)
    other = tmp_path / "other"
    file.rename(other)
    file.symlink_to(other)
    assert loaded(tmp_path) == []
    file.unlink()
    os.mkfifo(file)
    assert loaded(tmp_path) == []
    written(tmp_path, TWO)
    assert loaded(tmp_path) == [TWO]


def test_a_file_under_another_name_is_ignored(tmp_path: Path) -> None:
    written(tmp_path, ONE, scope="a")
    (file,) = files(tmp_path)
    written(tmp_path, TWO, scope="b")
    (other,) = (path for path in files(tmp_path) if path != file)
    other.write_bytes(file.read_bytes())
    assert loaded(tmp_path, scope="b") == []


def test_what_a_killed_process_has_left_is_swept(tmp_path: Path) -> None:
    written(tmp_path, ONE)
    torn = tmp_path / f".{'0' * 32}.memory.{'1' * 16}.tmp"
    torn.write_bytes(b"half")
    directory = StateDirectory(tmp_path)
    directory.open(create=False)
    assert directory.sweep() == 1
    assert not torn.exists()
    assert loaded(tmp_path) == [ONE]


def test_files_are_listed_and_cleared(tmp_path: Path) -> None:
    written(tmp_path, ONE, TWO)
    (one,) = listed_memories(StateDirectory(tmp_path))
    assert (one.model, one.n_tokens) == ("Model Q4_0", len(ONE) + len(TWO))
    assert one.n_bytes == files(tmp_path)[0].stat().st_size
    assert clear(StateDirectory(tmp_path)) == (1, one.n_bytes)
    assert loaded(tmp_path) == []


def test_a_disk_that_fails_is_said_once_and_costs_nothing_else(tmp_path: Path) -> None:
    folder, lines = tmp_path / "prefixes", list[str]()
    folder.write_text("a file")
    with opened(folder, lines=lines) as store:
        store.note_scope("", LOCAL)
        assert store.load("") == []
        store.add("", ONE)
        store.close(LONG)
        assert len(lines) == 1
        assert lines[0].startswith("answers are not kept on disk")


def test_two_processes_write_to_the_same_file(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as other:
        for store, text in ((one, ONE), (other, TWO)):
            store.note_scope("", LOCAL)
            store.add("", text)
        one.close(LONG)
        other.close(LONG)
        assert sorted(map(list, one.load(""))) == sorted([ONE, TWO])


def test_no_text_is_lost_between_its_marks() -> None:
    assert memory_store._texts(array("i", [-1, 1, 2, -1, 3, -1])) == [array("i", [1, 2]), array("i", [3])]
    assert memory_store._texts(array("i", [7, -1, 1])) == [array("i", [7]), array("i", [1])]
    assert memory_store._texts(array("i")) == []


def test_an_unexpected_error_is_one_line_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ImportError("no module")

    monkeypatch.setattr(memory_store, "write_whole", broken)
    lines = list[str]()
    with opened(tmp_path / "p", lines=lines) as store:
        store.note_scope("", LOCAL)
        store.add("", ONE)
        began = running_time()
    assert running_time() - began < LONG / 2, "it waits for a thread that is gone"
    (line,) = lines
    assert line.endswith("ImportError('no module')")
