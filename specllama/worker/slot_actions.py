"""Shows, saves, restores and erases slots of the engine, as llama-server's clients ask for.

Knows the prefix store and the files of slots (prefix_disk/disk_store.py); which names files may have is
checked by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from specllama.client import protocol
from specllama.clock import running_time
from specllama.core.engine import Engine
from specllama.core.prefix.store import Slot, empty
from specllama.core.prefix.stored import as_ids
from specllama.errors import NotSupportedError, ResourceError, UsageError
from specllama.models.memory.available import available_memory
from specllama.prefix_disk.disk_store import PrefixRecord, read_slot_file, write_slot_file
from specllama.prefix_disk.state_file import BadStateFileError
from specllama.worker.intake import SequenceOutput
from specllama.worker.loader import Loaded
from specllama.worker.prefix_persister import WHOLE, draft_part, partials_of, text_parts


class SlotActions:
    """Acts on slots of an engine once they are idle. send: gets the answers."""

    def __init__(self, loaded: Loaded, engine: Engine, send: Callable[[protocol.SlotDone], None]) -> None:
        self._draft_part, self._store = draft_part(loaded.draft_prefix_key), engine.scheduler.store
        self._key, self._model = loaded.prefix_key, loaded.header.name
        self._engine, self._send = engine, send
        self.waiting: list[protocol.SlotAction] = []

    def act(self, action: protocol.SlotAction) -> bool:
        """Act if the slot is idle; whether it was. Raises UsageError, ResourceError, NotSupportedError."""
        if not 0 <= action.slot < len(self._engine.slots):
            raise UsageError("Invalid slot ID")
        slot = self._engine.slots[action.slot]
        if slot.owner is not None:
            return False
        began = running_time()
        if action.action == "erase":
            n_tokens = len(slot.ids) if slot.scope in ("", action.owner) else 0
            if n_tokens:
                empty(self._engine.target, slot)
            self._send(protocol.SlotDone(action.id, n_tokens))
            return True
        if not self._key:
            raise NotSupportedError("the states of this model cannot be told from those of another one")
        done = self._save if action.action == "save" else self._restore
        n_tokens, n_bytes = done(slot, action)
        self._send(protocol.SlotDone(action.id, n_tokens, n_bytes, running_time() - began))
        return True

    def _save(self, slot: Slot, action: protocol.SlotAction) -> tuple[int, int]:
        """The number of its tokens, and the bytes written."""
        if not slot.ids or slot.scope not in ("", action.owner):
            return 0, 0
        target, saved = self._engine.target, None
        if target.size(slot.seq_id) <= available_memory():
            saved = target.save(slot.seq_id)
        if saved is None:
            raise ResourceError("there is not enough memory to save the slot")
        draft = self._store.draft_of(slot) if self._draft_part else None
        parts = text_parts(saved, slot.partials, draft, self._draft_part)
        seconds = min(len(slot.ids) * self._store.row_seconds, 1e8)
        record = PrefixRecord(action.disk_scope, as_ids(slot.ids), parts, seconds)
        try:
            return len(slot.ids), write_slot_file(Path(action.path), record, self._key, self._model)
        except OSError as error:
            raise ResourceError(f"the slot cannot be saved: {error.strerror or error}") from None

    def _restore(self, slot: Slot, action: protocol.SlotAction) -> tuple[int, int]:
        """The number of its tokens, and the bytes read. What the slot holds is kept as where another request
        needs it, and stays where the file cannot be used.
        """
        target = self._engine.target
        try:
            path = Path(action.path)
            record = read_slot_file(path, self._key, action.disk_scope, available_memory())
            n_bytes = path.stat().st_size
        except BadStateFileError as error:
            raise UsageError(f"the slot cannot be restored: {error}") from None
        except OSError as error:
            raise UsageError(f"the slot cannot be restored: {error.strerror or error}") from None
        self._store.free(slot)
        self._engine.scheduler.policy.forget(slot.seq_id)
        if WHOLE not in record.parts or target.load(slot.seq_id, record.parts[WHOLE]) != len(record.ids):
            empty(target, slot)
            raise UsageError("the slot cannot be restored: the context has no room for it, or it is damaged")
        ids = record.ids.tolist()
        slot.scope, slot.kept = action.owner, False
        slot.partials = partials_of(record, 0.0)
        self._store.release(slot, ids, len(ids))
        self._store.load_draft(slot, record.parts.get(self._draft_part))
        return len(ids), n_bytes


def slots(
    id_: int,
    engine: Engine,
    running: Sequence[SequenceOutput],
    decode_seconds: Sequence[tuple[int, float]] = (),
) -> protocol.Slots:
    """The state of each slot, and the number of cache cells in use. decode_seconds: see protocol.Slots."""
    states, n_used = [], 0
    by_sequence = {r.generation.seq_id: r for r in running if r.generation in engine.active}
    for slot in engine.slots:
        r = by_sequence.get(slot.seq_id)
        n_used += len(slot.ids)
        if r is None:
            states.append(protocol.SlotState(slot.seq_id, len(slot.ids), slot.scope))
            continue
        g, s = r.generation, r.generation.stats
        n_used += g.n_past
        states.append(
            protocol.SlotState(
                slot.seq_id,
                g.n_past,
                g.request.owner,
                id=r.id,
                n_prompt=g.n_prompt,
                n_decoded=s.n_predict,
                n_drafted=s.n_drafted,
                n_accept=s.n_accept,
                speculate=g.request.speculate,
            )
        )
    states_in_ram = engine.scheduler.store.state_cache
    return protocol.Slots(
        id_,
        states,
        len(engine.scheduler.waiting),
        n_used,
        engine.target.n_ctx,
        list(decode_seconds),
        len(states_in_ram.texts) + sum(1 for _ in states_in_ram.partials()),
        states_in_ram.n_bytes,
    )
