"""The sources of header bytes: `GGUFSource`, `FileSource`, and the parser's bounded `Window`.

Knows nothing about the format, but recognises files of other formats.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

from specllama.errors import GGUFError, NotFoundError, UsageError
from specllama.regular_file import NotRegularError, open_regular

MAX_HEADER_BYTES = 64 << 20  # the largest known headers (262k tokens, 500k merges) have 20 MB
MAX_PARTS = 1000  # of a split model
DOWNLOAD_AGAIN = "Download the file again: specllama pull NAME."

_FIRST_READ = 256 << 10
_LARGEST_READ = 8 << 20
_KEPT = 1 << 20  # bytes before the position that are kept, since removing them copies the rest


class GGUFSource(Protocol):
    """Random access to the bytes of one file, on disk or elsewhere."""

    name: str  # for messages: a path or an address
    size: int  # bytes

    def read(self, offset: int, n: int) -> bytes:
        """At most `n` bytes from `offset`; empty only at the end of the source, or if it has changed."""


class FileSource(AbstractContextManager["FileSource"]):
    """A regular file on disk, as a `GGUFSource` and context manager.

    Raises NotFoundError (no such file), UsageError (not a regular file, or not readable).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        try:
            self._file = open_regular(path, buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            message = f"{self.name}: no such file"
            raise NotFoundError(message, "Check the path, or see: specllama models.") from None
        except PermissionError:
            message = f"{self.name}: no permission to read the file"
            raise UsageError(message, "Check its owner and mode.") from None
        except NotRegularError as error:
            raise UsageError(f"{self.name}: {error.strerror}", "Name the .gguf file itself.") from None
        except (OSError, ValueError) as error:
            shown = self.name.replace("\0", "\\0") if len(self.name) < 300 else self.name[:300] + "…"
            why = getattr(error, "strerror", "") or error
            raise UsageError(f"{shown}: cannot be opened: {why}") from None
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, n: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.read(n)
        except OSError as error:
            message = f"{self.name}: cannot be read at byte {offset}: {error.strerror or error}"
            raise GGUFError(message, DOWNLOAD_AGAIN) from None

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Window:
    """The bytes of a source that are being parsed, and the position of the parser.

    buf: the bytes from offset `base` on. They end at most at the end of the file and at MAX_HEADER_BYTES:
    lengths in the file are checked before anything is read or allocated for them.
    """

    def __init__(self, source: GGUFSource) -> None:
        self.name = source.name
        self.size = source.size
        self.buf = bytearray()
        self.base = 0
        self.pos = 0
        self._source = source

    def fail(self, field: str, offset: int, reason: str, hint: str = DOWNLOAD_AGAIN) -> NoReturn:
        """Raise GGUFError with file, field, byte offset and reason."""
        raise GGUFError(f"{self.name}: {field} at byte {offset}: {reason}", hint)

    def need(self, end: int, field: str, offset: int | None = None) -> None:
        """Extend `buf` to `end`. Raises GGUFError if the file or MAX_HEADER_BYTES ends before."""
        if end <= self.base + len(self.buf):
            return
        where = self.pos if offset is None else offset
        if end > self.size:
            missing = end - self.size
            hint = f"the file ends at byte {self.size}, at least {missing} bytes before it should"
            self.fail(field, where, hint)
        if end > MAX_HEADER_BYTES:
            self.fail(field, where, f"a header of more than {MAX_HEADER_BYTES} bytes is refused")
        while (have := self.base + len(self.buf)) < end:
            ahead = min(max(have, _FIRST_READ), _LARGEST_READ)
            data = self._source.read(
                have, min(max(end - have, ahead), self.size - have, MAX_HEADER_BYTES - have)
            )
            if not data:
                hint = f"the file ended at byte {have} while it was read: it is being changed"
                self.fail(field, where, hint)
            self.buf += data

    def take(self, n: int, field: str) -> bytes:
        self.need(self.pos + n, field)
        self.pos += n
        return self.copy(self.pos - n, self.pos)

    def copy(self, begin: int, end: int) -> bytes:
        """The bytes between two offsets of the file that `buf` contains."""
        with memoryview(self.buf) as view:
            return bytes(view[begin - self.base : end - self.base])

    def drop(self) -> None:
        """Remove bytes before the position from `buf`, if they are many."""
        if self.pos - self.base > _KEPT:
            del self.buf[: self.pos - self.base]
            self.base = self.pos

    def uint(self, n_bytes: int, field: str) -> int:
        """The next unsigned little-endian integer."""
        return int.from_bytes(self.take(n_bytes, field), "little")

    def text(self, field: str, most: int) -> str:
        """The next string: a name, which must be UTF-8 and have at most `most` bytes."""
        offset = self.pos
        length = self.uint(8, f"{field} length")
        if length > most:
            self.fail(field, offset, f"it has {length} bytes, more than {most}")
        raw = self.take(length, field)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(field, offset, f"{raw[:40]!r} is not UTF-8")


def foreign_format(head: bytes) -> tuple[str, str] | None:
    """(the format of a file without GGUF's magic, a hint); None if the format is unknown."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        return "a git-LFS pointer, not the model itself", "Fetch the file it points to: git lfs pull."
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body", b"<error")):
        return (
            "an HTML or XML page, not a model",
            "An error or login page was saved instead. " + DOWNLOAD_AGAIN,
        )
    if text.startswith((b"{", b"[")):
        return "JSON text, not a model", "An error message was saved instead, or this is a config file."
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return (
            "a safetensors file",
            "Convert it with llama.cpp's convert_hf_to_gguf.py, or get a GGUF of the model.",
        )
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive or PyTorch checkpoint", "Convert it with llama.cpp's convert_hf_to_gguf.py."
    if head.startswith(b"\x1f\x8b"):
        return "gzip-compressed", "Unpack it first: gunzip."
    if head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return (
            "a GGML file from before August 2023",
            "llama.cpp reads GGUF only: get a newer file of the model.",
        )
    if not head.strip(b"\0"):
        return "zeros: an unfinished download", DOWNLOAD_AGAIN
    return None
