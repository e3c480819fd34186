"""Which prefixes of a prompt are there: in the slots of a context, and among the stored texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specllama.core.interfaces import Context
from specllama.core.prefix.state_cache import StateCache
from specllama.core.prefix.stored import Ids, PartialState, StoredText, as_ids, n_common, usable

if TYPE_CHECKING:
    from specllama.core.sequence import Generation


# A slot: a sequence of the target's cache, and what is in it.


@dataclass(slots=True)
class Slot:
    """A sequence of the target's cache. ids: the ids in the cache while no generation uses it. partials:
    states at boundaries within them, or within those of the generation. scope: whose ids they are; only
    generations of the same `Request.cache_scope` reuse them. kept: whether they may be written to the disk.
    n_prompt: ids of the last prompt. n_whole: ids at the start that were evaluated in whole chunks of an
    exact prompt, in the first cells of the cache. n_begun: ids from which on its last prompt was evaluated.
    last_used: time by the engine's clock. owner: the
    generation that uses it.
    """

    seq_id: int
    ids: list[int] = field(default_factory=list)
    scope: str = ""
    partials: list[PartialState] = field(default_factory=list)
    n_prompt: int = 0
    n_whole: int = 0
    n_begun: int = 0
    last_used: float = 0.0
    priority: float = 0.0
    uses: int = 0
    kept: bool = True
    owner: Generation | None = None


def empty(target: Context, slot: Slot) -> None:
    """Free the slot's cells, and forget its text."""
    target.truncate(slot.seq_id, 0)
    slot.ids, slot.partials, slot.n_prompt, slot.n_whole, slot.n_begun, slot.uses = [], [], 0, 0, 0, 0


MIN_SHARED = 32  # ids: a shorter prefix is not worth copying, nor is the end of a text worth keeping
_MIN_LOADED = 16  # ids for which a stored text is loaded


@dataclass(slots=True)
class PrefixSource:
    """A prefix that is there. holder: whose cache has its cells. partial: the state at its end, where one is
    needed. n_ids: common with the holder, at least n. seconds: of copying it.
    """

    holder: Slot | StoredText
    n: int
    n_ids: int
    partial: PartialState | None
    seconds: float


class PrefixFinder:
    """Finds the prefixes of texts in these slots and in the state cache."""

    def __init__(self, target: Context, slots: Sequence[Slot], state_cache: StateCache) -> None:
        self._target, self._slots, self._state_cache = target, slots, state_cache
        self._arrays: dict[int, tuple[list[int], Ids]] = {}  # of the ids of idle slots

    def sources(
        self, wanted: Ids, scope: str, row_seconds: float, rate: float, more: StoredText | None = None
    ) -> list[PrefixSource]:
        """What is worth using, the best first. row_seconds: seconds of reading one id. rate: bytes per second
        that are copied. more: a text that is not in the list of the state cache.
        """

        def gain(source: PrefixSource) -> float:
            """Seconds saved. Of equal ones an idle slot is better than a copy."""
            copied = isinstance(source.holder, Slot) and source.holder.owner is not None
            return (source.n - (MIN_SHARED - 1 if copied else 0)) * row_seconds - source.seconds

        useful = [s for s in self._candidates(wanted, scope, rate, more) if gain(s) > 0]
        return sorted(useful, key=gain, reverse=True)

    def _candidates(
        self, wanted: Ids, scope: str, rate: float, more: StoredText | None
    ) -> Iterable[PrefixSource]:
        """The prefixes of these ids in slots and among the stored texts."""
        most = len(wanted) - 1
        holders: list[tuple[Slot | StoredText, Ids]] = [(t, t.ids) for t in self._state_cache.texts]
        holders += [(more, more.ids)] if more is not None else []
        holders += [(s, self._ids_of(s, wanted)) for s in self._slots if s.scope == scope]
        for holder, ids in holders:
            if holder.scope != scope or not len(ids):
                continue
            common = min(n_common(ids, wanted), most)
            n, partial = self._reusable(holder, len(ids), common)
            if n >= (_MIN_LOADED if isinstance(holder, StoredText) else 1):
                n_bytes = partial.n_bytes if partial is not None else 0
                n_bytes += holder.n_bytes if isinstance(holder, StoredText) else 0
                yield PrefixSource(holder, n, common, partial, n_bytes / rate)

    def _ids_of(self, slot: Slot, wanted: Ids) -> Ids:
        """The ids in the slot's cache; of one in use, those that others may copy. Empty where nothing is
        common with `wanted`.
        """
        owner, ids = slot.owner, slot.ids
        if owner is not None:
            ids = owner.history if owner.prefix_owner is None else []
        n_past = len(ids) if owner is None else owner.n_past
        if not n_past or not len(wanted) or ids[0] != wanted[0]:
            return as_ids(())
        if owner is not None:
            return as_ids(ids[:n_past])
        of, array = self._arrays.get(slot.seq_id, (None, None))
        if of is not ids or array is None:
            array = as_ids(ids)
            self._arrays[slot.seq_id] = ids, array
        return array

    def _reusable(
        self, holder: Slot | StoredText, n_ids: int, common: int
    ) -> tuple[int, PartialState | None]:
        """How many of the `common` ids can be had from a holder of n_ids, and the state that it takes."""
        if self._target.cuts_anywhere or common <= 0:
            return max(common, 0), None
        if common == n_ids:
            return common, None
        if isinstance(holder, Slot):
            can = self._target.can_truncate if holder.owner is None else self._target.can_copy
            if can(holder.seq_id, common):
                return common, None
        partial = usable(holder.partials, common)
        return (partial.n, partial) if partial is not None else (0, None)
