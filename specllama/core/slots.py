"""The sequences of the target's cache while no generation uses them: which one to reuse, what to move out.

Knows a context by its interface. Who gets a slot, and when, is in scheduler.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specllama.core.interfaces import Context, Saved
from specllama.core.sequence import Generation, common_prefix

MIN_SHARED = 32  # further ids in common with a slot in use from which its cells are shared


@dataclass(slots=True)
class Slot:
    """A sequence of the target's cache. ids: the ids in the cache while no generation uses it, or in `saved`,
    with an empty cache. scope: whose ids they are; only generations of the same `Request.cache_scope` reuse
    them. n_whole: ids at the start that were evaluated in whole chunks of an exact prompt, in the first
    cells of the cache. last_used: time by the engine's clock. owner: the generation that uses it.
    """

    seq_id: int
    ids: list[int] = field(default_factory=list)
    scope: str = ""
    saved: Saved | None = None
    n_whole: int = 0
    last_used: float = 0.0
    owner: Generation | None = None


def take_slot(
    target: Context,
    idle: Sequence[Slot],
    ids: Sequence[int],
    active: Sequence[tuple[int, Sequence[int]]] = (),
    scope: str = "",
) -> tuple[Slot, int]:
    """The idle slot for these ids, and how many of them its cache holds already. active: (seq_id, cached ids)
    of the slots in use in the same scope. scope: idle slots of other scopes are overwritten, never reused,
    whatever they hold.

    A slot's cache is reused in place if at least half of it is common; otherwise the common prefix is copied
    to the least recently used slot, so that a long cache survives a short request with the same start. A
    longer common prefix with a slot in use is shared, where the memory can share a part of a sequence.
    """

    def n_common(slot: Slot) -> int:
        return common_prefix(slot.ids, ids) if slot.scope == scope else 0

    best = max(idle, key=lambda s: (n_common(s), s.last_used))
    common = max(0, min(n_common(best), len(ids) - 1))
    oldest = min(idle, key=lambda s: s.last_used)
    shared, seq_id = max(((common_prefix(cached, ids), seq) for seq, cached in active), default=(0, 0))
    shared = min(shared, len(ids) - 1)
    if shared >= common + MIN_SHARED:
        n = target.copy(seq_id, oldest.seq_id, shared)
        if n or target.n_past(oldest.seq_id) < len(oldest.ids):
            oldest.ids, oldest.saved = [], None
        return (oldest, n) if n else take_slot(target, idle, ids, scope=scope)
    slot, saved = best if common and 2 * common >= len(best.ids) else oldest, best.saved
    if slot is best and common and saved is None:
        return best, target.truncate(best.seq_id, common)
    empty(target, slot)
    if not common:
        return slot, 0
    if saved is None:
        return slot, target.copy(best.seq_id, slot.seq_id, common)
    return slot, target.truncate(slot.seq_id, common) if target.load(slot.seq_id, saved) else 0


def take_alone(
    target: Context, idle: Sequence[Slot], ids: Sequence[int], chunk: int, scope: str = ""
) -> tuple[Slot, int]:
    """As `take_slot`, with no other cells in the context than those of the slot; called while all are idle.

    Only whole chunks of earlier exact prompts are reused: their cells are those that this prompt would fill.
    """

    def n_common(slot: Slot) -> int:
        if slot.scope != scope or slot.saved is not None:
            return 0
        return min(common_prefix(slot.ids, ids), len(ids) - 1, slot.n_whole) // chunk * chunk

    best = max(idle, key=lambda s: (n_common(s), -s.last_used))
    common = n_common(best)
    for slot in idle:
        if slot is not best or not common:
            empty(target, slot)
    return best, target.truncate(best.seq_id, common)


def empty(target: Context, slot: Slot) -> None:
    """Free the slot's cells and discard its saved cache."""
    target.truncate(slot.seq_id, 0)
    slot.ids, slot.saved, slot.n_whole = [], None, 0


def offload_idle(
    target: Context, slots: Sequence[Slot], before: float, allowed: Callable[[int], bool]
) -> None:
    """Save the caches of slots unused since `before` (seconds of the engine's clock) and free their cells,
    because a decode reads all cells of the context. allowed: from a number of bytes to whether they may be
    used.
    """
    for slot in slots:
        if slot.owner is None and slot.ids and slot.saved is None and slot.last_used < before:
            size = target.size(slot.seq_id)
            if size and allowed(size):
                slot.saved = target.save(slot.seq_id)
                if slot.saved is not None:
                    target.truncate(slot.seq_id, 0)
