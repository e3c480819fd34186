"""The outputs of earlier requests, by scope, each scope in a ring (ring.py). Knows ids only."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.drafters.ngram_index import N_GRAM
from specllama.drafters.ring import RING_BITS, Ring

MAX_SCOPES = 32  # most recently used scopes whose rings are kept: 384 MiB at most
N_CONTEXT = N_GRAM - 1  # ids before a text that are kept with it, so that a match can end at its first token


class RequestHistory:
    """Outputs of earlier requests, by scope. bits: a ring holds 2**bits tokens. max_scopes: rings kept."""

    def __init__(self, bits: int = RING_BITS, max_scopes: int = MAX_SCOPES) -> None:
        self.bits, self.max_scopes = bits, max_scopes
        self._rings: dict[str, Ring] = {}  # the most recently used one last

    def ring(self, scope: str) -> Ring:
        """The ring of this scope; a new one replaces the least recently used."""
        ring = self._rings.pop(scope, None)
        if ring is None:
            ring = Ring(self.bits)
        self._rings[scope] = ring
        if len(self._rings) > self.max_scopes:
            del self._rings[next(iter(self._rings))]
        return ring

    def keep(self, scope: str, history: Sequence[int], n_prompt: int) -> None:
        """Keep the ids after the first `n_prompt`. They are indexed piece by piece, in later rounds."""
        if len(history) > n_prompt:
            self.ring(scope).add(history[max(0, n_prompt - N_CONTEXT) :])

    @property
    def n_bytes(self) -> int:
        """Bytes of memory, pending texts not included."""
        return sum(ring.n_bytes for ring in self._rings.values())
