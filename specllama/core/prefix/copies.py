"""Copies of texts out of the context into RAM, with the draft model's caches of them.

Knows slots and contexts by their interface; which text gives way is decided in store.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specllama.core.interfaces import Context, Saved, SavingDrafter
from specllama.core.prefix.finder import MIN_SHARED, Slot
from specllama.core.prefix.state_cache import StateCache, merge
from specllama.core.prefix.stored import StoredText, as_ids


@dataclass(slots=True)
class CopyRate:
    """How fast states are copied. rate: bytes per second, a guess until it was measured."""

    rate: float = 1e9

    def timed(self, n_bytes: int, seconds: float) -> None:
        """Learn from a copy, if it took long enough to time."""
        if n_bytes > 1 << 20 and seconds > 0:
            self.rate += 0.3 * (n_bytes / seconds - self.rate)


class TextCopies:
    """Copies texts of idle slots into RAM. room: see `PrefixStore`. drafter: whose caches are kept with
    the texts, None for none. rate: of copies, as measured.
    """

    def __init__(
        self,
        target: Context,
        state_cache: StateCache,
        clock: Callable[[], float],
        room: Callable[[int], bool] | None,
    ) -> None:
        self._target, self._state_cache, self._clock = target, state_cache, clock
        self.room, self.rate = room, CopyRate()
        self.drafter: SavingDrafter | None = None

    def can_put_away(self, slot: Slot) -> bool:
        """Whether `put_away` need not wait for memory. Where it would, a thread prepares the memory, and a
        later call returns True.
        """
        ids = as_ids(slot.ids)
        if (
            self.room is None
            or len(ids) < MIN_SHARED
            or self._state_cache.containing(ids, slot.scope) is not None
        ):
            return True
        n_bytes = self._target.size(slot.seq_id)
        victims = self._state_cache.victims(n_bytes, self._state_cache.of_text(len(ids), slot.uses, n_bytes))
        return victims is None or not self.room(n_bytes) or self._target.prepare_save(slot.seq_id)

    def put_away(self, slot: Slot) -> bool:
        """Copy the text of an idle slot out of the context; whether it is stored now."""
        ids = as_ids(slot.ids)
        if self.room is None or len(ids) < MIN_SHARED:
            return False
        text = self._state_cache.containing(ids, slot.scope)
        if text is not None:
            merge(text, slot.partials)
            return True
        n_bytes = self._target.size(slot.seq_id)
        priority = self._state_cache.of_text(len(ids), slot.uses, n_bytes)
        if not n_bytes or not self.room(n_bytes) or not self._state_cache.has_room(n_bytes, priority):
            return False
        started = self._clock()
        saved = self._target.save(slot.seq_id)
        if saved is None:
            return False
        self.rate.timed(n_bytes, self._clock() - started)
        partials, draft = list(slot.partials), self.draft_of(slot)
        if draft is not None and not self._state_cache.has_room(n_bytes + len(draft), priority):
            draft = None
        n_bytes += len(draft) if draft is not None else 0
        n_prompt, uses = slot.n_prompt, slot.uses
        text = StoredText(
            ids, slot.scope, saved, n_bytes, partials, n_prompt, 0, priority, uses, slot.kept, draft
        )
        self._state_cache.add_text(text)
        return True

    def load_draft(self, slot: Slot, draft: Saved | None) -> None:
        """Restore the draft model's cache of an idle slot's text."""
        if self.drafter is not None and draft is not None:
            self.drafter.load_cache(slot.seq_id, slot.ids, slot.scope, draft, self.rate.rate)

    def draft_of(self, slot: Slot) -> Saved | None:
        """The draft model's cache of an idle slot's text, None for none."""
        if self.drafter is None:
            return None
        return self.drafter.save_cache(slot.seq_id, slot.ids, slot.scope, self.rate.rate)
