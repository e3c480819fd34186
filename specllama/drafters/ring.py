"""The latest million ids of many texts, one after the other, and where in them a run of three has stood.

Knows ids only. 4 bytes a token for the ids, 4 for the chains, and 4 MiB for where they begin: 12 MiB at most.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import overload

import numpy as np

from specllama.drafters.ngram_index import MAX_COMPARED, N_CANDIDATES, N_GRAM

MAX_SCOPES = 32  # whose rings are kept, the last ones used: 384 MiB at most
LEAD = N_GRAM - 1  # ids before a text that are kept with it, so that its first token can be gone on from
RING_BITS = 20  # tokens kept: 2**20
NOTHING = -1  # where no token is: between two texts, after the last one, and where one was overwritten
MAX_LINKS = 32  # of a chain that are followed; runs of the same hash and other ids are among them
HASH_BITS = 20
_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio (Knuth, volume 3, section 6.4)
_ALL64, _ALL32 = 2**64 - 1, 2**32 - 1
_SHIFT = 64 - HASH_BITS


def _hash(a: int, b: int, c: int) -> int:
    return ((a << 42 ^ b << 21 ^ c) * _MULTIPLIER & _ALL64) >> _SHIFT


class Ring(Sequence[int]):
    """Texts by position, as one sequence of ids; what is older than its size is NOTHING.

    `add` only notes a text; `index_pending` indexes it, a piece at a time, with the hash chains of deflate
    (RFC 1951, section 4): by hash the latest end of a run, by position the end before it with the same hash.
    Positions are kept modulo 2**32; one that is further back than the ring is long has been forgotten, so
    nothing need be taken out of the chains.
    """

    def __init__(self, bits: int = RING_BITS) -> None:
        self.size, self.end = 1 << bits, 0
        self._slots = self.size - 1
        self._ids = np.full(self.size, NOTHING, np.int32)
        self._earlier = np.zeros(self.size, np.uint32)
        self._latest = np.zeros(1 << HASH_BITS, np.uint32)
        # the same memory, read as Python's ints
        self._read_ids: memoryview[int] = self._ids.data
        self._read_earlier: memoryview[int] = self._earlier.data
        self._read_latest: memoryview[int] = self._latest.data
        self._waiting: deque[array[int]] = deque()
        self._n_waiting = 0
        self._n_done = 0  # of the first one that waits

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, waiting texts not included."""
        return self._ids.nbytes + self._earlier.nbytes + self._latest.nbytes

    def add(self, text: Sequence[int]) -> None:
        """Note a text, as far as the ring takes it; `index_pending` indexes it."""
        kept = array("i", text[-(self.size - 1) :])
        if not kept:
            return
        self._waiting.append(kept)
        self._n_waiting += len(kept)
        while self._n_waiting - self._n_done > self.size:
            self._drop()

    def _drop(self) -> None:
        """The first text that waits is done, or will not be filed any further."""
        self._n_waiting -= len(self._waiting.popleft())
        self._n_done = 0

    def index_pending(self, n_tokens: int) -> int:
        """File up to `n_tokens` more of what waits; how many still wait. About 0.2 µs a token."""
        while n_tokens > 0 and self._waiting:
            text, done = self._waiting[0], self._n_done
            if not done:
                self._put(np.full(1, NOTHING, np.int32))
            piece = text[done : done + n_tokens]
            self._file(np.array(text[max(0, done - N_GRAM + 1) : done + len(piece)], np.int32), len(piece))
            n_tokens -= max(1, len(piece))
            self._n_done += len(piece)
            if self._n_done >= len(text):
                self._drop()
        return self._n_waiting - self._n_done

    def _put(self, ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        self._ids[np.arange(self.end, self.end + len(ids)) & self._slots] = ids
        self.end += len(ids)

    def _file(self, ids: np.ndarray[tuple[int], np.dtype[np.int32]], n: int) -> None:
        """Put the last `n` of the ids, and chain the runs that end in them."""
        self._put(ids[len(ids) - n :])
        if len(ids) < N_GRAM:
            return
        wide = ids.astype(np.uint64)
        runs = wide[:-2] << np.uint64(42) ^ wide[1:-1] << np.uint64(21) ^ wide[2:]
        hashes = runs * np.uint64(_MULTIPLIER) >> np.uint64(_SHIFT)
        ends = np.arange(self.end - len(runs) + 1, self.end + 1)
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        before = self._latest[hashes]
        before[order[again + 1]] = ends[order[again]].astype(np.uint32)
        self._earlier[(ends - 1) & self._slots] = before
        self._latest[hashes] = ends.astype(np.uint32)  # of the same hash the last one stays

    def __len__(self) -> int:
        return self.end

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> array[int]: ...
    def __getitem__(self, at: int | slice) -> int | array[int]:
        if isinstance(at, int):
            return self._read_ids[at & self._slots] if 0 < self.end - at <= self.size else NOTHING
        return array("i", [self[i] for i in range(at.start, at.stop)])

    def ends(self, a: int, b: int, c: int) -> list[int]:
        """The positions after the latest places where the ids stand so, latest first."""
        found: list[int] = []
        last, slots, ids, earlier = self.end, self._slots, self._read_ids, self._read_earlier
        farthest, before = self.size - N_GRAM, -1
        stored = self._read_latest[_hash(a, b, c)]
        for _ in range(MAX_LINKS):
            back = last - stored & _ALL32
            end = last - back
            if not before < back <= farthest or end < N_GRAM:
                break  # forgotten, or never there: chains lead back only
            if ids[end - 1 & slots] == c and ids[end - 2 & slots] == b and ids[end - 3 & slots] == a:
                found.append(end)
                if len(found) == N_CANDIDATES:
                    break
            stored, before = earlier[end - 1 & slots], back
        return found

    def longest(self, tokens: Sequence[int], ends: Sequence[int]) -> tuple[int, int]:
        """Of these places, where the last three of `tokens` stand, the one that agrees with most of them, and
        with how many; (0, 0) without any. Of equal ones the first.
        """
        slots, ids, n, best, length = self._slots, self._read_ids, len(tokens), 0, 0
        for end in ends:
            most = min(n, MAX_COMPARED, self.size - (self.end - end))
            if best and (length >= most or ids[end - length - 1 & slots] != tokens[n - length - 1]):
                continue  # cannot be longer than the best
            k = N_GRAM
            while k < most and ids[end - k - 1 & slots] == tokens[n - k - 1]:
                k += 1
            if k > length:
                best, length = end, k
        return best, length


class RingIndex:
    """Where in a ring the end of a text has stood: what `TokenIndex` is for the text itself."""

    __slots__ = ("_found", "source", "tokens")
    own = False

    def __init__(self, ring: Ring, tokens: Sequence[int]) -> None:
        self.source, self.tokens = ring, array("i", tokens)
        self._found: list[int] | None = None

    def build(self, n_tokens: int) -> int:  # noqa: ARG002
        """Nothing of the text itself is indexed."""
        return 0

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self._found = None

    def candidates(self) -> list[int]:
        if self._found is None:
            tokens = self.tokens
            self._found = self.source.ends(*tokens[-N_GRAM:]) if len(tokens) >= N_GRAM else []
        return self._found

    def longest(self) -> tuple[int, int]:
        return self.source.longest(self.tokens, self.candidates())


class RequestHistory:
    """What was written, by scope. bits: a ring holds 2**bits tokens. most: scopes that are kept."""

    def __init__(self, bits: int = RING_BITS, most: int = MAX_SCOPES) -> None:
        self.bits, self.most = bits, most
        self._rings: dict[str, Ring] = {}  # the one used last at the end

    def of(self, scope: str) -> Ring:
        """The ring of this scope. A new one replaces the least recently used."""
        ring = self._rings.pop(scope, None)
        if ring is None:
            ring = Ring(self.bits)
        self._rings[scope] = ring
        if len(self._rings) > self.most:
            del self._rings[next(iter(self._rings))]
        return ring

    def keep(self, scope: str, history: Sequence[int], n_prompt: int) -> None:
        """Keep what was written after the prompt. It is indexed piece by piece, in later rounds."""
        if len(history) > n_prompt:
            self.of(scope).add(history[max(0, n_prompt - LEAD) :])

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, texts that wait to be indexed not included."""
        return sum(ring.n_bytes for ring in self._rings.values())
