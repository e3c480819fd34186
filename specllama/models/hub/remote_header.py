"""GGUF headers of files on the hub, read with Range requests: only as many bytes as needed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from specllama.errors import NotFoundError
from specllama.gguf.header import Header, read_model
from specllama.gguf.source import FileSource, GGUFSource
from specllama.models.hub.api import SHORT_WAITS, Hub, HubFile, Listing, RangeError
from specllama.models.hub.cache import RepoCache
from specllama.models.progress import Listener, RetryPolicy
from specllama.models.quants import ModelFiles

_MAX_REQUEST = 1 << 20  # bytes, which limits how much is read unnecessarily


class RemoteSource:
    """A file on the hub as a `GGUFSource`. name: for messages. size: in bytes."""

    def __init__(self, hub: Hub, listing: Listing, file: HubFile, retries: RetryPolicy) -> None:
        self.name, self.size = f"{listing.name.repo}/{file.path}", file.size
        self._hub, self._listing, self._path, self._retries = hub, listing, file.path, retries

    def read(self, offset: int, n: int) -> bytes:
        """At most `n` bytes from `offset`. Raises NetworkError, AccessError, NotFoundError."""
        return self._retries.run(lambda: self._read(offset, min(offset + min(n, _MAX_REQUEST), self.size)))

    def _read(self, offset: int, end: int) -> bytes:
        if offset >= end:
            return b""
        data = bytearray()
        try:
            with self._hub.get(self._listing, self._path, offset, end) as content:
                skip = offset - content.start  # a server without ranges sends the whole file
                for chunk in content.chunks:
                    data += chunk[skip:]
                    skip = max(0, skip - len(chunk))
                    if len(data) >= end - offset:
                        break
        except RangeError:
            return b""
        return bytes(data[: end - offset])


def remote_header(
    hub: Hub, listing: Listing, files: ModelFiles, cache: RepoCache, listener: Listener
) -> Header:
    """The header of a model on the hub, parts merged; parts that are on disk are read from there.

    Raises GGUFError, IntegrityError, NetworkError, AccessError, NotFoundError.
    """
    base, retries = f"{listing.name.repo}/", RetryPolicy(listener, SHORT_WAITS)

    def opened(name: str) -> AbstractContextManager[GGUFSource]:
        file = listing.files.get(name.removeprefix(base))
        if file is None:
            raise NotFoundError(f"{name} does not exist")
        there = cache.content(listing.commit, file)
        return (
            FileSource(there) if there is not None else nullcontext(RemoteSource(hub, listing, file, retries))
        )

    return read_model(base + files.first, opened)
