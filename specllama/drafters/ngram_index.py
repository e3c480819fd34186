"""An index of a text's 3-grams of token ids, which grows with the text: finds where its last tokens occurred
before. About 70 bytes per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

N_GRAM = 3  # tokens that must agree before anything is copied
N_CANDIDATES = 8  # latest occurrences that are compared
MAX_COMPARED = 32  # tokens compared backwards per candidate
ID_BITS = 20  # three ids in 60 bits: a Python int of 32 bytes
KEY_MASK = (1 << ID_BITS * N_GRAM) - 1


class Index(Protocol):
    """A text that grows, and the places in `source` where its last tokens occur. own: the source is the text
    itself. Negative ids in the source are not tokens.
    """

    own: bool
    tokens: array[int]

    @property
    def source(self) -> Sequence[int]:
        """The ids to copy from."""
        ...

    def build(self, n_tokens: int) -> int:
        """Index up to `n_tokens` more tokens of the text; returns the number that is left."""
        ...

    def append(self, token: int) -> None:
        """Append one token to the text and index it; the tokens before it must be indexed already."""
        ...

    def candidates(self) -> list[int]:
        """The positions in `source` after the occurrences of the text's last three tokens, latest first."""
        ...

    def longest(self, among: Sequence[int] | None = None) -> tuple[int, int]:
        """(position, length) of the candidate with the longest match; (0, 0) without one. among: some of the
        candidates, None for all.
        """
        ...


class TokenIndex:
    """A sequence of token ids and the positions of its 3-grams.

    A dict from each packed 3-gram to the end of its latest occurrence, and for every position the end of the
    previous occurrence of the same 3-gram: the hash chains of deflate (RFC 1951, section 4).
    """

    __slots__ = ("_earlier", "_key", "_latest", "tokens")
    own = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("i", tokens)
        self._earlier = array("i")  # by position of a 3-gram's last token; ends are exclusive, 0: none
        self._latest: dict[int, int] = {}
        self._key = 0

    @property
    def source(self) -> array[int]:
        """The ids to copy from: the text itself."""
        return self.tokens

    def build(self, n_tokens: int) -> int:
        """Index up to `n_tokens` more tokens; returns the number that is left."""
        done = len(self._earlier)
        key, latest, earlier = self._key, self._latest, self._earlier
        for end, token in enumerate(self.tokens[done : done + n_tokens], done + 1):
            key = (key << ID_BITS | token) & KEY_MASK
            if end < N_GRAM:
                earlier.append(0)
            else:
                earlier.append(latest.get(key, 0))
                latest[key] = end
        self._key = key
        return len(self.tokens) - len(earlier)

    def append(self, token: int) -> None:
        """Append and index one token; the tokens before it must be indexed already."""
        self.tokens.append(token)
        self.build(1)

    def candidates(self) -> list[int]:
        """The positions after the earlier occurrences of the last three tokens, latest first; at most
        N_CANDIDATES.
        """
        ends: list[int] = []
        end = self._earlier[-1] if self._earlier else 0
        while end and len(ends) < N_CANDIDATES:
            ends.append(end)
            end = self._earlier[end - 1]
        return ends

    def longest(self, among: Sequence[int] | None = None) -> tuple[int, int]:
        """(position, length) of the candidate with the longest match before it; the latest of equal ones,
        (0, 0) without any.
        """
        tokens, n = self.tokens, len(self.tokens)
        best, length = 0, 0
        for end in self.candidates() if among is None else among:
            most = min(end, MAX_COMPARED)
            if best and (length >= most or tokens[end - length - 1] != tokens[n - length - 1]):
                continue  # cannot be longer than the best
            k = N_GRAM
            while k < most and tokens[end - k - 1] == tokens[n - k - 1]:
                k += 1
            if k > length:
                best, length = end, k
        return best, length
