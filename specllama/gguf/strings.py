"""Arrays of strings in a GGUF file: hundreds of thousands of strings, of which few are accessed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise


class StringArray:
    """An array of strings as bytes and offsets, decoded on access.

    Equal to another with the same strings. Indexing gives text, with invalid UTF-8 replaced; `raw` gives
    bytes.
    """

    __slots__ = ("_blob", "_starts")

    def __init__(self, blob: bytes, starts: array[int]) -> None:
        self._blob = blob  # all strings, each after its 8-byte length
        self._starts = starts  # start of each string's bytes, and one more entry after the last

    @staticmethod
    def empty() -> StringArray:
        """No strings."""
        return StringArray(b"", array("q", [8]))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def n_bytes(self) -> int:
        """Bytes of all strings, each with the 8 bytes of its length."""
        return len(self._blob)

    @property
    def encoded(self) -> bytes:
        """All strings, each after its length, 8 bytes."""
        return self._blob

    def raw(self, i: int) -> bytes:
        """The bytes of string `i`, 0 ≤ i < len."""
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self._blob[self._starts[i] : self._starts[i + 1] - 8]

    def raws(self) -> list[bytes]:
        """The bytes of all strings."""
        blob, starts = self._blob, self._starts.tolist()
        return [blob[a : b - 8] for a, b in pairwise(starts)]

    def __getitem__(self, i: int) -> str:
        return self.raw(i).decode(errors="replace")

    def __iter__(self) -> Iterator[str]:
        return (raw.decode(errors="replace") for raw in self.raws())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StringArray) and self._blob == other._blob

    def __hash__(self) -> int:
        return hash(self._blob)

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"
