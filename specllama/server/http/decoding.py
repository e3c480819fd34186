"""Decodes compressed bodies as they arrive, within a size limit. Knows no requests."""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Protocol

from specllama.errors import UsageError
from specllama.server.http.errors import MediaTypeError


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _zstd() -> Any:
    """Python's own module, None before Python 3.14."""
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return None


_ZSTD = _zstd()
KNOWN = ("gzip", "deflate", *(("zstd",) if _ZSTD is not None else ()))


class Decoder:
    """Decodes one body. encoding: the value of Content-Encoding, "" for none. most: bytes of its text. Raises
    MediaTypeError for encodings that are not known.
    """

    def __init__(self, encoding: str, most: int) -> None:
        self._name, self._most, self._size = encoding.strip().lower().removeprefix("x-"), most, 0
        self._plain = self._name in ("", "identity")
        if not self._plain and self._name not in KNOWN:
            known = ", ".join(KNOWN)
            message = f"Content-Encoding {encoding[:40]!r} cannot be decoded here; known are {known}"
            raise MediaTypeError(message, details={"accept-encoding": known})
        self._inner = None if self._plain else self._new()

    def push(self, data: bytes) -> bytes:
        """The decoded bytes of the next chunk; exceeds the limit in total if the body is too long. Raises
        UsageError.
        """
        if self._plain:
            return data
        decoded = bytearray()
        while data and self._size <= self._most:
            if self._inner is None or self._inner.eof:
                self._inner = self._new()
            try:
                part = self._inner.decompress(data, self._most + 1 - self._size)
            except Exception as error:
                if not isinstance(error, (zlib.error, *_errors())):
                    raise
                raise UsageError(f"the body is not {self._name}: {error}") from None
            decoded += part
            self._size += len(part)
            data = self._inner.unused_data if self._inner.eof else b""
        return bytes(decoded)

    def finish(self) -> None:
        """Raises UsageError if the body ended early."""
        if self._inner is not None and self._size <= self._most and not self._inner.eof:
            raise UsageError(f"the body is not {self._name}: it ends too early")

    def _new(self) -> _Decompressor:
        if self._name == "zstd":
            decompressor: _Decompressor = _ZSTD.ZstdDecompressor()
            return decompressor
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # of gzip and of zlib


def _errors() -> tuple[type[Exception], ...]:
    return (_ZSTD.ZstdError,) if _ZSTD is not None else ()
