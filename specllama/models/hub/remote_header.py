"""GGUF headers of files on the hub, read with Range requests: only as many bytes as needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from specllama.errors import NotFoundError
from specllama.gguf.header import Header, read_model
from specllama.gguf.source import FileSource, GGUFSource
from specllama.models.hub.api import Hub, Listing
from specllama.models.hub.cache import RepoCache
from specllama.models.hub.http import RangeError, Web
from specllama.models.progress import Listener, RetryableError, RetryPolicy
from specllama.models.quants import ModelFiles

_MAX_REQUEST = 1 << 20  # bytes, which limits how much is read unnecessarily
_WAITS = (1.0, 2.0, 4.0)


class RemoteSource:
    """A file on the hub as a `GGUFSource` and context manager. name: for messages. size: in bytes."""

    def __init__(self, web: Web, url: str, name: str, size: int, retries: RetryPolicy) -> None:
        self.name, self.size = name, size
        self._web, self._url, self._retries = web, url, retries

    def read(self, offset: int, n: int) -> bytes:
        """At most `n` bytes from `offset`. Raises NetworkError, AccessError, NotFoundError."""
        end = min(offset + min(n, _MAX_REQUEST), self.size)
        while offset < end:
            try:
                with self._web.get(self._url, offset, end) as response:
                    data = self._slice(offset - response.start, response.chunks(), end - offset)
                self._retries.reset()
                return data
            except RetryableError as error:
                self._retries.wait(error)
            except RangeError:
                break
        return b""

    @staticmethod
    def _slice(skip: int, chunks: Iterator[bytes], wanted: int) -> bytes:
        """`wanted` bytes after the first `skip`: a server without ranges sends the whole file."""
        data = bytearray()
        for chunk in chunks:
            data += chunk[skip:]
            skip = max(0, skip - len(chunk))
            if len(data) >= wanted:
                break
        return bytes(data[:wanted])

    def __enter__(self) -> RemoteSource:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def remote_header(
    hub: Hub, listing: Listing, files: ModelFiles, cache: RepoCache, listener: Listener
) -> Header:
    """The header of a model on the hub, parts merged; parts that are on disk are read from there.

    Raises GGUFError, IntegrityError, NetworkError, AccessError, NotFoundError.
    """
    base, retries = f"{listing.name.repo}/", RetryPolicy(listener, _WAITS)

    def opened(name: str) -> AbstractContextManager[GGUFSource]:
        file = listing.files.get(name.removeprefix(base))
        if file is None:
            raise NotFoundError(f"{name} does not exist")
        there = cache.content(listing.commit, file.path, file.etag if file.verified else "", file.size)
        if there is not None:
            return FileSource(there)
        return RemoteSource(
            hub.web, hub.web.url(listing.name, listing.commit, file.path), name, file.size, retries
        )

    return read_model(base + files.first, opened)
