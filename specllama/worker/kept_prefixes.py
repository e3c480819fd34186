"""The engine's prefixes on disk: which texts are written, and which of those there a request needs.

Texts are copied when the engine is idle and when it ends; a state that a request needs is read into the
prefix store, which uses it as one of its own. Knows the store (core/prefix/) and the files (prefix_disk/),
nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.core.engine import Engine
from specllama.core.prefix.boundaries import KINDS
from specllama.core.prefix.finder import MIN_SHARED
from specllama.core.prefix.state import Ids, PartialState, Slot, StoredText, as_ids, n_common
from specllama.prefix_disk.disk_store import DiskStore
from specllama.prefix_disk.record import MAX_PARTS, PrefixCandidate, PrefixRecord

IDLE_SECONDS = 0.3  # after the last answer, before texts are copied: a next turn may follow at once
END_SECONDS = 4.0  # at most, for writing at the end
_MAX_NOTED = 256  # texts that were written
WHOLE, _AT = "target", "at"  # names of the parts of a record


class KeptPrefixes:
    """Keeps the texts of an engine on disk. open_disk: makes the store of this model and its directory, which
    waits until there is something to write, unless is_there. kept_seconds: that reading a text again would
    cost, from which on it is kept. clock: seconds.
    """

    def __init__(
        self,
        engine: Engine,
        open_disk: Callable[[], DiskStore],
        is_there: bool,
        kept_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._engine, self._kept_seconds, self._clock = engine, kept_seconds, clock
        self._open_disk = open_disk
        self._disk = open_disk() if is_there else None
        self._scopes: dict[str, str] = {}  # on disk, by those of the engine's caches
        self._written: list[tuple[str, Ids]] = []
        self._due: float | None = None

    @property
    def disk(self) -> DiskStore:
        """The store, opened when it is first needed."""
        if self._disk is None:
            self._disk = self._open_disk()
        return self._disk

    @property
    def due_in(self) -> float | None:
        """Seconds until `keep` has something to do, if no request arrives; None for never."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    def generation_ended(self) -> None:
        """Copy what is worth it once the engine has been idle for a moment."""
        self._due = self._clock() + IDLE_SECONDS

    def fetch(self, ids: Sequence[int], scope: str, disk_scope: str) -> int:
        """Read the state that serves a prompt best into the prefix store, where that is faster than reading
        the text. scope: of the engine's caches; disk_scope: on disk, "" for none. Returns the ids that it
        serves, 0 for none.
        """
        self._scopes[scope] = disk_scope
        store, wanted = self._engine.store, as_ids(ids)
        if not disk_scope or len(wanted) <= MIN_SHARED or self._disk is None:
            return 0
        known, most = store.longest(wanted, scope), len(wanted) - 1
        worth = []
        for candidate in self.disk.find(disk_scope, wanted):
            n = self._n_usable(candidate, most)
            gain = (n - known) * store.row_seconds - candidate.seconds
            if n > known + MIN_SHARED and gain > 0:
                worth.append((gain, n, candidate))
        if not worth:
            return 0
        _, n, candidate = max(worth, key=lambda one: one[0])
        if not store.accepts(candidate.n_bytes, n):
            return 0
        record = self.disk.read(candidate)
        if record is None or WHOLE not in record.parts:
            return 0
        self._note(scope, record.ids)
        store.memory.add_text(_stored(record, scope, store.memory.of_text(n, 0, record.n_bytes)))
        return n

    def keep(self) -> None:
        """Copy the texts of idle slots, and those that were moved out of the context, to be written."""
        self._due = None
        for slot in self._engine.store.idle():
            self._keep_slot(slot)
        for text in self._engine.store.memory.texts:
            if text.kept and self._is_worth(text.scope, text.ids):
                self._put(text.scope, text.ids, {WHOLE: text.saved, **partial_parts(text.partials)})

    def close(self) -> None:
        """Write what is worth it, in bounded time."""
        self.keep()
        if self._disk is not None:
            self._disk.flush(END_SECONDS)
            self._disk.close()

    def _keep_slot(self, slot: Slot) -> None:
        ids = as_ids(slot.ids)
        if not slot.kept or not self._is_worth(slot.scope, ids):
            return
        saved = self._engine.target.save(slot.seq_id)
        if saved is not None:
            self._put(slot.scope, ids, {WHOLE: saved, **partial_parts(slot.partials)})

    def _is_worth(self, scope: str, ids: Ids) -> bool:
        """Whether reading what no text on disk has of these ids would cost enough."""
        known = max((n_common(ids, other) for of, other in self._written if of == scope), default=0)
        seconds = (len(ids) - known) * self._engine.store.row_seconds
        return bool(self._scopes.get(scope)) and len(ids) > MIN_SHARED and seconds >= self._kept_seconds

    def _put(self, scope: str, ids: Ids, parts: Mapping[str, Any]) -> None:
        seconds = len(ids) * self._engine.store.row_seconds
        if self.disk.put(PrefixRecord(self._scopes[scope], ids, "whole", parts, min(seconds, 1e8))):
            self._note(scope, ids)

    def _note(self, scope: str, ids: Ids) -> None:
        self._written = [*self._written[-_MAX_NOTED:], (scope, ids)]

    def _n_usable(self, candidate: PrefixCandidate, most: int) -> int:
        """How many ids of a prompt the state serves."""
        n = min(candidate.n_tokens, most)
        if not self._engine.store.needs_partials or n == candidate.n_state:
            return n
        places = (_place(name) for name in candidate.parts)
        return max((place[0] for place in places if place is not None and place[0] <= n), default=0)


def partial_parts(partials: Sequence[PartialState]) -> dict[str, Any]:
    """The parts of a record for these states, those worth most."""
    there = sorted((p for p in partials if p.state is not None), key=lambda p: -p.priority)
    return {f"{_AT} {p.n} {p.kind}": p.state for p in there[: MAX_PARTS - 1]}


def _place(name: str) -> tuple[int, str] | None:
    """(The place, the kind) in the name of a part."""
    words = name.split(" ")
    if len(words) != 3 or words[0] != _AT or not words[1].isdecimal() or words[2] not in KINDS:
        return None
    return int(words[1]), words[2]


def partials_of(record: PrefixRecord, priority: float) -> list[PartialState]:
    """The partial states of a record."""
    partials, before = list[PartialState](), 0
    places = [(place, part) for name, part in record.parts.items() if (place := _place(name)) is not None]
    for (n, kind), part in sorted(places, key=lambda one: one[0][0]):
        partials.append(PartialState(n, kind, part, len(part), n - before, priority))  # type: ignore[arg-type]
        before = n
    return partials


def _stored(record: PrefixRecord, scope: str, priority: float) -> StoredText:
    saved, partials = record.parts[WHOLE], partials_of(record, priority)
    return StoredText(record.ids, scope, saved, len(saved), partials, len(record.ids), 0, priority)
