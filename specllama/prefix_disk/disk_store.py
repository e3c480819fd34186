"""The store of prefix states on disk: looks them up, reads them, and writes new ones in a thread of its
own.

`find` takes no lock of the directory and reads nothing; `read` reads one file in the caller's thread.
Writing is bounded in bytes a second, and whatever waits for the disk or for other processes happens in
the thread. What goes wrong with the disk is said once in a line and costs nothing else: the store then
finds nothing, or keeps nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.clock import ended, running_time, wait_until
from specllama.prefix_disk.directory import Say, StateDirectory, ignore_notice
from specllama.prefix_disk.eviction import StateLedger, worth
from specllama.prefix_disk.lookup import DirectoryContents
from specllama.prefix_disk.scopes import state_name
from specllama.prefix_disk.slot_file import PrefixCandidate, PrefixRecord
from specllama.prefix_disk.state_file import (
    BadStateFileError,
    StateMeta,
    file_size,
    forget_pages,
    read_ahead,
    read_beginning,
    read_header,
    read_parts,
    write_state,
)
from specllama.stored_figures import moved

# How fast states are written, which is bounded, and how fast they are read, which is measured.


SYNC_BYTES = 32 << 20  # written between two syncs, so that no long one follows at the end
LOAD_RATE = 1e9  # bytes a second, until it is measured
_OPEN_SECONDS = 0.002  # of opening a file and checking its header
LEAST_MEASURED = 1 << 20  # bytes, from which on a read tells the rate
_NEWEST_SHARE = 0.3  # of the last read in the measured rate
_MOST_OFF = 3.0  # times longer or shorter than predicted, as which one read counts at most
_RATES = (1e6, 1e11)  # bytes a second that a disk can have


class AbandonedError(Exception):
    """The store is closed; what is being written is given up."""


class WritePace:
    """A bound in bytes a second, lifted while somebody waits for the end of writing."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._changed = threading.Condition()
        self._hurry = self._abandoned = False

    def hurry(self, on: bool) -> None:
        """Whether somebody waits for what is being written."""
        with self._changed:
            self._hurry = on
            self._changed.notify_all()

    def abandon(self) -> None:
        """End what is being written, now and later."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def start(self, number: int) -> Callable[[int], None]:
        """A function for a new file, to be called with the bytes of each block that has been written to it:
        it waits, and syncs the file. It raises AbandonedError, OSError. number: a descriptor.
        """
        last, unsynced, allowed = self._clock(), 0, 0.0  # allowed: bytes, negative before a wait

        def written(n_bytes: int) -> None:
            nonlocal last, unsynced, allowed
            unsynced += n_bytes
            if unsynced >= SYNC_BYTES:
                os.fsync(number)
                unsynced = 0
            now = self._clock()
            allowed = min(0.0, allowed + (now - last) * self._rate) - n_bytes
            last = now
            with self._changed:
                self._changed.wait_for(lambda: self._hurry or self._abandoned, -allowed / self._rate)
                if self._abandoned:
                    raise AbandonedError

        return written


class LoadRate:
    """Seconds a byte as measured, in which slow reads count more than in bytes a second. rate: as stored by
    an earlier process, 0 if it is not known.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self.measured = rate > 0
        self._per_byte = 1 / min(max(rate, _RATES[0]), _RATES[1]) if self.measured else 1 / LOAD_RATE

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return 1 / self._per_byte

    @property
    def is_slow(self) -> bool:
        """Whether states may not be read because of this rate, so that it would never be measured again."""
        return self.rate < LOAD_RATE / _MOST_OFF

    def seconds(self, n_bytes: int) -> float:
        """That reading so many bytes is predicted to take."""
        return _OPEN_SECONDS + n_bytes * self._per_byte

    def add(self, n_bytes: int, seconds: float) -> None:
        """So many bytes were read. A read that has stalled counts as a slow one."""
        if n_bytes >= LEAST_MEASURED and seconds > 0:
            share = _NEWEST_SHARE if self.measured else 1.0
            self._per_byte = moved(self._per_byte, seconds / n_bytes, share, _MOST_OFF)
            self.measured = True

    def tried(self, n_bytes: int, seconds: float) -> None:
        """So many bytes were read to find out whether the disk is faster than the rate says."""
        if n_bytes >= LEAST_MEASURED and seconds > 0:
            self._per_byte = min(self._per_byte, max(seconds / n_bytes, 1 / _RATES[1]))
            self.measured = True


# Writes states into a directory, makes room for them, and keeps the ledger of their uses.
#
# Everything here may wait for the disk and for other processes: it is called by the store's thread alone.


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


WRITE_RATE = 128e6  # bytes a second
QUEUE_BYTES = 1 << 30  # of records that wait to be written; a single one may be larger
RESERVE_BYTES = 256 << 20  # of the disk that stay free
PAUSE_SECONDS = 60.0  # without writing, after an error of the disk
_TRIED_BYTES = 16 << 20  # of a state, to find out how fast the disk is, for so many seconds at most
_TRIED_SECONDS = 1.0
_FULL_SECONDS = 0.5  # after which a full queue may have room
_CLOSE_SECONDS = 10.0
_REFRESH_SECONDS = 0.05  # most that a look-up waits for what other processes have written


class DiskStore:
    """The states of one model in a directory that other models and processes share. For any thread.

    budget_bytes: of all states in the directory; 0: nothing is kept or found, and nothing is created. key: of
    the model (model_key.py); "": the same. model: its name for people. say: gets a line where something is
    wrong. write_rate: bytes a second, in the background. queue_bytes: of records that wait; a single one may
    be larger. reserve_bytes: of the disk that stay free.
    """

    def __init__(
        self,
        directory: Path,
        budget_bytes: int,
        key: str,
        *,
        model: str = "",
        say: Say = ignore_notice,
        write_rate: float = WRITE_RATE,
        queue_bytes: int = QUEUE_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        clock: Callable[[], float] = running_time,
    ) -> None:
        self.budget_bytes, self._say, self._said = budget_bytes, say, set[str]()
        self._is_on = budget_bytes > 0 and bool(key)
        self._queue_bytes, self._clock = queue_bytes, clock
        self._changed = threading.Condition()
        self._directory = StateDirectory(directory, say)
        self._contents = DirectoryContents(self._directory, key)
        self._pace, self._load_rate = WritePace(write_rate, clock), LoadRate()
        if self._is_on:
            self._open()
        self._writer = StateWriter(
            self._directory,
            self._contents,
            self._changed,
            key=key,
            model=model,
            budget_bytes=budget_bytes,
            reserve_bytes=reserve_bytes,
            pace=self._pace,
            load_rate=self._load_rate,
        )
        self._queue = deque[PrefixRecord]()
        self._closing = False
        self._writing = True  # the thread writes, or tidies up
        self._stale = False  # a look-up has seen that the directory has changed
        self._paused_until = float("-inf")
        self._thread: threading.Thread | None = None
        if self._is_on:
            self._thread = threading.Thread(target=self._work, name="specllama_prefixes", daemon=True)
            self._thread.start()

    def _open(self) -> None:
        """Read what is there; a directory that cannot be written may still be read."""
        try:
            self._directory.open(create=True)
        except OSError as error:
            self._report(error)
            with contextlib.suppress(OSError):
                self._directory.open(create=False)
        if self._directory.secret:
            self._load_rate = LoadRate(StateLedger.from_json(self._directory.read_ledger()).load_rate)
            with contextlib.suppress(OSError):
                self._contents.refresh()

    @property
    def secret(self) -> bytes:
        """Of the directory, for scopes; b"" where nothing can be kept."""
        return self._directory.secret

    @property
    def load_rate(self) -> float:
        """Bytes a second at which states are read, as measured so far."""
        return self._load_rate.rate

    @property
    def n_written(self) -> int:
        """States written since the start."""
        with self._changed:
            return self._writer.n_written

    def find(self, scope: str, ids: NDArray[np.int32]) -> list[PrefixCandidate]:
        """The states that serve a request of this scope, those with most tokens in common first; of two the
        one with fewer tokens is only there if it has fewer bytes too. ids: int32, shape (n_tokens,).

        Where the directory has changed, waits shortly until what another process has written is known. It
        does not wait while this store writes, which takes seconds and changes the directory too, nor for a
        reading of the directory that an earlier look-up has waited for.
        """
        if self._thread is None:
            return []
        raw = ids.astype(np.dtype("<i4"), copy=False).tobytes()
        with self._changed:
            if self._directory.changed_at() != self._contents.read_at:
                waits, self._stale = not self._writing and not self._stale, True
                self._changed.notify_all()
                if waits:
                    self._changed.wait_for(lambda: not self._stale, _REFRESH_SECONDS)
            matches = self._contents.lookup.find(scope, raw)
            return [
                PrefixCandidate(
                    state.name,
                    "whole" if state.whole else "partial",
                    n,
                    state.n_tokens,
                    state.meta.n_bytes,
                    dict(state.meta.parts),
                    self._load_rate.seconds(state.meta.n_bytes),
                )
                for state, n in matches
            ]

    def read(self, candidate: PrefixCandidate, parts: Collection[str] | None = None) -> PrefixRecord | None:
        """The state that a look-up found, with all its parts or those named; None where it is gone, where it
        is not whole, which removes it, and where it has none of the parts.
        """
        with self._changed:
            state = self._contents.lookup.get(candidate.name)
        if state is None:
            return None
        began = self._clock()
        try:
            with self._directory.opened(state.name) as number:
                read_ahead(number)
                header = read_header(number, self.secret)
                if header.meta != state.meta or header.ids != state.ids:
                    raise BadStateFileError("it is of another text than its name")
                read = read_parts(number, header, parts)
                forget_pages(number)
        except (BadStateFileError, OSError) as error:
            if isinstance(error, BadStateFileError):
                self._directory.discard(state.name, str(error))
            with self._changed:
                self._contents.forget(state.name)
            return None
        self._was_read(state.name, sum(map(len, read.values())), self._clock() - began)
        if not read:
            return None
        ids = np.frombuffer(header.ids, np.dtype("<i4")).astype(np.int32)
        return PrefixRecord(header.meta.scope, ids, candidate.kind, read, header.meta.seconds)

    def _was_read(self, name: str, n_bytes: int, seconds: float) -> None:
        with self._changed:
            self._load_rate.add(n_bytes, seconds)
            self._writer.used(name)

    def delay(self, n_bytes: int) -> float | None:
        """Seconds after which `put` may accept so many bytes; None where it will not for long."""
        with self._changed:
            if not self._accepts(n_bytes):
                return None
            return _FULL_SECONDS if self._is_full(n_bytes) else 0.0

    def _accepts(self, n_bytes: int) -> bool:
        """Whether a state of so many bytes can be written once the queue has room."""
        if self._thread is None or self._closing or self._clock() < self._paused_until:
            return False
        if n_bytes > self.budget_bytes:
            self._say_once(f"states of {n_bytes} bytes do not fit the {self.budget_bytes} on disk")
            return False
        return True

    def _is_full(self, n_bytes: int) -> bool:
        """Whether so many bytes have to wait for others to be written."""
        waiting = sum(one.n_bytes for one in self._queue)
        return waiting > 0 and waiting + n_bytes > self._queue_bytes

    def put(self, record: PrefixRecord) -> bool:
        """Queue a state to be written; False where it is not: too large, too many wait, or the disk fails. It
        is not written where it is worth less than what would have to go, or is there already.
        """
        with self._changed:
            if not self._accepts(record.n_bytes):
                return False
            for one in [one for one in self._queue if record.replaces(one)]:
                self._queue.remove(one)
            if self._is_full(record.n_bytes):
                return False
            self._queue.append(record)
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Write what waits, as fast as the disk can, for at most `timeout_s`. Returns whether all is written
        or given up.
        """
        if self._thread is None:
            return True
        self._pace.hurry(True)

        def done(seconds: float) -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: not self._queue and not self._writing, seconds)

        try:
            return wait_until(done, timeout_s, self._clock)
        finally:
            self._pace.hurry(False)

    def close(self) -> None:
        """End the thread: what waits, and what is being written, is given up."""
        with self._changed:
            self._closing = True
            self._queue.clear()
            self._changed.notify_all()
        self._pace.abandon()
        if self._thread is not None:
            wait_until(ended(self._thread), _CLOSE_SECONDS)

    def _work(self) -> None:
        """The thread."""
        self._guarded(self._writer.tidy)
        self._guarded(self._try_reading)
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._closing or self._stale)
                if self._closing:
                    break
                record = self._queue.popleft() if not self._stale else None
                self._writing = record is not None
            if record is None:
                self._guarded(self._writer.refresh)
                self._stale = False
            elif self._clock() >= self._paused_until:
                self._guarded(self._writer.write, record)
            del record  # and its memory, while this thread waits
        self._guarded(self._writer.note_uses)

    def _try_reading(self) -> None:
        """Read a part of a state where the stored rate says that this is slow: states that are not read for
        that reason would never show that one read had stalled. Raises OSError.
        """
        with self._changed:
            name = self._contents.largest if self._load_rate.is_slow else ""
        if not name:
            return
        began = self._clock()
        with self._directory.opened(name) as number:
            in_time = began + _TRIED_SECONDS
            n_bytes = read_beginning(
                number, _TRIED_BYTES, lambda: not self._closing and self._clock() < in_time
            )
        with self._changed:
            self._load_rate.tried(n_bytes, self._clock() - began)
        self._writer.note_uses(always=True)

    def _guarded(self, act: Callable[..., None], *arguments: object) -> None:
        try:
            act(*arguments)
        except AbandonedError:
            pass
        except OSError as error:
            self._paused_until = self._clock() + PAUSE_SECONDS
            self._report(error)

    def _report(self, error: OSError) -> None:
        why = error.strerror or str(error)
        self._say_once(f"prompts are not kept on disk for now: {self._directory.path}: {why}")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)
