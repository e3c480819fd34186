"""Evaluated texts outside of a context's sequences, as the prefix store keeps them: stored texts, partial
states. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Saved
from specllama.core.prefix.boundaries import Kind
from specllama.core.prefix.value import Wait

Ids = NDArray[np.int32]


@dataclass(slots=True, eq=False, weakref_slot=True)
class PartialState:
    """A recurrent state, or the cells of windowed layers, after the first `n` ids of a text; with the
    attention cells of these ids it is a prefix. state: opaque to all but its Context, None once it was
    evicted. n_saved: ids that need not be evaluated thanks to it, beyond those of the state before it.
    priority: see `value.Chances`. wait: since its last use, None before it was kept.
    """

    n: int
    kind: Kind
    state: Saved | None
    n_bytes: int
    n_saved: int
    priority: float = 0.0
    uses: int = 0
    wait: Wait | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class StoredText:
    """A text whose cache was copied out of the context. saved: opaque to all but its Context. n_shared: ids
    at the start that another text of the store has too. draft: the draft model's cache of its first ids,
    None for none. n_bytes: of both. Others as in `Slot`.
    """

    ids: Ids
    scope: str
    saved: Saved
    n_bytes: int
    partials: list[PartialState]
    n_prompt: int
    n_shared: int = 0
    priority: float = 0.0
    uses: int = 0
    kept: bool = True
    draft: Saved | None = None
    wait: Wait | None = None


def usable(partials: Iterable[PartialState], n: int) -> PartialState | None:
    """The last state at or before the first `n` ids that was not evicted."""
    reachable = (p for p in partials if p.n <= n and p.state is not None)
    return max(reachable, key=lambda p: p.n, default=None)


def as_ids(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, np.int32)


def n_common(a: Ids, b: Ids) -> int:
    """Length of the common prefix of two arrays of ids."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:
        return 0
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
