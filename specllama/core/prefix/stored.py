"""Evaluated texts outside of a context's sequences, as the prefix store keeps them: cached sequences, partial
states.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Saved

# The worth of a state: chance of return × seconds saved ÷ bytes.
#
# The order of eviction is that of GreedyDual-Size with frequency (Cherkasova, HPL-98-69): the value is
# counted from the value of what was evicted last, so that what is not used again becomes the next to go. Its
# age does not count: with a chance learnt for each age, replayed sessions were evaluated no less.


_PRIOR: Mapping[str, float] = {
    "system": 0.6, "answer": 0.5, "reasoning": 0.5, "end": 0.3, "user": 0.3, "distance": 0.3,
}  # fmt: skip
_PRIOR_WEIGHT = 8.0  # states as which the prior counts


class Chances:
    """The chances of return by kind of boundary, and `floor`, the value of what was evicted last."""

    def __init__(self) -> None:
        self._kept: Counter[str] = Counter()  # states that were made, or kept after a use
        self._returned: Counter[str] = Counter()  # uses
        self.floor = 0.0

    def kept(self, kind: str) -> float:
        """A state was made, or is kept after a use; returns the floor from which its value is counted."""
        self._kept[kind] += 1
        return self.floor

    def returned(self, kind: str) -> None:
        """A state was used."""
        self._returned[kind] += 1

    def chance(self, kind: str) -> float:
        """How likely a state of this kind is used again."""
        prior = _PRIOR.get(kind, 0.3) * _PRIOR_WEIGHT
        return (self._returned[kind] + prior) / (self._kept[kind] + _PRIOR_WEIGHT)

    def priority(
        self, kind: str, uses: int, seconds: float, n_bytes: int, floor: float | None = None
    ) -> float:
        """The eviction priority: states with the highest one are kept longest. floor: when it was made or
        used last; None: now.
        """
        since = self.floor if floor is None else floor
        return since + self.chance(kind) * (1 + uses) * seconds / max(1, n_bytes)

    def evicted(self, priority: float) -> None:
        self.floor = max(self.floor, priority)


# The positions of a prompt at which partial states are saved. Pure functions of the prompt.
#
# They depend on the text alone, so a prompt is evaluated in the same pieces for every request.


CHUNK = 64  # rows; kernels round groups of this size the same way in a decode of any width
GAP = 64  # ids between two states at least: reading so few again costs less than a decode for each state
_FIRST_DISTANCE, _DISTANCE_FACTOR = 64, 4
_ALWAYS = ("system", "reasoning")  # kinds for which a piece of _SHORT ids is worth a decode of its own
_SHORT = 8
Kind = Literal["system", "user", "reasoning", "end", "answer", "distance"]
"""Where a partial state was made: after the system prompt and the tools; at the start of a user message;
before an answer whose reasoning the template strips later; before the last words of a prompt; after an
answer; at a distance from the end of a prompt without known boundaries.
"""
KINDS: tuple[str, ...] = get_args(Kind)


class Boundary(NamedTuple):
    """A position in a prompt up to which later prompts may share it. n: the ids before it."""

    n: int
    kind: Kind


def distances(n_prompt: int) -> list[Boundary]:
    """Boundaries at growing distances from the end of a prompt of unknown structure, at multiples of
    GAP.
    """
    ends, distance = set(), _FIRST_DISTANCE
    while distance < n_prompt:
        ends.add((n_prompt - distance) // GAP * GAP)
        distance *= _DISTANCE_FACTOR
    return [Boundary(n, "distance") for n in sorted(ends) if n]


def ahead(
    boundaries: Iterable[Boundary], n_past: int, n_prompt: int, chunk: int | None = None
) -> list[Boundary]:
    """The boundaries at which an evaluation stops that begins with n_past ids in the cache, without those
    that are too close to the one before. chunk: pieces end at multiples of it only; None: anywhere.
    """
    stops = list[Boundary]()
    last = n_past
    for n, kind in sorted(boundaries):
        at = n if chunk is None else n // chunk * chunk
        gap = GAP if kind not in _ALWAYS or at < GAP else _SHORT
        if last + gap <= at < n_prompt:
            stops.append(Boundary(at, kind))
            last = at
    return stops


def next_stop(boundaries: Sequence[Boundary], n_past: int, n: int) -> tuple[int, Boundary | None]:
    """(The ids after the next piece of a prompt of n ids, the boundary there)."""
    stop = next((b for b in boundaries if b.n > n_past), None)
    return (n, None) if stop is None or stop.n >= n else (stop.n, stop)


Ids = NDArray[np.int32]


@dataclass(slots=True, eq=False, weakref_slot=True)
class PartialState:
    """A recurrent state, or the cells of windowed layers, after the first `n` ids of a text; with the
    attention cells of these ids it is a prefix. state: opaque to all but its Context, None once it was
    evicted. n_saved: ids that need not be evaluated thanks to it, beyond those of the state before it.
    priority: see `Chances`. floor: the value of what had been evicted when it was made or used last, None
    before it was kept.
    """

    n: int
    kind: Kind
    state: Saved | None
    n_bytes: int
    n_saved: int
    priority: float = 0.0
    uses: int = 0
    floor: float | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class CachedSequence:
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
    floor: float | None = None
    n_begun: int = 0
    n_first: int = 0


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


_TEXT = "answer"  # the kind of boundary at which a cached sequence ends


class StateCache:
    """Stored texts and partial states, those of the slots included.

    budget: bytes that they may occupy. row_seconds: seconds of reading one id of a prompt.
    """

    def __init__(
        self,
        budget: float = inf,
        row_seconds: Callable[[], float] = lambda: 1e-3,
    ) -> None:
        self.budget, self.row_seconds = budget, row_seconds
        self.texts: list[CachedSequence] = []
        self.chances = Chances()
        self._partials: weakref.WeakSet[PartialState] = weakref.WeakSet()

    @property
    def n_bytes(self) -> int:
        return sum(t.n_bytes for t in self.texts) + sum(p.n_bytes for p in self.partials())

    def partials(self) -> Iterator[PartialState]:
        """The partial states that are held by a slot or a cached sequence."""
        return (p for p in self._partials if p.state is not None)

    def has_room(self, n_bytes: int, priority: float) -> bool:
        """Whether so many bytes may be used for a state of this priority, after evicting what has a lower
        one. Where that is not enough, nothing is evicted: the state itself is what goes first.
        """
        if n_bytes > self.budget:
            return False
        victims = self.victims(n_bytes, priority)
        if victims is None:
            self.chances.evicted(priority)
            return False
        for one in victims:
            self.chances.evicted(one.priority)
            if isinstance(one, PartialState):
                one.state = None
            else:
                self.remove_text(one)
        return True

    def victims(self, n_bytes: int, priority: float) -> list[CachedSequence | PartialState] | None:
        """The states to evict for so many bytes; None where that would include a state of a higher priority,
        or is not enough.
        """
        if n_bytes > self.budget:
            return None
        missing, victims = self.n_bytes + n_bytes - self.budget, list[CachedSequence | PartialState]()
        if missing <= 0:
            return victims
        held: list[CachedSequence | PartialState] = [*self.texts, *self.partials()]
        for one in held:
            one.priority = self._priority(one)
        for one in sorted(held, key=lambda s: s.priority):
            if missing <= 0 or one.priority > priority:
                break
            victims.append(one)
            missing -= one.n_bytes
        return victims if missing <= 0 else None

    def add_partial(self, partial: PartialState) -> None:
        partial.floor = self.chances.kept(partial.kind)
        self._partials.add(partial)

    def add_text(self, text: CachedSequence) -> None:
        """Store a text. Texts that it begins with are contained in it, and removed."""
        for other in [t for t in self.texts if t.scope == text.scope]:
            n = n_common(other.ids, text.ids)
            if n == len(other.ids):
                merge(text, other.partials)
                self.texts.remove(other)
                continue
            other.n_shared, text.n_shared = max(other.n_shared, n), max(text.n_shared, n)
        text.floor = self.chances.kept(_TEXT)
        self.texts.append(text)

    def remove_text(self, text: CachedSequence) -> None:
        """Without effect on a text that is not stored any more."""
        if not any(t is text for t in self.texts):
            return
        self.texts = [t for t in self.texts if t is not text]
        for one in self.texts:
            if one.scope == text.scope and n_common(one.ids, text.ids) >= one.n_shared:
                others = [t for t in self.texts if t is not one and t.scope == one.scope]
                one.n_shared = max((n_common(one.ids, t.ids) for t in others), default=0)

    def containing(self, ids: Ids, scope: str) -> CachedSequence | None:
        """The cached sequence that begins with these ids."""
        for text in self.texts:
            if text.scope == scope and len(text.ids) >= len(ids) and n_common(text.ids, ids) == len(ids):
                return text
        return None

    def of_text(self, n_ids: int, uses: int, n_bytes: int) -> float:
        """The priority of a text whose ids, so many, nothing else holds."""
        return self.chances.priority(_TEXT, uses, n_ids * self.row_seconds(), n_bytes)

    def of_partial(self, partial: PartialState) -> float:
        seconds = partial.n_saved * self.row_seconds()
        return self.chances.priority(partial.kind, partial.uses, seconds, partial.n_bytes, partial.floor)

    def _priority(self, one: CachedSequence | PartialState) -> float:
        """The priority of a state that is kept."""
        if isinstance(one, PartialState):
            return self.of_partial(one)
        seconds = (len(one.ids) - one.n_shared) * self.row_seconds()
        return self.chances.priority(_TEXT, one.uses, seconds, one.n_bytes, one.floor)

    def used(self, one: CachedSequence | PartialState) -> None:
        """A state was of use: it is worth more from now on."""
        one.uses += 1
        if one.floor is not None:
            kind = one.kind if isinstance(one, PartialState) else _TEXT
            self.chances.returned(kind)
            one.floor = self.chances.kept(kind)
        one.priority = self._priority(one)


def merge(text: CachedSequence, partials: list[PartialState]) -> None:
    """Add the states at boundaries where the text has none."""
    have = {p.n for p in text.partials if p.state is not None}
    text.partials = sorted(
        [*text.partials, *(p for p in partials if p.n not in have and p.state is not None)], key=lambda p: p.n
    )
