"""Texts with an index of their 3-grams of token ids: one that grows, and the outputs of earlier requests, by
scope. Knows ids only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import overload

import numpy as np

from specllama.core.image_rows import FIRST_PLACEHOLDER

N_GRAM = 3  # tokens that must agree before anything is copied
N_CANDIDATES = 8  # latest occurrences that are compared
MAX_COMPARED = 32  # tokens compared backwards per candidate
ID_BITS = 20  # three ids in 60 bits: a Python int of 32 bytes
KEY_MASK = (1 << ID_BITS * N_GRAM) - 1


class Index(ABC):
    """A text that grows, and the places in `source`, the ids to copy from, where its last tokens occur. own:
    the source is the text itself, which is indexed then. Negative ids in the source are not tokens.
    """

    __slots__ = ()
    own = False
    source: Sequence[int]
    tokens: array[int]

    def build(self, n_tokens: int) -> int:  # noqa: ARG002
        """Index up to `n_tokens` more tokens of the text; returns the number that is left."""
        return 0

    def append(self, token: int) -> None:
        """Append one token to the text and index it; the tokens before it must be indexed already."""
        self.tokens.append(token)

    @abstractmethod
    def candidates(self) -> list[int]:
        """The positions in `source` after the occurrences of the text's last three tokens, the best first; at
        most N_CANDIDATES.
        """

    def longest(self, among: Sequence[int] | None = None) -> tuple[int, int]:
        """(position, length) of the candidate with the longest match before it; the first of equal ones,
        (0, 0) without any. among: some of the candidates, None for all.
        """
        ids, mask, oldest = self._compared
        tokens, n, best, length = self.tokens, len(self.tokens), 0, 0
        for end in self.candidates() if among is None else among:
            most = min(end - oldest, n, MAX_COMPARED)
            if best and (length >= most or ids[end - length - 1 & mask] != tokens[n - length - 1]):
                continue  # cannot be longer than the best
            k = N_GRAM
            while k < most and ids[end - k - 1 & mask] == tokens[n - k - 1]:
                k += 1
            if k > length:
                best, length = end, k
        return best, length

    @property
    def _compared(self) -> tuple[Sequence[int], int, int]:
        """(Ids of the source, the mask that makes an index of a position, the first position)."""
        return self.source, -1, 0


class TokenIndex(Index):
    """A sequence of token ids and the positions of its 3-grams, about 70 bytes per token.

    A dict from each packed 3-gram to the end of its latest occurrence, and for every position the end of the
    previous occurrence of the same 3-gram: the hash chains of deflate (RFC 1951, section 4).
    """

    __slots__ = ("_earlier", "_key", "_latest", "source", "tokens")
    own = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self.source = self.tokens = array("i", tokens)
        self._earlier = array("i")  # by position of a 3-gram's last token; ends are exclusive, 0: none
        self._latest: dict[int, int] = {}
        self._key = 0

    def build(self, n_tokens: int) -> int:
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
        self.tokens.append(token)
        self.build(1)

    def candidates(self) -> list[int]:
        """See `Index`; latest first."""
        ends: list[int] = []
        end = self._earlier[-1] if self._earlier else 0
        while end and len(ends) < N_CANDIDATES:
            ends.append(end)
            end = self._earlier[end - 1]
        return ends


# A ring of the latest million token ids of many texts, with an index of their 3-grams.
#
# 4 bytes per token for the ids, 4 for the hash chains, and 4 MiB for the heads of the chains: 12 MiB per
# ring.


RING_BITS = 20  # tokens kept: 2**20
NO_TOKEN = -1  # between two texts, after the last one, and at positions that were overwritten
MAX_LINKS = 32  # links of a chain that are followed, other 3-grams with the same hash included
HASH_BITS = 20
_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio (Knuth, volume 3, section 6.4)
_ALL64, _ALL32 = 2**64 - 1, 2**32 - 1
_SHIFT = 64 - HASH_BITS


def _hash(a: int, b: int, c: int) -> int:
    return ((a << 42 ^ b << 21 ^ c) * _MULTIPLIER & _ALL64) >> _SHIFT


class Ring(Sequence[int]):
    """Texts one after the other, as one sequence of ids; ids older than the size of the ring are NO_TOKEN.

    `add` only queues a text; `index_pending` indexes it, a piece at a time, with the hash chains of deflate
    (RFC 1951, section 4): by hash the end of the latest 3-gram, by position the previous end with the same
    hash. Positions are stored modulo 2**32; those further back than the size of the ring are treated as
    absent, so entries never have to be removed from the chains.
    """

    def __init__(self, bits: int = RING_BITS) -> None:
        self.size, self.end = 1 << bits, 0
        self._index_mask = self.size - 1
        self._ids = np.full(self.size, NO_TOKEN, np.int32)
        self._earlier = np.zeros(self.size, np.uint32)
        self._latest = np.zeros(1 << HASH_BITS, np.uint32)
        # the same memory; reading a memoryview gives Python ints
        self._read_ids: memoryview[int] = self._ids.data
        self._read_earlier: memoryview[int] = self._earlier.data
        self._read_latest: memoryview[int] = self._latest.data
        self._pending: deque[array[int]] = deque()
        self._n_pending = 0
        self._n_indexed = 0  # tokens of the first pending text

    @property
    def n_pending(self) -> int:
        """Tokens that are not indexed yet."""
        return self._n_pending - self._n_indexed

    def add(self, text: Sequence[int]) -> None:
        """Queue a text, or the end of it that fits into the ring; `index_pending` indexes it."""
        kept = array("i", text[-(self.size - 1) :])
        if not kept:
            return
        self._pending.append(kept)
        self._n_pending += len(kept)
        while self.n_pending > self.size:
            self._drop_first()

    def _drop_first(self) -> None:
        """Remove the first pending text, which is indexed or no longer worth indexing."""
        self._n_pending -= len(self._pending.popleft())
        self._n_indexed = 0

    def index_pending(self, n_tokens: int) -> int:
        """Index up to `n_tokens` pending tokens, about 0.2 µs each; returns the number still pending."""
        while n_tokens > 0 and self._pending:
            text, done = self._pending[0], self._n_indexed
            if not done:
                self._write(np.full(1, NO_TOKEN, np.int32))
            piece = text[done : done + n_tokens]
            self._index(np.array(text[max(0, done - N_GRAM + 1) : done + len(piece)], np.int32), len(piece))
            n_tokens -= max(1, len(piece))
            self._n_indexed += len(piece)
            if self._n_indexed >= len(text):
                self._drop_first()
        return self.n_pending

    def _write(self, ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        """Append ids to the ring, over the oldest ones."""
        self._ids[np.arange(self.end, self.end + len(ids)) & self._index_mask] = ids
        self.end += len(ids)

    def _index(self, ids: np.ndarray[tuple[int], np.dtype[np.int32]], n: int) -> None:
        """Append the last `n` of the ids, and add the 3-grams that end in them to the chains."""
        self._write(ids[len(ids) - n :])
        if len(ids) < N_GRAM:
            return
        wide = ids.astype(np.uint64)
        grams = wide[:-2] << np.uint64(42) ^ wide[1:-1] << np.uint64(21) ^ wide[2:]
        hashes = grams * np.uint64(_MULTIPLIER) >> np.uint64(_SHIFT)
        ends = np.arange(self.end - len(grams) + 1, self.end + 1)
        order = np.argsort(hashes, kind="stable")
        repeated = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        earlier = self._latest[hashes]
        earlier[order[repeated + 1]] = ends[order[repeated]].astype(np.uint32)
        self._earlier[(ends - 1) & self._index_mask] = earlier
        self._latest[hashes] = ends.astype(np.uint32)  # the last one of the same hash wins

    def __len__(self) -> int:
        return self.end

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> array[int]: ...
    def __getitem__(self, at: int | slice) -> int | array[int]:
        if isinstance(at, int):
            return self._read_ids[at & self._index_mask] if 0 < self.end - at <= self.size else NO_TOKEN
        return array("i", [self[i] for i in range(at.start, at.stop)])

    def ends(self, a: int, b: int, c: int) -> list[int]:
        """The positions after the occurrences of these three ids, latest first; at most N_CANDIDATES."""
        ends: list[int] = []
        last, mask, ids, earlier = self.end, self._index_mask, self._read_ids, self._read_earlier
        max_distance, previous = self.size - N_GRAM, -1
        stored = self._read_latest[_hash(a, b, c)]
        for _ in range(MAX_LINKS):
            distance = last - stored & _ALL32
            end = last - distance
            if not previous < distance <= max_distance or end < N_GRAM:
                break  # overwritten or never written: distances along a chain only grow
            if ids[end - 1 & mask] == c and ids[end - 2 & mask] == b and ids[end - 3 & mask] == a:
                ends.append(end)
                if len(ends) == N_CANDIDATES:
                    break
            stored, previous = earlier[end - 1 & mask], distance
        return ends

    @property
    def compared(self) -> tuple[Sequence[int], int, int]:
        """See `Index`."""
        return self._read_ids, self._index_mask, self.end - self.size


class RingIndex(Index):
    """A ring is the source."""

    __slots__ = ("_ends", "source", "tokens")
    source: Ring

    def __init__(self, ring: Ring, tokens: Sequence[int]) -> None:
        self.source, self.tokens = ring, array("i", tokens)
        self._ends: list[int] | None = None

    def append(self, token: int) -> None:
        super().append(token)
        self._ends = None

    def candidates(self) -> list[int]:
        if self._ends is None:
            tokens = self.tokens
            self._ends = self.source.ends(*tokens[-N_GRAM:]) if len(tokens) >= N_GRAM else []
        return self._ends

    @property
    def _compared(self) -> tuple[Sequence[int], int, int]:
        return self.source.compared


MAX_SCOPES = 32  # most recently used scopes whose rings are kept: 384 MiB at most
N_CONTEXT = N_GRAM - 1  # ids before a text that are kept with it, so that a match can end at its first token


class RequestHistory:
    """Outputs of earlier requests, by scope. bits: a ring holds 2**bits tokens. max_scopes: rings kept. load:
    the texts with which the ring of a scope begins.
    """

    def __init__(
        self,
        bits: int = RING_BITS,
        max_scopes: int = MAX_SCOPES,
        load: Callable[[str], Iterable[Sequence[int]]] = lambda _: (),
    ) -> None:
        self.bits, self.max_scopes, self.load = bits, max_scopes, load
        self._rings: dict[str, Ring] = {}  # the most recently used one last

    def ring(self, scope: str) -> Ring:
        """The ring of this scope; a new one replaces the least recently used."""
        ring = self._rings.pop(scope, None)
        if ring is None:
            ring = Ring(self.bits)
            for text in self.load(scope):
                ring.add(text)
        self._rings[scope] = ring
        if len(self._rings) > self.max_scopes:
            del self._rings[next(iter(self._rings))]
        return ring

    def keep(self, scope: str, history: Sequence[int], n_prompt: int) -> Sequence[int]:
        """Keep the ids after the first `n_prompt`. They are indexed piece by piece, in later rounds. Returns
        what is kept, with some ids before, none of them from before an image.
        """
        text = history[max(0, n_prompt - N_CONTEXT) :] if len(history) > n_prompt else ()
        text = text[next((i for i in range(len(text), 0, -1) if text[i - 1] >= FIRST_PLACEHOLDER), 0) :]
        if text:
            self.ring(scope).add(text)
        return text

    @property
    def pending(self) -> Ring | None:
        """A ring with texts that are not indexed yet."""
        return next((ring for ring in self._rings.values() if ring.n_pending), None)

    def index_pending(self, n_tokens: int) -> None:
        """Index so many tokens of one ring."""
        if (ring := self.pending) is not None:
            ring.index_pending(n_tokens)
