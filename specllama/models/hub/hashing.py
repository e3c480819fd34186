"""What goes on beside a download, in threads: hashing what has arrived, and bringing it to the disk."""

from __future__ import annotations

import hashlib
import os
import queue
import threading

from specllama.models.hub.api import HubFile

_AHEAD = 64  # chunks that wait to be hashed; all of them are written already
_STEP = 32 << 20  # bytes to bring to the disk at once


class Hasher:
    """Hashes in a thread of its own, so that the connection need not wait for it."""

    def __init__(self, file: HubFile) -> None:
        # Git's own hash has a header in front; the cache names files outside large-file storage by it.
        is_git = len(file.etag) == 40
        start = b"blob %d\0" % file.size if is_git else b""
        self._hash = hashlib.new("sha1" if is_git else "sha256", start, usedforsecurity=False)
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._thread = threading.Thread(target=self._work, daemon=True, name="specllama_hash")
        self._thread.start()

    def update(self, data: bytes) -> None:
        """More of the file."""
        self._waiting.put(data)

    def result(self) -> str:
        """The digest of everything, in hexadecimal."""
        self.end()
        return self._hash.hexdigest()

    def end(self) -> None:
        """Wait for the thread's end; more than once is as good."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            self._hash.update(data)


class FsyncThread:
    """Brings what was written to the disk while more arrives, so that little is left to wait for at the end.

    On leaving it raises the OSError of a flush that failed: the system reports such a loss only once.
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
        """So much more is written."""
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
        while self._due.wait() and not self._over:
            self._due.clear()
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._error = error
                return
