"""The states in RAM, outside of the context: their bytes, and which go when others need room.

Knows no slots and no contexts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from math import inf

from specllama.core.prefix.stored import Chances, Ids, PartialState, StoredText, n_common

_TEXT = "answer"  # the kind of boundary at which a stored text ends


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
        self.texts: list[StoredText] = []
        self.chances = Chances()
        self.n_evicted = 0
        self._partials: weakref.WeakSet[PartialState] = weakref.WeakSet()

    @property
    def n_bytes(self) -> int:
        return sum(t.n_bytes for t in self.texts) + sum(p.n_bytes for p in self.partials())

    def partials(self) -> Iterator[PartialState]:
        """The partial states that are held by a slot or a stored text."""
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
            self._evict(one)
        return True

    def victims(self, n_bytes: int, priority: float) -> list[StoredText | PartialState] | None:
        """What has to go for so many bytes; None where that would include a state of a higher priority, or
        is not enough.
        """
        if n_bytes > self.budget:
            return None
        missing, victims = self.n_bytes + n_bytes - self.budget, list[StoredText | PartialState]()
        if missing <= 0:
            return victims
        held: list[StoredText | PartialState] = [*self.texts, *self.partials()]
        for one in held:
            one.priority = self._priority(one)
        for one in sorted(held, key=lambda s: s.priority):
            if missing <= 0 or one.priority > priority:
                break
            victims.append(one)
            missing -= one.n_bytes
        return victims if missing <= 0 else None

    def add_partial(self, partial: PartialState) -> None:
        partial.wait = self.chances.begin(partial.kind)
        self._partials.add(partial)

    def add_text(self, text: StoredText) -> None:
        """Store a text. Texts that it begins with are contained in it, and removed."""
        for other in [t for t in self.texts if t.scope == text.scope]:
            n = n_common(other.ids, text.ids)
            if n == len(other.ids):
                merge(text, other.partials)
                self.texts.remove(other)
                continue
            other.n_shared, text.n_shared = max(other.n_shared, n), max(text.n_shared, n)
        text.wait = self.chances.begin(_TEXT)
        self.texts.append(text)

    def remove_text(self, text: StoredText) -> None:
        """Without effect on a text that is not stored any more."""
        if not any(t is text for t in self.texts):
            return
        self.texts = [t for t in self.texts if t is not text]
        for one in self.texts:
            if one.scope == text.scope and n_common(one.ids, text.ids) >= one.n_shared:
                others = [t for t in self.texts if t is not one and t.scope == one.scope]
                one.n_shared = max((n_common(one.ids, t.ids) for t in others), default=0)

    def containing(self, ids: Ids, scope: str) -> StoredText | None:
        """The stored text that begins with these ids."""
        for text in self.texts:
            if text.scope == scope and len(text.ids) >= len(ids) and n_common(text.ids, ids) == len(ids):
                return text
        return None

    def of_text(self, n_ids: int, uses: int, n_bytes: int) -> float:
        """The priority of a text whose ids, so many, nothing else holds."""
        return self.chances.priority(_TEXT, uses, n_ids * self.row_seconds(), n_bytes)

    def of_partial(self, partial: PartialState) -> float:
        seconds = partial.n_saved * self.row_seconds()
        return self.chances.priority(partial.kind, partial.uses, seconds, partial.n_bytes, partial.wait)

    def _priority(self, one: StoredText | PartialState) -> float:
        """The priority of a state that is kept, as old as it is now."""
        if isinstance(one, PartialState):
            return self.of_partial(one)
        seconds = (len(one.ids) - one.n_shared) * self.row_seconds()
        return self.chances.priority(_TEXT, one.uses, seconds, one.n_bytes, one.wait)

    def used(self, one: StoredText | PartialState) -> None:
        """A state was of use: it is worth more from now on."""
        one.uses += 1
        if one.wait is not None:
            one.wait = self.chances.returned(one.wait)
        one.priority = self._priority(one)

    def clear(self) -> None:
        """Forget everything."""
        for partial in list(self.partials()):
            partial.state = None
        self.texts = []

    def _evict(self, one: StoredText | PartialState) -> None:
        self.chances.evicted(one.priority)
        self.n_evicted += 1
        if isinstance(one, PartialState):
            one.state = None
        else:
            self.remove_text(one)


def merge(text: StoredText, partials: list[PartialState]) -> None:
    """Add the states at boundaries where the text has none."""
    have = {p.n for p in text.partials if p.state is not None}
    text.partials = sorted(
        [*text.partials, *(p for p in partials if p.n not in have and p.state is not None)], key=lambda p: p.n
    )
