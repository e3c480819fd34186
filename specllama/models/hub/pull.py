"""Downloads models from the hub into its cache: plans files and bytes, resumes, hashes what arrives.

Bytes that were received survive kill -9; a file with a wrong hash never becomes a model.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from specllama.clock import running_time
from specllama.config.store import free_bytes, sync
from specllama.errors import IntegrityError, ResourceError
from specllama.models.hub.api import Hub, HubFile, Listing, RangeError
from specllama.models.hub.cache import RepoCache, hash_for, open_partial, unwritable
from specllama.models.progress import DownloadState, Listener, RetryableError, RetryPolicy
from specllama.models.quants import size
from specllama.models.resolve import Library, ResolvedModel

_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)  # seconds, after successive attempts that received no bytes
_READ = 1 << 20
_WINDOW = 5.0  # seconds over which the rate is averaged
_SPARE = 16 << 20  # bytes to leave free
Advance = Callable[[str, int], None]  # called with a phase and the bytes of a file on disk


@dataclass(frozen=True, slots=True)
class DownloadItem:
    """A file to be downloaded. have: bytes of it that are on disk already."""

    listing: Listing
    file: HubFile
    cache: RepoCache
    have: int


@dataclass(frozen=True, slots=True)
class PullPlan:
    """The files of a download, those on disk too. root: the cache. free: bytes on its disk, None: unknown."""

    items: tuple[DownloadItem, ...]
    root: Path
    free: int | None

    @property
    def n_bytes(self) -> int:
        return sum(item.file.size for item in self.items)

    @property
    def missing(self) -> int:
        """Bytes that are not on disk yet."""
        return sum(item.file.size - item.have for item in self.items)

    def check(self) -> None:
        """Raises ResourceError if the disk has no room for the missing bytes."""
        if self.free is not None and self.missing and self.missing + _SPARE > self.free:
            message = (
                f"not enough room: {size(self.missing)} are needed, {size(self.free)} are free in {self.root}"
            )
            hint = "make room (specllama models rm), or set HF_HUB_CACHE to another disk"
            raise ResourceError(message, hint)


def plan(library: Library, models: Sequence[ResolvedModel]) -> PullPlan:
    """The files to download for models on the hub; content shared by several counts once."""
    items: dict[str, DownloadItem] = {}
    for model in models:
        if model.listing is not None:
            cache = RepoCache(library.root, model.listing.name.repo)
            for file in model.parts:
                key = f"{cache.repo}/{file.etag}"
                items.setdefault(
                    key, DownloadItem(model.listing, file, cache, _have(cache, model.listing, file))
                )
    return PullPlan(tuple(items.values()), library.root, free_bytes(library.root))


def _have(cache: RepoCache, listing: Listing, file: HubFile) -> int:
    if cache.content(listing.commit, file) is not None:
        return file.size
    n_bytes = cache.partial_bytes(file.etag)
    return n_bytes if n_bytes <= file.size else 0


def download(library: Library, models: Sequence[ResolvedModel]) -> list[str]:
    """Download the missing files of models. Returns the paths of their first parts, in order.

    Raises ResourceError before anything is written if there is too little disk space; otherwise NetworkError,
    AccessError, NotFoundError, IntegrityError, ResourceError, after which a partial download is kept.
    """
    todo = plan(library, models)
    todo.check()
    meter = Meter(library.listener, todo.n_bytes)
    blobs: dict[str, str] = {}
    try:
        for item in todo.items:
            blobs[item.file.etag] = _blob(library, item, meter.of(item.cache.repo, item.file))
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C, SIGTERM
            text = "stopped; what has arrived is kept, and the same command resumes the download"
            library.listener.note(text)
        raise
    finally:
        library.listener.clear()
    return [_linked(library, model, blobs) for model in models]


def _blob(library: Library, item: DownloadItem, advance: Advance) -> str:
    """Download a file unless it is on disk. Returns the name of its blob."""
    there = item.cache.content(item.listing.commit, item.file)
    blob = there.name if there is not None else fetch(library.hub, item, library.listener, advance)
    advance("on disk:", item.file.size)
    if there is None and not item.file.verified:
        library.listener.note(f"{item.file.path}: sha256 {blob}, recorded for specllama models verify")
    return blob


def _linked(library: Library, model: ResolvedModel, blobs: Mapping[str, str]) -> str:
    """Link a downloaded model into its snapshot; returns its first part's path. blobs: names by etag."""
    if model.listing is None:
        return model.path
    listing, cache = model.listing, RepoCache(library.root, model.listing.name.repo)
    try:
        links = [cache.link(listing.commit, file.path, blobs[file.etag]) for file in model.parts]
        cache.point(listing.name.revision, listing.commit)
        cache.drop(listing.name.revision, {file.etag for file in listing.files.values()})
    except OSError as error:
        raise unwritable(library.root, error) from None
    return str(links[0])


def fetch(hub: Hub, item: DownloadItem, listener: Listener, advance: Advance) -> str:
    """Download the content into the cache unless it is there. Returns its hash, the name of its blob.

    Raises NetworkError, AccessError, NotFoundError, ResourceError, IntegrityError: a wrong hash is removed.
    """
    cache, etag = item.cache, item.file.etag
    cache.make_directories()

    def waiting() -> None:
        advance("waiting for another download of", cache.partial_bytes(etag))

    with cache.lock(etag, waiting):
        if (there := cache.content(item.listing.commit, item.file)) is not None:
            cache.forget(etag)
            return there.name
        try:
            with open(open_partial(cache.partial(etag)), "r+b", buffering=0) as out:
                digest = _Transfer(hub, item, out, advance).complete(listener)
            cache.complete(etag, digest)
        except IntegrityError:
            cache.forget(etag)
            raise
        except OSError as error:
            raise _disk(item, error) from None
    return digest


class _Transfer:
    """One file on its way into its partial file."""

    def __init__(self, hub: Hub, item: DownloadItem, out: FileIO, advance: Advance) -> None:
        self._hub, self._item, self._out, self._advance = hub, item, out, advance
        self._file, self._cache = item.file, item.cache
        self._have = self._kept = 0  # bytes hashed; those of them that came from an earlier process
        self._hash = hash_for(self._file.etag, self._file.size)

    def complete(self, listener: Listener) -> str:
        """Receive the rest, from the start once more if the part of an earlier process was damaged. Returns
        the hash. Raises IntegrityError for a wrong size or hash.
        """
        file, retries = self._file, RetryPolicy(listener, _WAITS)
        if os.fstat(self._out.fileno()).st_size > file.size:
            self._truncate()
        while data := self._out.read(_READ):  # the bytes of an earlier process
            self._hash.update(data)
            self._have = self._kept = self._have + len(data)
            self._advance("verifying the first part of", self._have)
        while True:
            retries.run(lambda: self._receive(retries))
            digest = self._hash.hexdigest()
            if self._have == file.size and (not file.verified or digest == file.etag):
                sync(self._out.fileno())
                return digest
            if not self._kept:
                break
            listener.clear()
            listener.note(f"{file.path}: the part of an earlier download is damaged; starting again")
            self._truncate()
        kind = "sha1" if len(file.etag) == 40 else "sha256"
        n_bytes = f"{self._have}" if self._have <= file.size else f"more than {file.size}"
        raise IntegrityError(
            f"{file.path} does not match the hub's record: {kind} {digest} of {n_bytes} bytes, not "
            f"{file.etag} of {file.size}; it was removed",
            "try again; if it happens again, the hub or a proxy on the way changes the file",
        )

    def _receive(self, retries: RetryPolicy) -> None:
        """Request the rest, up to its end or that of the file on the server. Raises RetryableError."""
        file, etag = self._file, self._file.etag
        while self._have != file.size:
            validator = self._cache.validator(etag)
            try:
                with self._hub.get(self._item.listing, file.path, self._have, validator=validator) as content:
                    if content.start != self._have:  # no ranges on this server, or the file has changed
                        self._truncate()
                    self._cache.remember(etag, content.validator, self._item.listing.name.revision)
                    for data in content.chunks:
                        self._write(data)
                        retries.reset()
                        if self._have > file.size:
                            return
                    if content.total is None and self._have < file.size:  # the server gave no length
                        raise RetryableError(f"{file.path} ended early")
                    return
            except RangeError:  # the file on the server is shorter than ours
                self._truncate()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._out.write(rest) :]
        self._hash.update(data)
        self._have += len(data)
        self._advance("downloading", min(self._have, self._file.size))

    def _truncate(self) -> None:
        self._out.seek(0)
        self._out.truncate()
        self._have = self._kept = 0
        self._hash = hash_for(self._file.etag, self._file.size)


def _disk(item: DownloadItem, error: OSError) -> ResourceError:
    cache, file = item.cache, item.file
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return unwritable(cache.root, error)
    free = free_bytes(cache.root)
    message = f"the disk is full: {file.path} needs {file.size - cache.partial_bytes(file.etag)} bytes more"
    if free is not None:
        message += f", {free} are free in {cache.root}"
    hint = "make room (specllama models rm), then run the same command, which resumes the download"
    return ResourceError(message, hint)


class Meter:
    """Adds up the bytes of all files and computes the rate. total: bytes. clock: seconds."""

    def __init__(self, listener: Listener, total: int, clock: Callable[[], float] = running_time) -> None:
        self._listener, self._total, self._clock = listener, total, clock
        self._have: dict[str, int] = {}
        self._sum = 0
        self._seen: deque[tuple[float, int]] = deque()
        self._shown = 0.0

    def of(self, repo: str, file: HubFile) -> Callable[[str, int], None]:
        """The `Advance` callback of a file."""
        key = f"{repo}/{file.etag}"

        def advance(phase: str, n_bytes: int) -> None:
            self._sum += n_bytes - self._have.get(key, 0)
            self._have[key] = n_bytes
            now = self._clock()
            if now - self._shown < 0.1 and n_bytes < file.size:
                return
            self._shown = now
            rate = self._rate(now, phase)
            left = (self._total - self._sum) / rate if rate else None
            self._listener.state(DownloadState(phase, file.path, self._sum, self._total, rate, left))

        return advance

    def _rate(self, now: float, phase: str) -> float:
        """Bytes per second over the last seconds, without bytes that were on disk before."""
        if phase != "downloading":
            self._seen.clear()
            return 0.0
        self._seen.append((now, self._sum))
        while now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        (began, first), seconds = self._seen[0], now - self._seen[0][0]
        return (self._sum - first) / seconds if seconds > 0.2 and began < now else 0.0
