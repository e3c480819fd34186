"""The tensor cache of an RPC worker: only files known to be complete are left for ggml."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specllama.worker.rpc import TensorCache

AT_ONCE: Callable[[float], object] = bool  # instead of waiting
A, B, C = "00000000000000aa", "00000000000000bb", "00000000000000cc"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file as ggml does, `age` seconds ago."""

    def write(name: str, size: int, age: float = 5.0) -> Path:
        path = tmp_path / "rpc" / name
        path.write_bytes(b"x" * size)
        then = path.stat().st_mtime - age
        os.utime(path, (then, then))
        return path

    return write


def kept(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {"whole.json"}


def test_files_of_a_client_that_has_left_are_kept(tmp_path: Path, write: Callable[..., Path]) -> None:
    cache = TensorCache(tmp_path / "rpc")
    write(A, 10)
    write(B, 20)
    cache.settle(AT_ONCE)
    assert kept(TensorCache(tmp_path / "rpc").root) == {A, B}


def test_truncated_files_are_removed(tmp_path: Path, write: Callable[..., Path]) -> None:
    cache = TensorCache(tmp_path / "rpc")
    write(A, 10)
    cache.settle(AT_ONCE)
    write(A, 7)  # rewritten, and killed meanwhile
    write(B, 20)  # killed before its client left
    write("notes.txt", 3)
    assert kept(TensorCache(tmp_path / "rpc").root) == {"notes.txt"}


def test_a_list_that_is_too_long_is_not_read(tmp_path: Path, write: Callable[..., Path]) -> None:
    cache = TensorCache(tmp_path / "rpc")
    write(A, 10)
    cache.settle(AT_ONCE)
    os.truncate(tmp_path / "rpc" / "whole.json", 1 << 40)
    assert kept(TensorCache(tmp_path / "rpc").root) == set()


def test_a_file_still_being_written_is_not_yet_complete(tmp_path: Path, write: Callable[..., Path]) -> None:
    cache = TensorCache(tmp_path / "rpc")
    write(A, 10)
    write(B, 20)
    cache.settle(lambda _: write(B, 30))
    assert kept(tmp_path / "rpc") == {A, B}
    assert kept(TensorCache(tmp_path / "rpc").root) == {A}


def test_a_wrong_time_of_day_changes_nothing(tmp_path: Path, write: Callable[..., Path]) -> None:
    """The clock of the system may jump while files are written."""
    cache = TensorCache(tmp_path / "rpc")
    write(A, 10, age=-86400)
    write(B, 20, age=86400)
    cache.settle(lambda _: write(B, 30, age=86400 - 1))
    assert kept(TensorCache(tmp_path / "rpc").root) == {A}


def test_it_waits_a_second_for_more_of_a_file(tmp_path: Path) -> None:
    waited: list[float] = []
    TensorCache(tmp_path / "rpc").settle(waited.append)
    assert waited == [1.0]


def test_on_a_full_disk_new_files_are_removed(
    tmp_path: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TensorCache(tmp_path / "rpc")
    write(A, 10)
    cache.settle(AT_ONCE)
    write(B, 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    cache.settle(AT_ONCE)
    assert kept(tmp_path / "rpc") == {A}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": []}', json.dumps({A: "10"})])
def test_a_malformed_list_counts_as_empty(tmp_path: Path, write: Callable[..., Path], text: str) -> None:
    TensorCache(tmp_path / "rpc")
    write(A, 10)
    write("whole.json", 1).write_text(text)
    assert kept(TensorCache(tmp_path / "rpc").root) == set()


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rpc").write_text("a file")
    with pytest.raises(OSError, match="exists"):
        TensorCache(tmp_path / "rpc")
