"""The room on disk where the user has set none, and files of slots that a client has named."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from specllama.prefix_disk.directory import automatic_budget
from specllama.prefix_disk.disk_store import read_slot_file, write_slot_file
from specllama.prefix_disk.state_file import BadStateFileError
from tests.support.prefixes import equal, ids, record


def test_the_room_is_a_tenth_of_the_free_disk_and_at_most_8_gb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk(free: int) -> None:
        usage = shutil._ntuple_diskusage(10**12, 0, free)  # type: ignore[attr-defined]
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    disk(5 * 10**9)
    assert automatic_budget(tmp_path) == 5 * 10**8
    assert automatic_budget(tmp_path, held=10**9) == 6 * 10**8, "what is there already would be free without"
    disk(10**12)
    assert automatic_budget(tmp_path) == 8 * 10**9


def test_a_directory_that_is_not_there_yet_has_the_room_of_its_parent(tmp_path: Path) -> None:
    assert automatic_budget(tmp_path / "a" / "b") > 0


def test_a_saved_slot_is_read_again(tmp_path: Path) -> None:
    saved = record(ids((1, 500)), 1_100_000, scope="owner", draft_bytes=50)
    path = tmp_path / "sub" / "slot.bin"
    n_bytes = write_slot_file(path, saved, "key", "a model")
    assert n_bytes == path.stat().st_size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert equal(read_slot_file(path, "key", "owner", 2_000_000), saved)
    copied = tmp_path / "copy"
    shutil.copy(path, copied)
    assert equal(read_slot_file(copied, "key", "owner", 2_000_000), saved)
    write_slot_file(path, record(ids((2, 10)), scope="owner"), "key")
    assert equal(read_slot_file(path, "key", "owner", 2_000_000), record(ids((2, 10)), scope="owner"))
    assert [p.name for p in path.parent.iterdir()] == ["slot.bin"]


@pytest.mark.parametrize(("key", "scope"), [("other", "owner"), ("key", "guesser")])
def test_a_saved_slot_is_for_its_model_and_its_owner(tmp_path: Path, key: str, scope: str) -> None:
    write_slot_file(tmp_path / "slot", record(ids((1, 500)), scope="owner"), "key")
    with pytest.raises(BadStateFileError):
        read_slot_file(tmp_path / "slot", key, scope, 2_000_000)


def test_a_saved_slot_that_needs_more_memory_is_not_read(tmp_path: Path) -> None:
    write_slot_file(tmp_path / "slot", record(ids((1, 500)), 10_000), "key")
    read_slot_file(tmp_path / "slot", "key", "local", 10_000)
    with pytest.raises(BadStateFileError, match="it needs 10000 bytes of memory, and 9999 are free"):
        read_slot_file(tmp_path / "slot", "key", "local", 9_999)


def test_files_that_are_no_saved_slots(tmp_path: Path) -> None:
    path = tmp_path / "slot"
    write_slot_file(path, record(ids((1, 500))), "key")
    data = path.read_bytes()
    for damaged in (b"", data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b"ggsq" * 100):
        path.write_bytes(damaged)
        with pytest.raises(BadStateFileError):
            read_slot_file(path, "key", "local", 2_000_000)
    path.unlink()
    os.mkfifo(path)
    for wrong in (path, tmp_path, tmp_path / "nothing"):
        with pytest.raises((OSError, BadStateFileError)):
            read_slot_file(wrong, "key", "local", 2_000_000)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "slot").symlink_to(tmp_path / "mine")
    write_slot_file(tmp_path / "slot", record(ids((1, 500))), "key")
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "slot").is_symlink()
