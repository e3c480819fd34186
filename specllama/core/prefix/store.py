"""The prefix store: which prefix a request reuses, in which slot, and what is kept of the texts that make
way.

Knows contexts by their interface. When generations get slots is decided in scheduler.py, what is kept in
RAM in state_cache.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from specllama.core.interfaces import Context
from specllama.core.prefix.copies import TextCopies
from specllama.core.prefix.finder import MIN_SHARED, PrefixFinder, PrefixSource, Slot, empty
from specllama.core.prefix.state_cache import StateCache
from specllama.core.prefix.stored import (
    Boundary,
    Chances,
    Ids,
    PartialState,
    StoredText,
    as_ids,
    n_common,
    usable,
)

_OFFLOAD_SECONDS = 0.1  # after which no further text is copied between two rounds
_HEADER = 32  # ids of a message's header: a text that is common up to there goes on after its prompt


class PrefixStore:
    """The slots of a context, and the texts and states that were evaluated in it.

    room: from a number of bytes to whether they may be used to copy a text out of the context; None: texts
    stay in it. budget: bytes of the states outside of the context. max_partials: partial states of a text.
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
        self.copies = TextCopies(target, self.state_cache, clock, room)
        self._worth = Chances()  # of the texts in slots, which take one slot each
        self._finder = PrefixFinder(target, self.slots, self.state_cache)

    @property
    def needs_partials(self) -> bool:
        """Whether a prefix needs a partial state at its end."""
        return not self.target.cuts_anywhere

    def idle(self) -> list[Slot]:
        return [s for s in self.slots if s.owner is None]

    # Taking

    def take(self, ids: Sequence[int], scope: str = "", stored: StoredText | None = None) -> tuple[Slot, int]:
        """An idle slot for these ids, and how many of them its cache holds now. Texts of other scopes are
        never reused. At least one id is left to be evaluated. stored: a text that was read from the disk for
        them.
        """
        wanted, idle = as_ids(ids), self.idle()
        self.state_cache.chances.now += 1
        for source in self._sources(wanted, scope, stored):
            slot, n = self._taken(source, idle)
            if n:
                self._hit(source)
                slot.uses = source.holder.uses + 1
                return slot, n
        slot = self._victim(idle)
        self.free(slot)
        return slot, 0

    def is_prepared(self, ids: Sequence[int], scope: str = "", stored: StoredText | None = None) -> bool:
        """Whether `take` returns without waiting for memory into which the replaced text is saved."""
        sources, idle = self._sources(as_ids(ids), scope, stored), self.idle()
        holder = sources[0].holder if sources else None
        if not isinstance(holder, Slot) or holder.owner is not None:
            giving_way: Slot | None = self._victim(idle)
        elif not self._is_other_text(holder, sources[0]):
            giving_way = None
        else:
            others = [s for s in idle if s is not holder]
            copies = self._copies(holder, sources[0], others)
            giving_way = self._victim(others) if copies else holder
        return giving_way is None or self.copies.can_put_away(giving_way)

    def _sources(self, wanted: Ids, scope: str, stored: StoredText | None = None) -> list[PrefixSource]:
        return self._finder.sources(wanted, scope, self.row_seconds, self.copies.rate.rate, stored)

    def take_alone(self, ids: Sequence[int], chunk: int, scope: str = "") -> tuple[Slot, int]:
        """As `take`, with no other cells in the context than those of the slot; called while all are idle.

        Only whole chunks of earlier exact prompts are reused: their cells are those that this prompt would
        fill.
        """
        wanted, idle = as_ids(ids), self.idle()

        def n_kept(slot: Slot) -> int:
            if slot.scope != scope or not slot.n_whole:
                return 0
            n = min(n_common(as_ids(slot.ids), wanted), len(ids) - 1, slot.n_whole) // chunk * chunk
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

    def cut_to_chunks(self, slot: Slot, n: int, chunk: int) -> int:
        """Cut the first n ids of a text in a slot that was just taken to whole chunks of its last prompt, so
        that a prompt that is evaluated twice is evaluated in the same pieces; returns how many are left.
        Where the memory cannot be cut there, all of them.
        """
        begun = slot.n_begun if n >= slot.n_begun else 0
        whole = begun + (n - begun) // chunk * chunk
        if n > slot.n_prompt or not self.target.can_truncate(slot.seq_id, whole):
            return n
        return self._cut(slot, whole) if whole < n else n

    def _taken(self, source: PrefixSource, idle: Sequence[Slot]) -> tuple[Slot, int]:
        """The slot with the prefix in its cache, and its length; 0 where that failed."""
        holder = source.holder
        if isinstance(holder, StoredText):
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
            self.copies.put_away(holder)
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
        return n

    def _loaded(self, text: StoredText, source: PrefixSource, idle: Sequence[Slot]) -> tuple[Slot, int]:
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
        self.copies.rate.timed(text.n_bytes, self.clock() - started)
        slot.ids, slot.scope, slot.partials = text.ids.tolist(), text.scope, list(text.partials)
        slot.n_prompt = text.n_prompt
        self.copies.load_draft(slot, text.draft)
        if source.n == n:
            self.mark(slot, Boundary(n, "answer"))
        else:
            n = self._cut(slot, source.n)
        if n and source.n_ids >= text.n_prompt - _HEADER:  # it goes on: the slot has it now
            if text.wait is not None:
                self.state_cache.chances.ended(text.wait)
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
        if not n:  # the state there went while other texts were put away
            empty(target, slot)
        slot.partials = [p for p in slot.partials if p.n <= n and p.state is not None]
        return n

    def _hit(self, source: PrefixSource) -> None:
        if source.partial is not None and source.partial.state is not None:
            self.state_cache.used(source.partial)

    def longest(self, wanted: Ids, scope: str) -> int:
        """How many of these ids `take` would find."""
        sources = self._sources(wanted, scope)
        return sources[0].n if sources else 0

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
        self.copies.rate.timed(n_bytes, self.clock() - started)
        self.state_cache.add_partial(partial)
        slot.partials = [p for p in slot.partials if p.state is not None]
        if self.max_partials is not None and len(slot.partials) >= self.max_partials:
            slot.partials.remove(min(slot.partials, key=lambda p: p.priority))
        slot.partials.append(partial)

    def free(self, slot: Slot) -> None:
        """Empty an idle slot, after copying its text out of the context where that is worthwhile."""
        if slot.ids and not self.copies.put_away(slot):
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
            if not self.copies.can_put_away(slot):
                return
            if self.copies.put_away(slot):
                empty(self.target, slot)
                if self.clock() - began > _OFFLOAD_SECONDS:
                    return

    def clear(self) -> None:
        """Forget all texts, as after a failed decode: the state of the caches is unknown."""
        for slot in self.slots:
            empty(self.target, slot)

    def _victim(self, idle: Sequence[Slot]) -> Slot:
        """The idle slot whose text is worth least."""
        return min(idle, key=lambda s: (bool(s.ids), s.priority if s.ids else 0.0, s.last_used))
