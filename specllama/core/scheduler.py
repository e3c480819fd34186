"""Sequences of the target's cache: who uses them, what they hold while nobody does, which one a request
takes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specllama.core.interfaces import Context, Saved
from specllama.core.sequence import Generation, common_prefix


@dataclass(slots=True)
class Slot:
    """A sequence of the target's cache. ids: what the cache holds while nobody uses it; or `saved` does, and
    the cache nothing.
    """

    seq_id: int
    ids: list[int] = field(default_factory=list)
    saved: Saved | None = None
    last_used: float = 0.0
    owner: Generation | None = None


WORTH_SHARING = 32  # ids in common with a slot in use; for fewer, idle caches are left where they are
_PASSED = 4  # newcomers that each further text of a request lets pass


class FairQueue:
    """The order in which generations get slots: as they come, but the second, third … text of a request
    (`Request.turn`) lets some that come later pass. Places only grow, so nobody waits for ever.
    """

    def __init__(self) -> None:
        self._arrived = 0

    def join(self, waiting: list[Generation], generation: Generation) -> None:
        """Put the generation where it belongs among those that wait."""
        turn = generation.request.turn
        self._arrived += turn == 0
        generation.place = self._arrived + turn * _PASSED
        insort(waiting, generation, key=lambda g: g.place)


def next_to_fill(filling: Sequence[Generation]) -> Generation | None:
    """Whose prompt is evaluated next: a chunk each in turn, so that a short prompt does not wait for a long
    one.
    """
    return min(filling, key=lambda g: g.n_chunks, default=None)


def take_slot(
    target: Context,
    idle: Sequence[Slot],
    ids: Sequence[int],
    active: Sequence[tuple[int, Sequence[int]]] = (),
) -> tuple[Slot, int]:
    """The idle slot for these ids, and how many of them its cache holds already. active: (seq_id, ids in the
    cache) of the slots in use.

    A cache is taken over where at least half of it is of use; else the common beginning is shared with the
    slot that was not used for longest, so that a long cache outlives a short request that begins alike. What
    a slot in use has more in common is shared too, where the memory can give a part of a sequence.
    """
    best = max(idle, key=lambda s: (common_prefix(s.ids, ids), s.last_used))
    common = max(0, min(common_prefix(best.ids, ids), len(ids) - 1))
    oldest = min(idle, key=lambda s: s.last_used)
    shared, seq_id = max(((common_prefix(held, ids), seq) for seq, held in active), default=(0, 0))
    shared = min(shared, len(ids) - 1)
    if shared >= common + WORTH_SHARING:
        n = target.copy(seq_id, oldest.seq_id, shared)
        if n or target.n_past(oldest.seq_id) < len(oldest.ids):
            oldest.ids, oldest.saved = [], None
        return (oldest, n) if n else take_slot(target, idle, ids)
    slot, saved = best if common and 2 * common >= len(best.ids) else oldest, best.saved
    if slot is best and common and saved is None:
        return best, target.truncate(best.seq_id, common)
    empty(target, slot)
    if not common:
        return slot, 0
    if saved is None:
        return slot, target.copy(best.seq_id, slot.seq_id, common)
    return slot, target.truncate(slot.seq_id, common) if target.load(slot.seq_id, saved) else 0


def empty(target: Context, slot: Slot) -> None:
    """Give the slot's cells back to the pool."""
    target.truncate(slot.seq_id, 0)
    slot.ids, slot.saved = [], None


def offload_idle(
    target: Context, slots: Sequence[Slot], before: float, allowed: Callable[[int], bool]
) -> None:
    """Save what nobody has used since `before` (seconds of the engine's clock) and give its cells back: a
    decode goes over all cells of the cache, whoever's they are. allowed: whether so many bytes may be taken.
    """
    for slot in slots:
        if slot.owner is None and slot.ids and slot.saved is None and slot.last_used < before:
            size = target.size(slot.seq_id)
            if size and allowed(size):
                slot.saved = target.save(slot.seq_id)
                if slot.saved is not None:
                    target.truncate(slot.seq_id, 0)
