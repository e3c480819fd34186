"""Two small vocabularies of letters, and a translation between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specllama.core.translation import KeptTokens, Translation

TARGET = [b"", *(bytes([c]) for c in b"abcdefgh "), b"ab", b"abc", b" a", b"de", b"def", b"gh", b"ha"]
TARGET += [b"bc", b"cde", b"fg", b" ab", b"aa", b"bb", b"\xc3", b"\xa4", b"ef", b"hh", b" d", b"e ", b"g "]
DRAFT = [
    b"",
    *(bytes([c]) for c in b" hgfedcba"),
    b"abcd",
    b"ab",
    b"de",
    b"bcd",
    b"h ",
    b"\xa4",
    b"\xc3",
    b"\xe2",
]
N_TARGET = len(TARGET)


class Letters:
    """The tokens of a text are the longest ones from its beginning, bytes without one are left out.
    Implements core.translation.Speller; token 0 is a control token.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)
        self._ids = {piece: i for i, piece in enumerate(pieces) if piece}

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def spelt(self, token: int) -> bytes:
        return self._pieces[token] or b"h"

    def tokenize(self, text: str) -> list[int]:
        data, found = text.encode(), []
        while data:
            n = next((n for n in range(len(data), 0, -1) if data[:n] in self._ids), 0)
            found += [self._ids[data[:n]]] if n else []
            data = data[max(n, 1) :]
        return found

    def byte(self, value: int) -> int | None:
        return self._ids.get(bytes([value]))


def letters() -> Translation:
    """Between TARGET and DRAFT; both have token 0."""
    ids, further = [], N_TARGET
    for piece in DRAFT:
        shared = TARGET.index(piece) if piece in TARGET else -1
        ids.append(shared if shared >= 0 else further)
        further += shared < 0
    longer = [piece for piece in TARGET if piece not in DRAFT]
    may_grow = np.array([any(t.startswith(p) and t != p for t in longer) for p in TARGET])
    kept = KeptTokens(np.array(ids, np.int64), further, lambda _token: 0)
    return Translation(Letters(TARGET), Letters(DRAFT), N_TARGET, kept, np.zeros(0, np.int64), may_grow)
