"""The store: a malformed file is renamed, and a directory that cannot be used is not an error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from specllama.config.store import Store, cache_dir, writing_problem

KEY = {"model": ["m", 7], "threads": 2}


def test_written_values_are_read(tmp_path):
    store = Store(tmp_path / "deep" / "er")
    assert store.read(KEY) == {}
    store.write(KEY, {"t1": 0.5})
    assert store.read({"threads": 2, "model": ["m", 7]})["t1"] == 0.5
    assert store.read({**KEY, "threads": 3}) == {}
    store.write(KEY, {"t1": 0.6})
    assert store.read(KEY)["t1"] == 0.6
    assert [p.suffix for p in store.root.iterdir()] == [".json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"\xff\xfe",
        b"\x00" * 100,
        b'{"schema": 99, "t1": 1}',
        b'{"t1": 1}',
        b"[" * 100_000,
    ],
    ids=lambda c: repr(c[:10]),
)
def test_a_malformed_file_is_renamed(tmp_path, content):
    store = Store(tmp_path)
    store.path(KEY).write_bytes(content)
    assert store.read(KEY) == {}
    assert not store.path(KEY).exists()
    assert store.path(KEY).with_suffix(".broken").read_bytes() == content
    store.write(KEY, {"t1": 1})
    assert store.read(KEY)["t1"] == 1


def test_a_directory_in_place_of_the_file_is_not_an_error(tmp_path):
    store = Store(tmp_path)
    store.path(KEY).mkdir()
    assert store.read(KEY) == {}
    store.write(KEY, {"t1": 1})


def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    store = Store(tmp_path / "file" / "cache")
    store.write(KEY, {"t1": 1})
    assert store.read(KEY) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_not_an_error(tmp_path):
    tmp_path.chmod(0o500)
    Store(tmp_path).write(KEY, {"t1": 1})
    assert Store(tmp_path).read(KEY) == {}


def test_a_file_that_is_too_large_is_renamed(tmp_path):
    store = Store(tmp_path)
    store.path(KEY).write_bytes(b" " * (5 << 20))
    assert store.read(KEY) == {}
    assert [p.suffix for p in tmp_path.iterdir()] == [".broken"]


def test_a_pipe_in_place_of_the_file_does_not_block(tmp_path):
    store = Store(tmp_path)
    os.mkfifo(store.path(KEY))
    assert store.read(KEY) == {}


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def full(self, target):  # noqa: ARG001
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(type(tmp_path), "replace", full)
    Store(tmp_path).write(KEY, {"t1": 1})
    assert list(tmp_path.iterdir()) == []


def test_files_contain_their_key(tmp_path):
    store = Store(tmp_path)
    store.write(KEY, {"t1": 1})
    assert json.loads(store.path(KEY).read_text())["key"] == KEY


def test_values_without_json_form_are_stored_as_text(tmp_path):
    store = Store(tmp_path)
    store.write(KEY, {"path": tmp_path})
    assert store.read(KEY)["path"] == str(tmp_path)


def test_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    assert Store().root == tmp_path / "calibration"
    monkeypatch.delenv("SPECLLAMA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir().name == "specllama"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_cache_where_the_system_makes_no_files_is_reported(tmp_path):
    """As root too, who may write to every directory."""
    assert writing_problem(tmp_path / "a" / "b") == ""
    assert [*tmp_path.iterdir()] == []
    problem = writing_problem(Path("/proc/specllama"))
    assert problem == "cannot be made: /proc cannot be written: No such file or directory"
