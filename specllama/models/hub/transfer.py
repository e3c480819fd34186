"""One file from the hub into the cache: resumed, hashed as it arrives, and only whole under its own name.

What has arrived survives kill -9; what is wrong never becomes a model. Knows nothing of names and quants.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specllama.errors import IntegrityError, ResourceError
from specllama.models.hub.api import HubFile
from specllama.models.hub.cache import RepoCache, free_bytes, unwritable
from specllama.models.hub.hashing import FsyncThread, Hasher
from specllama.models.hub.http import RangeError, Web
from specllama.models.progress import Listener, RetryableError, RetryPolicy

_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)  # seconds, after attempts in a row that brought nothing
_READ = 1 << 20
Advance = Callable[[str, int], None]  # phase, and how many bytes of this file there are now


@dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch: where from, and what the hub says of it."""

    url: str
    file: HubFile
    cache: RepoCache


def fetch(job: Download, web: Web, listener: Listener, advance: Advance) -> Path:
    """The content in the cache, downloaded unless it is there; its path.

    Raises NetworkError, AccessError, NotFoundError, ResourceError, IntegrityError (the file is removed then).
    """
    job.cache.make()
    etag, blob = job.file.etag, job.cache.blob(job.file.etag)

    def waiting() -> None:
        partial = job.cache.partial(etag)
        advance("waiting for another download of", partial.stat().st_size if partial.exists() else 0)

    with job.cache.lock(etag, waiting):
        if job.cache.has(etag, job.file.size):
            job.cache.forget(etag)
            return blob
        try:
            _fetch(job, web, listener, advance)
            job.cache.settle(etag)
        except OSError as error:
            raise _disk(job, error) from None
    return blob


def _fetch(job: Download, web: Web, listener: Listener, advance: Advance) -> None:
    """Fill the partial file until its hash is right."""
    resumed = _Attempt(job, advance).run(web, listener)
    if resumed is None:
        return
    if not resumed.kept:
        _refuse(job, resumed)
    listener.clear()
    listener.note(f"{job.file.path}: what an earlier download has left is damaged; starting again")
    job.cache.forget(job.file.etag)
    again = _Attempt(job, advance).run(web, listener)
    if again is not None:
        _refuse(job, again)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A file that is not what the hub says. kept: bytes of it that an earlier process had left."""

    size: int
    digest: str
    kept: int


class _Attempt:
    """One partial file on its way from what is there to whole."""

    def __init__(self, job: Download, advance: Advance) -> None:
        self._job, self._advance = job, advance
        self._cache, self._file = job.cache, job.file
        self._have = self._kept = 0
        self._hasher = Hasher(job.file)

    def run(self, web: Web, listener: Listener) -> _Wrong | None:
        """None when the partial file is what the hub says."""
        path = self._cache.partial(self._file.etag)
        try:
            return self._fill(path, web, listener)
        finally:
            self._hasher.end()

    def _fill(self, path: Path, web: Web, listener: Listener) -> _Wrong | None:
        with open(path, "r+b" if path.exists() else "w+b", buffering=0) as out:
            self._take_over(out.fileno())
            with FsyncThread(out.fileno()) as flusher:
                self._go_on(out.fileno(), web, listener, flusher)
            digest = self._hasher.result()
            if digest != self._file.etag or self._have != self._file.size:
                return _Wrong(self._have, digest, self._kept)
            os.fsync(out.fileno())
        return None

    def _go_on(self, out: int, web: Web, listener: Listener, flusher: FsyncThread) -> None:
        patience = RetryPolicy(listener, _WAITS)
        whole = self._have == self._file.size
        while not whole:
            before = self._have
            try:
                whole = self._receive(out, web, flusher)
            except RetryableError as trouble:
                if self._have > before:
                    patience.better()
                patience.wait(trouble)

    def _take_over(self, out: int) -> None:
        """Hash what an earlier process has left; more than the whole file is nothing."""
        left = os.fstat(out).st_size
        if left > self._file.size:
            self._from_the_start(out)
            return
        while self._have < left:
            data = os.read(out, _READ)
            if not data:
                break
            self._hasher.update(data)
            self._have += len(data)
            self._advance("checking what there is of", self._have)
        self._kept = self._have

    def _receive(self, out: int, web: Web, flusher: FsyncThread) -> bool:
        """Write what comes from where we are; whether that was the end of it."""
        etag = self._file.etag
        try:
            with web.get(self._job.url, self._have, validator=self._cache.validator(etag)) as answer:
                if answer.start != self._have:  # the server has no ranges, or another file
                    self._from_the_start(out)
                self._cache.remember(etag, answer.validator)
                for data in answer.chunks():
                    _write(out, data)
                    flusher.wrote(len(data))
                    self._hasher.update(data)
                    self._have += len(data)
                    self._advance("downloading", min(self._have, self._file.size))
                    if self._have > self._file.size:
                        break
                if answer.total is None and self._have < self._file.size:
                    raise RetryableError(f"{self._file.path} ended early")  # nobody said where its end is
        except RangeError:  # what the server has is shorter than what there is already
            self._from_the_start(out)
            return False
        return True

    def _from_the_start(self, out: int) -> None:
        os.ftruncate(out, 0)
        os.lseek(out, 0, os.SEEK_SET)
        self._have = self._kept = 0
        self._hasher.end()
        self._hasher = Hasher(self._file)


def _write(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


def _refuse(job: Download, wrong: _Wrong) -> None:
    job.cache.forget(job.file.etag)
    kind = "sha1" if len(job.file.etag) == 40 else "sha256"
    size = f"{wrong.size}" if wrong.size <= job.file.size else f"more than {job.file.size}"
    raise IntegrityError(
        f"{job.file.path} is not what the hub says it is: {kind} {wrong.digest} of {size} bytes, not "
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
    hint = "make room (specllama models rm), then run the same command: it goes on from there"
    return ResourceError(message, hint)
