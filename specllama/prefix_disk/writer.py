"""Writes states into a directory, makes room for them, and keeps the ledger of their uses.

Everything here may wait for the disk and for other processes: it is called by the store's thread alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading

import numpy as np

from specllama.prefix_disk.contents import DirectoryContents
from specllama.prefix_disk.directory import StateDirectory
from specllama.prefix_disk.eviction import StateLedger, worth
from specllama.prefix_disk.pace import LoadRate, WritePace
from specllama.prefix_disk.record import PrefixRecord
from specllama.prefix_disk.scopes import state_name
from specllama.prefix_disk.state_file import StateMeta, file_size, forget_pages, write_state

REDUNDANT = 2  # a state is not kept next to one that continues it and has at most so many times its bytes


class StateWriter:
    """key, model, budget_bytes: see DiskStore. reserve_bytes: of the disk that stay free. lock: for those who
    look up in `contents` meanwhile. n_written: states so far.
    """

    def __init__(
        self,
        directory: StateDirectory,
        contents: DirectoryContents,
        lock: threading.Condition,
        *,
        key: str,
        model: str,
        budget_bytes: int,
        reserve_bytes: int,
        pace: WritePace,
        load_rate: LoadRate,
    ) -> None:
        self._directory, self._contents, self._lock = directory, contents, lock
        self._key, self._model, self._budget, self._reserve = key, model, budget_bytes, reserve_bytes
        self._pace, self._load_rate = pace, load_rate
        self._used = list[str]()  # since the ledger was written
        self.n_written = 0

    def used(self, name: str) -> None:
        """A state was used. In any thread."""
        self._used.append(name)

    def tidy(self) -> None:
        """Remove what killed processes have left, and what is beyond the budget. Raises OSError."""
        if not self._directory.secret:
            return
        with self._directory.locked():
            self._directory.sweep()
            self.refresh()
            ledger = self._ledger()
            self._make_room(ledger, 0, float("inf"))
            self._store(ledger)

    def note_uses(self, always: bool = False) -> None:
        """Write down the uses of this process, and the rate of reading. always: without uses too. Raises
        OSError.
        """
        if (self._used or always) and self._directory.secret:
            with self._directory.locked():
                self._store(self._ledger())

    def refresh(self) -> None:
        """Read what others have written or removed. Raises OSError."""
        if self._directory.secret:
            self._contents.refresh(self._lock)

    def write(self, record: PrefixRecord) -> None:
        """Write a state, unless it is there, or worth less than what would have to go. Raises OSError,
        AbandonedError.
        """
        self._directory.open(create=True)
        self.refresh()
        ids = record.ids.astype(np.dtype("<i4")).tobytes()
        parts = {name: memoryview(part) for name, part in record.parts.items()}
        sizes = tuple((name, len(part)) for name, part in parts.items())
        meta = StateMeta(self._key, self._model, record.scope, record.kind, record.seconds, sizes)
        name = state_name(self._key, record.scope, record.kind, ids, self._directory.secret)
        with self._lock:
            there = self._contents.same(name, meta, ids, REDUNDANT)
        if there is not None:
            self.used(there.name)
            return
        size, value = file_size(meta, len(record.ids)), self._worth(meta)
        with contextlib.ExitStack() as stack:
            with self._directory.locked():
                self.refresh()
                ledger = self._ledger()
                fits = self._make_room(ledger, size, ledger.priority(name, value))
                if not fits:
                    ledger.gone(name, value)
                self._store(ledger)
                if not fits:
                    return
                file = stack.enter_context(self._directory.unfinished(name, size))
            write_state(
                file.number, meta, ids, parts.values(), self._directory.secret, self._pace.start(file.number)
            )
            forget_pages(file.number)
            with self._directory.locked():
                file.publish()
                ledger = self._ledger()
                ledger.use(name, value)
                self._remove_redundant(ledger, name, meta, ids)
                self._store(ledger)
        self.n_written += 1
        self.refresh()

    def _worth(self, meta: StateMeta) -> float:
        return worth(meta.seconds, meta.n_bytes, self._load_rate.rate)

    def _remove_redundant(self, ledger: StateLedger, name: str, meta: StateMeta, ids: bytes) -> None:
        """Remove the states that the new one continues; it was used as often."""
        if meta.kind != "whole":
            return
        with self._lock:
            covered = self._contents.lookup.covered_by(meta.scope, ids)
        for old in covered:
            if old.name == name or REDUNDANT * old.meta.n_bytes < meta.n_bytes:
                continue
            if old.meta.part_names <= meta.part_names:
                before = ledger.uses.pop(old.name, None)
                if before is not None:
                    ledger.uses[name].uses = max(before.uses, ledger.uses[name].uses)
                self._directory.remove(old.name)

    def _make_room(self, ledger: StateLedger, n_bytes: int, priority: float) -> bool:
        """Remove what is worth least until so many bytes fit the budget and the disk, with the lock; False,
        and nothing is removed, where that would take something of a higher priority. Raises OSError where the
        disk would be full without any state.
        """
        total = self._contents.n_bytes + sum(self._directory.unfinished_sizes().values())
        missing = total + n_bytes - self._budget
        if n_bytes:
            free = shutil.disk_usage(self._directory.path).free
            if (more := n_bytes + self._reserve - free) > self._contents.n_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            missing = max(missing, more)
        victims = self._contents.to_remove(ledger, missing, priority, self._load_rate.rate)
        for victim in victims or ():
            ledger.gone(victim.name, victim.value)
            self._directory.remove(victim.name)
        self.refresh()
        return victims is not None

    def _ledger(self) -> StateLedger:
        """The ledger with the uses of this process; with the lock."""
        ledger = StateLedger.from_json(self._directory.read_ledger())
        with self._lock:
            used, self._used = self._used, []
        for name in used:
            state = self._contents.lookup.get(name)
            if state is not None:
                ledger.use(name, self._worth(state.meta))
        if self._load_rate.measured:
            ledger.load_rate = self._load_rate.rate
        return ledger

    def _store(self, ledger: StateLedger) -> None:
        ledger.keep_only(self._directory.sizes())
        self._directory.write_ledger(ledger.to_json())
