"""Downloads whole models: plans files and bytes, checks the free disk space, reports progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specllama.clock import running_time
from specllama.errors import AccessError, ResourceError
from specllama.models.hub.api import HubFile, Listing, gated
from specllama.models.hub.cache import RepoCache, free_bytes, unwritable
from specllama.models.hub.transfer import Download, fetch
from specllama.models.progress import DownloadState, Listener
from specllama.models.quants import size
from specllama.models.resolve import Library, ResolvedModel

_WINDOW = 5.0  # seconds over which the rate is averaged
_SPARE = 16 << 20  # bytes to leave free


@dataclass(frozen=True, slots=True)
class DownloadItem:
    """A file to be downloaded. have: bytes of it that are on disk already."""

    listing: Listing
    file: HubFile
    cache: RepoCache
    have: int


@dataclass(frozen=True, slots=True)
class PullPlan:
    """The files of a download, those on disk included. root: the cache. free: bytes free on its disk, None if
    unknown.
    """

    items: tuple[DownloadItem, ...]
    root: Path
    free: int | None

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
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
            raise ResourceError(
                message, "make room (specllama models rm), or set HF_HUB_CACHE to another disk"
            )


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
    if content_of(cache, listing, file) is not None:
        return file.size
    try:
        n_bytes = cache.partial(file.etag).lstat().st_size
    except OSError:
        return 0
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
            blobs[item.file.etag] = _fetch(library, item, meter.of(item.cache.repo, item.file))
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C, SIGTERM
            library.listener.note(
                "stopped; what has arrived is kept, and the same command resumes the download"
            )
        raise
    finally:
        library.listener.clear()
    return [_linked(library, model, blobs) for model in models]


def _fetch(library: Library, item: DownloadItem, advance: Callable[[str, int], None]) -> str:
    """Download a file unless it is on disk. Returns the name of its blob."""
    if (there := content_of(item.cache, item.listing, item.file)) is not None:
        advance("on disk:", item.file.size)
        return there.name
    url = library.hub.web.url(item.listing.name, item.listing.commit, item.file.path)
    try:
        job = Download(url, item.file, item.cache, item.listing.name.revision)
        blob = fetch(job, library.hub.web, library.listener, advance)
    except AccessError:
        if item.listing.gated:
            raise gated(library.hub.endpoint, item.listing.name) from None
        raise
    advance("on disk:", item.file.size)
    if not item.file.verified:
        library.listener.note(f"{item.file.path}: sha256 {blob}, recorded for specllama models verify")
    return blob


def content_of(cache: RepoCache, listing: Listing, file: HubFile) -> Path | None:
    """The complete content of a file, None if it is not on disk."""
    return cache.content(listing.commit, file.path, file.etag if file.verified else "", file.size)


def _linked(library: Library, model: ResolvedModel, blobs: Mapping[str, str]) -> str:
    """Link a downloaded model into its snapshot. blobs: the names of the blobs, by etag. Returns the path of
    its first part.
    """
    if model.listing is None:
        return model.path
    listing, cache = model.listing, RepoCache(library.root, model.listing.name.repo)
    try:
        links = [cache.link(listing.commit, file.path, blobs[file.etag]) for file in model.parts]
        cache.point(listing.name.revision, listing.commit)
        cache.drop_stale(listing.name.revision, frozenset(file.etag for file in listing.files.values()))
    except OSError as error:
        raise unwritable(library.root, error) from None
    return str(links[0])


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
