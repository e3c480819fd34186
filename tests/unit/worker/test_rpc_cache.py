"""Tensors kept by a worker: only what is known to be whole is left for ggml."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specllama.worker.rpc.cache import TensorCache

A, B, C = "00000000000000aa", "00000000000000bb", "00000000000000cc"


@pytest.fixture
def wrote(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file as ggml does, some seconds ago."""

    def write(name: str, size: int, age: float = 5.0) -> Path:
        path = tmp_path / "rpc" / name
        path.write_bytes(b"x" * size)
        then = path.stat().st_mtime - age
        os.utime(path, (then, then))
        return path

    return write


def kept(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {"whole.json"}


def test_what_a_client_sent_is_kept(tmp_path: Path, wrote: Callable[..., Path]) -> None:
    cache = TensorCache(tmp_path / "rpc")
    wrote(A, 10)
    wrote(B, 20)
    cache.settle()
    assert kept(TensorCache(tmp_path / "rpc").root) == {A, B}


def test_what_was_cut_short_is_removed(tmp_path: Path, wrote: Callable[..., Path]) -> None:
    cache = TensorCache(tmp_path / "rpc")
    wrote(A, 10)
    cache.settle()
    wrote(A, 7)  # written anew, and killed
    wrote(B, 20)  # killed before its client left
    wrote("notes.txt", 3)
    assert kept(TensorCache(tmp_path / "rpc").root) == {"notes.txt"}


def test_what_is_still_being_written_is_not_yet_whole(tmp_path: Path, wrote: Callable[..., Path]) -> None:
    cache = TensorCache(tmp_path / "rpc")
    wrote(A, 10)
    wrote(B, 20, age=0)
    cache.settle()
    assert kept(tmp_path / "rpc") == {A, B}
    assert kept(TensorCache(tmp_path / "rpc").root) == {A}


def test_a_full_disk(tmp_path: Path, wrote: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TensorCache(tmp_path / "rpc")
    wrote(A, 10)
    cache.settle()
    wrote(B, 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    cache.settle()
    assert kept(tmp_path / "rpc") == {A}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": []}', json.dumps({A: "10"})])
def test_a_broken_list_is_no_list(tmp_path: Path, wrote: Callable[..., Path], text: str) -> None:
    TensorCache(tmp_path / "rpc")
    wrote(A, 10)
    wrote("whole.json", 1).write_text(text)
    assert kept(TensorCache(tmp_path / "rpc").root) == set()


def test_a_place_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "rpc").write_text("a file")
    with pytest.raises(OSError, match="exists"):
        TensorCache(tmp_path / "rpc")
