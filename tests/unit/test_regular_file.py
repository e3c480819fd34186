"""Files of the program's own: something else in their place is an error, or as if nothing were there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from specllama import wire
from specllama.cli.chat import conversation
from specllama.cli.chat.terminal import HistoryFile
from specllama.config.store import stored_object
from specllama.config.toml_file import read_start, read_text
from specllama.errors import SpecllamaError
from specllama.gguf.header import file_identity
from specllama.llama.kernels import _is_usable
from specllama.models.hub.cache import hash_of
from specllama.prefix_disk.directory import StateDirectory, StateLedger
from specllama.prefix_disk.disk_store import read_slot_file
from specllama.regular_file import NotRegularError, open_regular, read_regular
from specllama.server.running import RunningServer
from specllama.server.supervisor import LoadedFiles

READERS: dict[str, Callable[[Path], object]] = {
    "store": stored_object,
    "settings": read_text,
    "start": read_start,
    "model": file_identity,
    "loaded": lambda path: LoadedFiles([str(path)]),
    "model of the hub": lambda path: hash_of(open_regular(path)),
    "kernels": _is_usable,
    "server": lambda path: wire.from_file(RunningServer, path, 1 << 20),
    "slot": lambda path: read_slot_file(path, "", "", 1),
    "inputs": lambda path: HistoryFile(path).read(),
    "conversation": lambda path: conversation.read(str(path)),
}


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """A reader that waits fails."""

    def fail(_: int, __: FrameType | None) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def made(kind: str, path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(path))


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "socket"])
def test_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file.json"
    made(kind, path)
    for read in READERS.values():
        with contextlib.suppress(OSError, SpecllamaError):
            assert not isinstance(read(path), (str, bytes))
    for name in ("secret", "index.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir(0o700)
        made(kind, folder / name)
        directory = StateDirectory(folder, lambda _: None)
        if name == "secret":
            with pytest.raises(NotRegularError, match="is not a regular file"):
                directory.open(create=True)
        assert directory.read_ledger() == StateLedger()
    with pytest.raises(NotRegularError, match="is not a regular file"):
        read_regular(path)


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path) == read_regular(tmp_path / "link") == b"12345"
    assert read_regular(path, 3) == b"123"
    with open_regular(path) as file:
        assert file.seek(2) == 2
        assert file.read() == b"345"
    with pytest.raises(OSError, match="symbolic link"):
        open_regular(tmp_path / "link", os.O_NOFOLLOW)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
