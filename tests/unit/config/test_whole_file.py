"""Files are written whole or not at all, and never through a link that stands there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from specllama.config import store
from specllama.config.store import temporary, write_whole


def test_a_link_is_replaced_and_what_it_leads_to_is_kept(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine", "utf-8")
    path = tmp_path / "file"
    path.symlink_to(other)
    write_whole(path, "né\n", 0o600)
    assert other.read_text("utf-8") == "mine"
    assert not path.is_symlink()
    assert path.read_bytes() == "né\n".encode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_a_link_under_the_temporary_name_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that somebody guessed."""
    monkeypatch.setattr(secrets, "token_hex", lambda n: "0" * 2 * n)
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_text("mine", "utf-8")
    path.write_text("old", "utf-8")
    temporary(path).symlink_to(other)
    with pytest.raises(FileExistsError):
        write_whole(path, "new")
    assert (other.read_text("utf-8"), path.read_text("utf-8")) == ("mine", "old")
    assert temporary(path).is_symlink()


def test_names_of_any_length_have_a_temporary_one(tmp_path: Path) -> None:
    for name in ("n" * 255, "名" * 85):
        write_whole(tmp_path / name, "text")
        assert (tmp_path / name).read_text("utf-8") == "text"
    assert temporary(tmp_path / "a") != temporary(tmp_path / "a")


def test_what_is_there_is_kept_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old", "utf-8")

    def full(*_: object, **__: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fdopen", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text("utf-8") == "old"
    assert os.listdir(tmp_path) == ["file"]
