"""Downloads one file into the cache: resumes it, hashes it as it arrives, and renames it when it is
complete.

Bytes that were received survive kill -9; a file with a wrong hash never becomes a model.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from specllama.errors import IntegrityError, ResourceError
from specllama.models.hub.api import HubFile
from specllama.models.hub.cache import RepoCache, free_bytes, open_partial, sync, unwritable
from specllama.models.hub.http import RangeError, Web
from specllama.models.progress import Listener, RetryableError, RetryPolicy

# Threads that work during a download: hashing what has arrived, and flushing it to disk.


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


_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)  # seconds, after successive attempts that received no bytes
_READ = 1 << 20
Advance = Callable[[str, int], None]  # called with a phase and the bytes of this file on disk


@dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch: its address, its size and hash, and the revision by which it was found."""

    url: str
    file: HubFile
    cache: RepoCache
    revision: str


def fetch(job: Download, web: Web, listener: Listener, advance: Advance) -> str:
    """Download the content into the cache unless it is there. Returns its hash, the name of its blob.

    Raises NetworkError, AccessError, NotFoundError, ResourceError, and IntegrityError after removing a file
    with a wrong hash.
    """
    job.cache.make_directories()
    etag = job.file.etag

    def waiting() -> None:
        partial = job.cache.partial(etag)
        advance("waiting for another download of", partial.stat().st_size if partial.exists() else 0)

    with job.cache.lock(etag, waiting):
        if job.cache.has(etag, job.file.size):
            job.cache.forget(etag)
            return etag
        try:
            digest = _fetch(job, web, listener, advance)
            job.cache.complete(etag, digest)
        except OSError as error:
            raise _disk(job, error) from None
    return digest


def _fetch(job: Download, web: Web, listener: Listener, advance: Advance) -> str:
    """Complete the partial file; from the start once more if the part of an earlier process was damaged.
    Returns its hash.
    """
    resumed = _Attempt(job, advance).run(web, listener)
    if isinstance(resumed, str):
        return resumed
    if not resumed.kept:
        _refuse(job, resumed)
    listener.clear()
    listener.note(f"{job.file.path}: the part of an earlier download is damaged; starting again")
    job.cache.forget(job.file.etag)
    again = _Attempt(job, advance).run(web, listener)
    if not isinstance(again, str):
        _refuse(job, again)
    return again


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """A complete file with a wrong size or hash. kept: bytes that came from an earlier process."""

    size: int
    digest: str
    kept: int


class _Attempt:
    """One attempt to complete a partial file."""

    def __init__(self, job: Download, advance: Advance) -> None:
        self._job, self._advance = job, advance
        self._cache, self._file = job.cache, job.file
        self._have = self._kept = 0
        self._hasher = Hasher(job.file)

    def run(self, web: Web, listener: Listener) -> _Mismatch | str:
        """Complete the partial file; its hash if that and the size are right."""
        path = self._cache.partial(self._file.etag)
        try:
            return self._fill(path, web, listener)
        finally:
            self._hasher.end()

    def _fill(self, path: Path, web: Web, listener: Listener) -> _Mismatch | str:
        with open(open_partial(path), "r+b", buffering=0) as out:
            self._hash_existing(out.fileno())
            with FsyncThread(out.fileno()) as flusher:
                self._receive_all(out.fileno(), web, listener, flusher)
            digest = self._hasher.result()
            if self._have != self._file.size or (self._file.verified and digest != self._file.etag):
                return _Mismatch(self._have, digest, self._kept)
            sync(out.fileno())
        return digest

    def _receive_all(self, out: int, web: Web, listener: Listener, flusher: FsyncThread) -> None:
        retries = RetryPolicy(listener, _WAITS)
        whole = self._have == self._file.size
        while not whole:
            before = self._have
            try:
                whole = self._receive(out, web, flusher)
            except RetryableError as error:
                if self._have > before:
                    retries.reset()
                retries.wait(error)

    def _hash_existing(self, out: int) -> None:
        """Hash the bytes of an earlier process; discard them if there are more than the file has."""
        left = os.fstat(out).st_size
        if left > self._file.size:
            self._restart(out)
            return
        while self._have < left:
            data = os.read(out, _READ)
            if not data:
                break
            self._hasher.update(data)
            self._have += len(data)
            self._advance("verifying the first part of", self._have)
        self._kept = self._have

    def _receive(self, out: int, web: Web, flusher: FsyncThread) -> bool:
        """Request the rest and write it. Returns whether the file has reached its end."""
        etag = self._file.etag
        try:
            with web.get(self._job.url, self._have, validator=self._cache.validator(etag)) as response:
                if response.start != self._have:  # no ranges on this server, or the file has changed
                    self._restart(out)
                self._cache.remember(etag, response.validator, self._job.revision)
                for data in response.chunks():
                    _write(out, data)
                    flusher.wrote(len(data))
                    self._hasher.update(data)
                    self._have += len(data)
                    self._advance("downloading", min(self._have, self._file.size))
                    if self._have > self._file.size:
                        break
                if response.total is None and self._have < self._file.size:
                    raise RetryableError(f"{self._file.path} ended early")  # the server gave no length
        except RangeError:  # the file on the server is shorter than ours
            self._restart(out)
            return False
        return True

    def _restart(self, out: int) -> None:
        os.ftruncate(out, 0)
        os.lseek(out, 0, os.SEEK_SET)
        self._have = self._kept = 0
        self._hasher.end()
        self._hasher = Hasher(self._file)


def _write(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


def _refuse(job: Download, mismatch: _Mismatch) -> NoReturn:
    job.cache.forget(job.file.etag)
    kind = "sha1" if len(job.file.etag) == 40 else "sha256"
    size = f"{mismatch.size}" if mismatch.size <= job.file.size else f"more than {job.file.size}"
    raise IntegrityError(
        f"{job.file.path} does not match the hub's record: {kind} {mismatch.digest} of {size} bytes, not "
        f"{job.file.etag} of {job.file.size}; it was removed",
        "try again; if it happens again, the hub or a proxy on the way changes the file",
    )


def _disk(job: Download, error: OSError) -> ResourceError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return unwritable(job.cache.root, error)
    partial = job.cache.partial(job.file.etag)
    have = partial.stat().st_size if partial.exists() else 0
    free = free_bytes(job.cache.root)
    message = f"the disk is full: {job.file.path} needs {job.file.size - have} bytes more"
    if free is not None:
        message += f", {free} are free in {job.cache.root}"
    hint = "make room (specllama models rm), then run the same command, which resumes the download"
    return ResourceError(message, hint)
