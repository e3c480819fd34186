"""Cuts a stream of bytes into lines. Knows neither pipes nor messages."""

from __future__ import annotations

MAX_BYTES = 64 * 1024 * 1024  # of a line; the longest that the engine sends is the load's, with the template


class LineTooLongError(ValueError):
    """A line has more bytes than MAX_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"a line of more than {MAX_BYTES >> 20} MB")


class LineBuffer:
    """The bytes of a line that is not complete yet. The work is linear in the bytes, however they arrive."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, without their ends. Raises LineTooLongError."""
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > MAX_BYTES:
            raise LineTooLongError
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts, self._size = [rest[-1]], len(rest[-1])
        return lines
