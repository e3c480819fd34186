"""The prefix store: which prefix a request reuses, in which slot, and what is kept of the others.

When generations get slots is decided in scheduler.py, what is kept in RAM in stored.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from specllama.core.image_rows import image_runs, whole_runs
from specllama.core.interfaces import CachingDrafter, Context, Saved
from specllama.core.prefix.stored import (
    CHUNK,
    Boundary,
    CachedSequence,
    Chances,
    Ids,
    PartialState,
    StateCache,
    as_ids,
    merge,
    n_common,
    usable,
)

if TYPE_CHECKING:
    from specllama.core.sequence import Generation


@dataclass(slots=True)
class Slot:
    """A sequence of the target's cache. ids: the ids in the cache while no generation uses it. partials:
    states at boundaries within them, or within those of the generation. scope: whose ids they are; only
    generations of the same `Request.cache_scope` reuse them. kept: whether they may be written to the disk.
    n_prompt: ids of the last prompt. n_whole: ids at the start that were evaluated in whole chunks of an
    exact prompt, in the first cells of the cache. n_begun: ids from which on its last prompt was evaluated.
    n_first: the first ids, whose rows are those of the first prompt, 0 if unknown. last_used: time by the
    engine's clock. owner: the generation that uses it.
    """

    seq_id: int
    ids: list[int] = field(default_factory=list)
    scope: str = ""
    partials: list[PartialState] = field(default_factory=list)
    n_prompt: int = 0
    n_whole: int = 0
    n_begun: int = 0
    n_first: int = 0
    last_used: float = 0.0
    priority: float = 0.0
    uses: int = 0
    kept: bool = True
    owner: Generation | None = None


def empty(target: Context, slot: Slot) -> None:
    """Free the slot's cells, and forget its text."""
    target.truncate(slot.seq_id, 0)
    slot.ids, slot.partials, slot.n_prompt, slot.n_whole, slot.n_begun, slot.uses = [], [], 0, 0, 0, 0
    slot.n_first = 0


def whole_chunks(ids: Sequence[int], begun: int, n: int, chunk: int) -> int:
    """At most the first n ids, in whole chunks of what was evaluated from `begun` on; images are chunks of
    their own.
    """
    n = whole_runs(ids, n)
    begun = max([begun, *(end for _, end in image_runs(ids[:n]))])
    return begun + (n - begun) // chunk * chunk


MIN_SHARED = 32  # ids: a shorter prefix is not worth copying, nor is the end of a text worth keeping
_MIN_LOADED = 16  # ids for which a stored text is loaded


@dataclass(slots=True)
class PrefixSource:
    """A prefix that is there. holder: whose cache has its cells. partial: the state at its end, where one is
    needed. n_ids: common with the holder, at least n. seconds: of copying it.
    """

    holder: Slot | CachedSequence
    n: int
    n_ids: int
    partial: PartialState | None
    seconds: float


_OFFLOAD_SECONDS = 0.1  # after which no further text is copied between two rounds
_HEADER = 32  # ids of a message's header: a text that is common up to there goes on after its prompt


class PrefixStore:
    """The slots of a context, and the texts and states that were evaluated in it.

    room: from a number of bytes to whether they may be used to copy a text out of the context; None: texts
    stay in it. budget: bytes of the states outside of the context. max_partials: partial states of a text.
    rate: bytes per second that are copied, a guess until it was measured. drafter: whose caches are kept with
    the texts, None for none.
    """

    def __init__(
        self,
        target: Context,
        clock: Callable[[], float],
        room: Callable[[int], bool] | None = None,
        budget: float = inf,
        max_partials: int | None = None,
    ) -> None:
        self.target, self.clock, self.max_partials = target, clock, max_partials
        self.slots = [Slot(i) for i in range(target.n_seq_max)]
        self.row_seconds = 1e-3  # of a row of a prompt, as last measured
        self.state_cache = StateCache(budget, lambda: self.row_seconds)
        self.room, self.rate = room, 1e9
        self.drafter: CachingDrafter | None = None
        self._worth = Chances()  # of the texts in slots, which take one slot each
        self._arrays: dict[int, tuple[list[int], Ids]] = {}  # of the ids of idle slots

    @property
    def needs_partials(self) -> bool:
        """Whether a prefix needs a partial state at its end."""
        return not self.target.cuts_anywhere

    def idle(self) -> list[Slot]:
        return [s for s in self.slots if s.owner is None]

    # Acquiring a slot

    def acquire_slot(
        self, ids: Sequence[int], scope: str = "", stored: CachedSequence | None = None
    ) -> tuple[Slot, int]:
        """An idle slot for these ids, and how many of them its cache holds now. Texts of other scopes are
        never reused. At least one id is left to be evaluated. stored: a text that was read from the disk for
        them.
        """
        wanted, idle = as_ids(ids), self.idle()
        for source in self._sources(wanted, scope, stored):
            slot, n = self._acquired(source, idle)
            if n:
                if source.partial is not None and source.partial.state is not None:
                    self.state_cache.used(source.partial)
                slot.uses = source.holder.uses + 1
                return slot, n
        slot = self._victim(idle)
        self.free(slot)
        return slot, 0

    def is_prepared(self, ids: Sequence[int], scope: str = "", stored: CachedSequence | None = None) -> bool:
        """Whether `acquire_slot` returns without waiting for memory into which the replaced text is saved."""
        sources, idle = self._sources(as_ids(ids), scope, stored), self.idle()
        holder = sources[0].holder if sources else None
        if not isinstance(holder, Slot) or holder.owner is not None:
            evicted: Slot | None = self._victim(idle)
        elif not self._is_other_text(holder, sources[0]):
            evicted = None
        else:
            others = [s for s in idle if s is not holder]
            copies = self._copies(holder, sources[0], others)
            evicted = self._victim(others) if copies else holder
        return evicted is None or self._can_offload(evicted)

    def acquire_slot_alone(self, ids: Sequence[int], chunk: int, scope: str = "") -> tuple[Slot, int]:
        """As `acquire_slot`, with no other cells in the context than those of the slot; called while all are
        idle.

        Only whole chunks of earlier exact prompts are reused: their cells are those that this prompt would
        fill.
        """
        wanted, idle = as_ids(ids), self.idle()

        def n_kept(slot: Slot) -> int:
            if slot.scope != scope or not slot.n_whole:
                return 0
            n = min(n_common(as_ids(slot.ids), wanted), len(ids) - 1, slot.n_whole)
            n = whole_chunks(ids, 0, n, chunk)
            if not self.needs_partials or self.target.can_truncate(slot.seq_id, n):
                return n
            partial = usable((p for p in slot.partials if p.n % chunk == 0), n)
            return partial.n if partial is not None else 0

        best = max(idle, key=lambda s: (n_kept(s), -s.last_used))
        n = n_kept(best)
        for slot in idle:
            if slot is not best or not n:
                self.free(slot)
        if n:
            n = self._cut(best, n)
        return best, n

    def cut_to_chunks(self, slot: Slot, ids: Sequence[int], n: int, chunk: int) -> int:
        """Cut the first n of these ids in a slot that was just taken to whole chunks of its last prompt, so
        that a prompt that is evaluated twice is evaluated in the same pieces; returns how many are left.
        Where the memory cannot be cut there, all of them.
        """
        begun = slot.n_begun if n >= slot.n_begun else 0
        whole = whole_chunks(ids, begun, n, chunk)
        if n > slot.n_prompt or whole == n:
            return n
        if not whole:  # which no context does by cutting
            empty(self.target, slot)
            return 0
        return self._cut(slot, whole) if self.target.can_truncate(slot.seq_id, whole) else n

    def cut_to_equal_rows(self, slot: Slot, n: int, n_wanted: int) -> int:
        """Cut the first n ids in a slot that was just taken so that all rows of a prompt of n_wanted ids are
        rounded as in a new process (`Context.rounds_prompts`): to those of the first prompt but its last row,
        of a long prompt with more than CHUNK ids left to evaluate. Returns how many are left.
        """
        is_long = n_wanted > CHUNK
        most = min(slot.n_first, n_wanted - CHUNK) - 1 if is_long else slot.n_first
        if most < 1 or (slot.n_first > CHUNK) != is_long:
            empty(self.target, slot)
            return 0
        return n if n <= most else self._cut(slot, most)

    def _acquired(self, source: PrefixSource, idle: Sequence[Slot]) -> tuple[Slot, int]:
        """The slot with the prefix in its cache, and its length; 0 where that failed."""
        holder = source.holder
        if isinstance(holder, CachedSequence):
            return self._loaded(holder, source, idle)
        if holder.owner is not None:
            slot = self._victim(idle)
            self.free(slot)
            return slot, self._copied(holder, slot, source)
        if self._is_other_text(holder, source):
            others = [s for s in idle if s is not holder]
            if self._copies(holder, source, others):
                slot = self._victim(others)
                self.free(slot)
                return slot, self._copied(holder, slot, source)
            self._offload_slot(holder)
        elif source.n == len(holder.ids):
            self.mark(holder, Boundary(source.n, "answer"))
        n = self._cut(holder, source.n)
        return holder, n

    @staticmethod
    def _is_other_text(holder: Slot, source: PrefixSource) -> bool:
        """Whether the idle slot holds another text beyond the prefix, which may be continued later."""
        n_lost, ends_within = len(holder.ids) - source.n, source.n_ids < holder.n_prompt - _HEADER
        return n_lost > MIN_SHARED and (ends_within or n_lost > source.n)

    @staticmethod
    def _copies(holder: Slot, source: PrefixSource, others: Sequence[Slot]) -> bool:
        """Whether the prefix of another text is copied to a further slot, so that both stay."""
        n_lost = len(holder.ids) - source.n
        return bool(others) and (n_lost >= source.n or not all(s.ids for s in others))

    def _copied(self, holder: Slot, slot: Slot, source: PrefixSource) -> int:
        partial = source.partial
        state = partial.state if partial is not None else None
        n = self.target.copy(holder.seq_id, slot.seq_id, source.n, state)
        if n:
            slot.partials = [p for p in holder.partials if p.n <= n and p.state is not None]
            slot.n_prompt, slot.n_begun, slot.n_first = holder.n_prompt, holder.n_begun, holder.n_first
        return n

    def _loaded(self, text: CachedSequence, source: PrefixSource, idle: Sequence[Slot]) -> tuple[Slot, int]:
        slot = self._victim(idle)
        self.free(slot)
        started = self.clock()
        n = self.target.load(slot.seq_id, text.saved)
        while not n and self.make_room():
            n = self.target.load(slot.seq_id, text.saved)
        if not n:
            return slot, 0
        if n != len(text.ids):  # the state of another text
            empty(self.target, slot)
            self.state_cache.remove_text(text)
            return slot, 0
        self._timed(text.n_bytes, self.clock() - started)
        slot.ids, slot.scope, slot.partials = text.ids.tolist(), text.scope, list(text.partials)
        slot.n_prompt, slot.n_begun, slot.n_first = text.n_prompt, text.n_begun, text.n_first
        self.load_draft(slot, text.draft)
        if source.n == n:
            self.mark(slot, Boundary(n, "answer"))
        else:
            n = self._cut(slot, source.n)
        if n and source.n_ids >= text.n_prompt - _HEADER:  # it goes on: the slot has it now
            if text.floor is not None:
                self.state_cache.chances.returned("answer")
            self.state_cache.remove_text(text)
        elif n:
            if not any(t is text for t in self.state_cache.texts):  # it was read from the disk
                priority = self.state_cache.of_text(len(text.ids), text.uses, text.n_bytes)
                if self.state_cache.has_room(text.n_bytes, priority):
                    self.state_cache.add_text(text)
            self.state_cache.used(text)
        return slot, n

    def _cut(self, slot: Slot, n: int) -> int:
        """Keep the first n ids of an idle slot; returns how many are left."""
        target = self.target
        if n == len(slot.ids) or not self.needs_partials or target.can_truncate(slot.seq_id, n):
            n = target.truncate(slot.seq_id, n)
        else:
            partial = usable(slot.partials, n)
            if partial is None or partial.n != n:
                n = target.truncate(slot.seq_id, 0)
            else:
                n = target.restore_partial(slot.seq_id, n, partial.state)
        if not n:  # the state there was evicted while other texts were copied
            empty(target, slot)
        slot.partials = [p for p in slot.partials if p.n <= n and p.state is not None]
        return n

    def longest(self, wanted: Ids, scope: str) -> int:
        """How many of these ids `acquire_slot` would find."""
        sources = self._sources(wanted, scope)
        return sources[0].n if sources else 0

    # Finding prefixes

    def _sources(self, wanted: Ids, scope: str, more: CachedSequence | None = None) -> list[PrefixSource]:
        """The sources that are worth using, the best first. more: a text that is not in the list of the state
        cache.
        """

        def gain(source: PrefixSource) -> float:
            """Seconds saved. Of equal ones an idle slot is better than a copy."""
            copied = isinstance(source.holder, Slot) and source.holder.owner is not None
            return (source.n - (MIN_SHARED - 1 if copied else 0)) * self.row_seconds - source.seconds

        useful = [s for s in self._candidates(wanted, scope, more) if gain(s) > 0]
        return sorted(useful, key=gain, reverse=True)

    def _candidates(self, wanted: Ids, scope: str, more: CachedSequence | None) -> Iterable[PrefixSource]:
        """The prefixes of these ids in slots and among the stored texts."""
        most = len(wanted) - 1
        holders: list[tuple[Slot | CachedSequence, Ids]] = [(t, t.ids) for t in self.state_cache.texts]
        holders += [(more, more.ids)] if more is not None else []
        holders += [(s, self._ids_of(s, wanted)) for s in self.slots if s.scope == scope]
        for holder, ids in holders:
            if holder.scope != scope or not len(ids):
                continue
            common = whole_runs(wanted, min(n_common(ids, wanted), most))
            n, partial = self._reusable(holder, len(ids), common)
            if self._is_rounded_otherwise(holder, n, len(wanted)):
                continue
            if n >= (_MIN_LOADED if isinstance(holder, CachedSequence) else 1):
                n_bytes = partial.n_bytes if partial is not None else 0
                n_bytes += holder.n_bytes if isinstance(holder, CachedSequence) else 0
                yield PrefixSource(holder, n, common, partial, n_bytes / self.rate)

    def _is_rounded_otherwise(self, holder: Slot | CachedSequence, n: int, n_wanted: int) -> bool:
        """Whether the first n rows, or those after them, may have been evaluated in another kind of decode
        than in a new process, large ones or one that is small, where n are common by chance, as a BOS token
        is.
        """
        owner = holder.owner if isinstance(holder, Slot) else None
        n_prompt = owner.n_prompt if owner is not None else holder.n_prompt
        if not self.target.rounds_prompts or n >= min(n_prompt, CHUNK):
            return False
        is_long = n_wanted > CHUNK
        differs = (holder.n_first > CHUNK) != is_long if holder.n_first else is_long or n_prompt > CHUNK
        return differs or (is_long and n_wanted - n <= CHUNK)

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
        self, holder: Slot | CachedSequence, n_ids: int, common: int
    ) -> tuple[int, PartialState | None]:
        """How many of the `common` ids can be had from a holder of n_ids, and the state that it takes."""
        if self.target.cuts_anywhere or common <= 0:
            return max(common, 0), None
        if common == n_ids:
            return common, None
        if isinstance(holder, Slot):
            can = self.target.can_truncate if holder.owner is None else self.target.can_copy
            if can(holder.seq_id, common):
                return common, None
        partial = usable(holder.partials, common)
        return (partial.n, partial) if partial is not None else (0, None)

    # Keeping

    def release(self, slot: Slot, ids: Sequence[int], n_prompt: int, n_whole: int = 0) -> None:
        """The generation of the slot ended with these ids in its cache."""
        slot.owner, slot.last_used = None, self.clock()
        slot.ids, slot.n_prompt, slot.n_whole = list(ids), min(n_prompt, len(ids)), n_whole
        slot.partials = [p for p in slot.partials if p.n <= len(ids) and p.state is not None]
        if not ids:
            empty(self.target, slot)
        slot.priority = self._worth.priority("answer", slot.uses, len(ids) * self.row_seconds, 1)

    def mark(self, slot: Slot, boundary: Boundary) -> None:
        """Keep the state of the slot's sequence, which has boundary.n ids in its cache, where it is needed to
        reuse them and is worth its memory.
        """
        if not self.needs_partials or boundary.n < MIN_SHARED or self.max_partials == 0:
            return
        before = usable(slot.partials, boundary.n)
        if before is not None and before.n == boundary.n:
            return
        n_bytes = self.target.partial_size(slot.seq_id)
        n_saved = boundary.n - (before.n if before is not None else 0)
        partial = PartialState(boundary.n, boundary.kind, None, n_bytes, n_saved)
        partial.priority = self.state_cache.of_partial(partial)
        if not n_bytes or not self.state_cache.has_room(n_bytes, partial.priority):
            return
        started = self.clock()
        partial.state = self.target.save_partial(slot.seq_id)
        if partial.state is None:
            return
        self._timed(n_bytes, self.clock() - started)
        self.state_cache.add_partial(partial)
        slot.partials = [p for p in slot.partials if p.state is not None]
        if self.max_partials is not None and len(slot.partials) >= self.max_partials:
            slot.partials.remove(min(slot.partials, key=lambda p: p.priority))
        slot.partials.append(partial)

    def free(self, slot: Slot) -> None:
        """Empty an idle slot, after copying its text out of the context where that is worthwhile."""
        if slot.ids and not self._offload_slot(slot):
            self._worth.evicted(slot.priority)
        empty(self.target, slot)

    def make_room(self) -> bool:
        """Free the cells of the idle slot that is worth least; False where none has any."""
        with_text = [s for s in self.idle() if s.ids]
        if with_text:
            self.free(min(with_text, key=lambda s: (s.priority, s.last_used)))
        return bool(with_text)

    def offload(self, before: float) -> None:
        """Copy the texts of slots unused since `before` (seconds of the engine's clock) out of the context
        and free their cells, because a decode reads all cells of the context. The other texts wait for the
        next call while memory for one is prepared, and once copying has held up a round for a moment.
        """
        began = self.clock()
        for slot in self.idle():
            if not slot.ids or slot.last_used >= before:
                continue
            if not self._can_offload(slot):
                return
            if self._offload_slot(slot):
                empty(self.target, slot)
                if self.clock() - began > _OFFLOAD_SECONDS:
                    return

    def _timed(self, n_bytes: int, seconds: float) -> None:
        """Learn the rate from a copy, if it took long enough to time."""
        if n_bytes > 1 << 20 and seconds > 0:
            self.rate += 0.3 * (n_bytes / seconds - self.rate)

    def _can_offload(self, slot: Slot) -> bool:
        """Whether `_offload_slot` need not wait for memory. Where it would, a thread prepares it, and a later
        call returns True.
        """
        ids = as_ids(slot.ids)
        if (
            self.room is None
            or len(ids) < MIN_SHARED
            or self.state_cache.containing(ids, slot.scope) is not None
        ):
            return True
        n_bytes = self.target.size(slot.seq_id)
        victims = self.state_cache.victims(n_bytes, self.state_cache.of_text(len(ids), slot.uses, n_bytes))
        return victims is None or not self.room(n_bytes) or self.target.prepare_save(slot.seq_id)

    def _offload_slot(self, slot: Slot) -> bool:
        """Copy the text of an idle slot out of the context; whether it is stored now."""
        ids = as_ids(slot.ids)
        if self.room is None or len(ids) < MIN_SHARED:
            return False
        text = self.state_cache.containing(ids, slot.scope)
        if text is not None:
            merge(text, slot.partials)
            return True
        n_bytes = self.target.size(slot.seq_id)
        priority = self.state_cache.of_text(len(ids), slot.uses, n_bytes)
        if not n_bytes or not self.room(n_bytes) or not self.state_cache.has_room(n_bytes, priority):
            return False
        started = self.clock()
        saved = self.target.save(slot.seq_id)
        if saved is None:
            return False
        self._timed(n_bytes, self.clock() - started)
        partials, draft = list(slot.partials), self.draft_of(slot)
        if draft is not None and not self.state_cache.has_room(n_bytes + len(draft), priority):
            draft = None
        n_bytes += len(draft) if draft is not None else 0
        n_prompt, uses = slot.n_prompt, slot.uses
        text = CachedSequence(
            ids, slot.scope, saved, n_bytes, partials, n_prompt, 0, priority, uses, slot.kept, draft
        )
        text.n_begun, text.n_first = slot.n_begun, slot.n_first
        self.state_cache.add_text(text)
        return True

    def load_draft(self, slot: Slot, draft: Saved | None) -> None:
        """Restore the draft model's cache of an idle slot's text."""
        if self.drafter is not None and draft is not None:
            self.drafter.load_cache(slot.seq_id, slot.ids, slot.scope, draft, self.rate)

    def draft_of(self, slot: Slot) -> Saved | None:
        """The draft model's cache of an idle slot's text, None for none."""
        if self.drafter is None:
            return None
        return self.drafter.save_cache(slot.seq_id, slot.ids, slot.scope, self.rate)

    def clear(self) -> None:
        """Forget all texts, as after a failed decode: the state of the caches is unknown."""
        for slot in self.slots:
            empty(self.target, slot)

    def _victim(self, idle: Sequence[Slot]) -> Slot:
        """The idle slot whose text is worth least."""
        return min(idle, key=lambda s: (bool(s.ids), s.priority if s.ids else 0.0, s.last_used))
