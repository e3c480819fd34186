"""The threads of a download: a failed flush is reported at the end; digests of both kinds."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from specllama.models.hub.api import HubFile
from specllama.models.hub.transfer import FsyncThread, Hasher


def flushing() -> bool:
    return any(thread.name == "specllama_flush" for thread in threading.enumerate())


def flush(fd: int, fault: type[Exception] | None = None) -> None:
    """Count many bytes, wait for the flush or its failure, then end with an exception if given."""
    with FsyncThread(fd) as flusher:
        flusher.wrote(1 << 30)
        for _ in range(1000):
            if fault is not None or not flushing():
                break
            time.sleep(0.01)
        if fault is not None:
            raise fault


def test_a_failed_flush_is_raised_at_the_end() -> None:
    reading, writing = os.pipe()  # a pipe cannot be flushed to disk
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            flush(writing)
    finally:
        os.close(reading)
        os.close(writing)
    assert not flushing()


def test_another_error_is_not_hidden(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file, pytest.raises(KeyError):
        flush(file.fileno(), KeyError)
    assert not flushing()


@pytest.mark.parametrize("data", [b"", b"a", b"ab" * 5000])
def test_digests_are_those_of_the_hub(data: bytes) -> None:
    for etag, expected in (
        (hashlib.sha256(data).hexdigest(), hashlib.sha256(data)),
        ("0" * 40, hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)),
    ):
        hasher = Hasher(HubFile("f", len(data), etag))
        for i in range(0, len(data), 999):
            hasher.update(data[i : i + 999])
        assert hasher.result() == expected.hexdigest()
        hasher.end()
