"""Threads that work during a download: hashing what has arrived, and flushing it to disk."""

from __future__ import annotations

import hashlib
import queue
import threading
import time

from specllama.models.hub.api import HubFile
from specllama.models.hub.files import sync

_AHEAD = 64  # chunks that may wait to be hashed; they are written already
_PAUSE = 0.002  # seconds between two checks of a full queue
_STEP = 32 << 20  # bytes between flushes


class Hasher:
    """Hashes a file in a thread, so that the connection does not wait for it."""

    def __init__(self, file: HubFile) -> None:
        # The cache names files outside large-file storage by git's hash, which covers a header too.
        is_git = len(file.etag) == 40
        start = b"blob %d\0" % file.size if is_git else b""
        self._hash = hashlib.new("sha1" if is_git else "sha256", start, usedforsecurity=False)
        # Unlike Queue it has no lock of its own that a signal could leave locked.
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="specllama_hash")
        self._thread.start()

    def update(self, data: bytes) -> None:
        """Hash more of the file; blocks while too many chunks are waiting."""
        while self._waiting.qsize() >= _AHEAD:
            time.sleep(_PAUSE)
        self._waiting.put(data)

    def result(self) -> str:
        """End the thread; the digest in hexadecimal."""
        self.end()
        return self._hash.hexdigest()

    def end(self) -> None:
        """End the thread. May be called more than once."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            self._hash.update(data)


class FsyncThread:
    """Flushes a file to disk while more of it arrives, so that little is left to flush at the end.

    Leaving the context raises the OSError of a flush that failed: the system reports a lost write only once.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._pending = fd, 0
        self._due, self._over = threading.Event(), False
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name="specllama_flush")

    def __enter__(self) -> FsyncThread:
        self._thread.start()
        return self

    def wrote(self, n_bytes: int) -> None:
        """Count written bytes, and start a flush when there are enough."""
        self._pending += n_bytes
        if self._pending >= _STEP:
            self._pending = 0
            self._due.set()

    def __exit__(self, kind: object, *_: object) -> None:
        self._over = True
        self._due.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _work(self) -> None:
        while self._due.wait():
            self._due.clear()
            if self._over:
                return
            try:
                sync(self._fd)
            except OSError as error:
                self._error = error
                return
