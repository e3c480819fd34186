"""Where the last tokens of a text stood before: an index over ids that grows with the text. About 70 bytes a
token.
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
    """A text that grows, and where in `source` its end has stood. own: the source is the text itself. What
    is no id there is no token.
    """

    own: bool
    tokens: array[int]

    @property
    def source(self) -> Sequence[int]: ...
    def build(self, n_tokens: int) -> int: ...
    def append(self, token: int) -> None: ...
    def candidates(self) -> list[int]: ...
    def longest(self) -> tuple[int, int]: ...


class TokenIndex:
    """A sequence of token ids and where in it each run of three has stood.

    A dict from the packed run to its latest end, and for every token the end of the same run before it: the
    hash chains of deflate (RFC 1951, section 4).
    """

    __slots__ = ("_earlier", "_key", "_latest", "tokens")
    own = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("i", tokens)
        self._earlier = array("i")  # by position of a run's last token; ends are exclusive, so 0 says none
        self._latest: dict[int, int] = {}
        self._key = 0

    @property
    def source(self) -> array[int]:
        """What is copied from: the text itself."""
        return self.tokens

    def build(self, n_tokens: int) -> int:
        """Index up to `n_tokens` more; the number still to be indexed."""
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
        """One more token, indexed; everything before must be indexed already."""
        self.tokens.append(token)
        self.build(1)

    def candidates(self) -> list[int]:
        """The positions after the earlier occurrences of the last three tokens, latest first."""
        found: list[int] = []
        end = self._earlier[-1] if self._earlier else 0
        while end and len(found) < N_CANDIDATES:
            found.append(end)
            end = self._earlier[end - 1]
        return found

    def longest(self) -> tuple[int, int]:
        """The position after the candidate that agrees longest with the end, and how long; (0, 0): none."""
        tokens, n = self.tokens, len(self.tokens)
        best, length = 0, 0
        for end in self.candidates():
            most = min(end, MAX_COMPARED)
            if best and (length >= most or tokens[end - length - 1] != tokens[n - length - 1]):
                continue  # cannot be longer than the best
            k = N_GRAM
            while k < most and tokens[end - k - 1] == tokens[n - k - 1]:
                k += 1
            if k > length:
                best, length = end, k
        return best, length
