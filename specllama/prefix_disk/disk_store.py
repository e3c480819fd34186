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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.clock import ended, running_time, wait_until
from specllama.config.store import temporary
from specllama.prefix_disk import state_file
from specllama.prefix_disk.directory import Say, StateDirectory, StateLedger, worth
from specllama.prefix_disk.index import StateIndex
from specllama.prefix_disk.scopes import state_name
from specllama.regular_file import open_regular
from specllama.stored_figures import moved

WRITE_RATE = 128e6  # bytes a second
SYNC_BYTES = 32 << 20  # written between two syncs, so that no long one follows at the end
QUEUE_BYTES = 1 << 30  # of records that wait to be written; a single one may be larger
RESERVE_BYTES = 256 << 20  # of the disk that stay free
REDUNDANT = 2  # a state is not kept next to one that continues it and has at most so many times its bytes
PAUSE_SECONDS = 60.0  # without writing, after an error of the disk
LOAD_RATE = 1e9  # bytes a second, until it is measured
LEAST_MEASURED = 1 << 20  # bytes, from which on a read tells the rate
_OPEN_SECONDS = 0.002  # of opening a file and checking its header
_NEWEST_SHARE = 0.3  # of the last read in the measured rate
_MOST_OFF = 3.0  # times longer or shorter than predicted, as which one read counts at most
_RATES = (1e6, 1e11)  # bytes a second that a disk can have
_TRIED_BYTES = 16 << 20  # of a state, to find out how fast the disk is, for so many seconds at most
_TRIED_SECONDS = 1.0
_FULL_SECONDS = 0.5  # after which a full queue may have room
_CLOSE_SECONDS = 10.0
_REFRESH_SECONDS = 0.05  # most that a look-up waits for what other processes have written
MAX_PARTS, MAX_PART_NAME = 16, 64


@dataclass(frozen=True, slots=True, eq=False)
class PrefixRecord:
    """The state after some token ids, in memory. Raises ValueError.

    scope: whose it is (scopes.py). ids: int32, shape (n_tokens,). parts: bytes by name, such as "target" and
    "draft", which can be cut at any length; they may not change while the store has the record. seconds: that
    reading the text again would cost.

    Parts of a record that was read from disk are writable views of memory that belongs to the record alone,
    and is returned to the system with it.
    """

    scope: str
    ids: NDArray[np.int32]
    parts: Mapping[str, state_file.Buffer] = field(repr=False)
    seconds: float

    def __post_init__(self) -> None:
        if self.ids.dtype != np.int32 or self.ids.ndim != 1 or not 0 < len(self.ids) <= state_file.MAX_TOKENS:
            raise ValueError(f"ids must be 1 to {state_file.MAX_TOKENS} int32 in one dimension")
        if not 0 < len(self.parts) <= MAX_PARTS:
            raise ValueError(f"a record has 1 to {MAX_PARTS} parts, not {len(self.parts)}")
        for name, part in self.parts.items():
            if not 0 < len(name) <= MAX_PART_NAME:
                raise ValueError(f"the name of a part has 1 to {MAX_PART_NAME} characters: {name[:80]!r}")
            if isinstance(part, memoryview) and (part.nbytes != len(part) or not part.c_contiguous):
                raise ValueError(f"part {name!r} is no view of bytes")
        if not 0 <= self.seconds < state_file.MAX_SECONDS:
            raise ValueError(f"seconds must be from 0, not {self.seconds!r}")

    @property
    def n_bytes(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def meta(self, key: str, model: str) -> state_file.StateMeta:
        """Its description as a state of a model."""
        sizes = tuple((name, len(part)) for name, part in self.parts.items())
        return state_file.StateMeta(key, model, self.scope, state_file.WHOLE, self.seconds, sizes)

    def replaces(self, other: PrefixRecord) -> bool:
        """Whether this one does all that the other one, made before, would do."""
        same = other.scope == self.scope and other.parts.keys() <= self.parts.keys()
        return same and np.array_equal(other.ids, self.ids[: len(other.ids)])


def raw(ids: NDArray[np.int32]) -> bytes:
    """Ids as they are in files."""
    return ids.astype(np.dtype("<i4"), copy=False).tobytes()


def as_record(state: state_file.State, parts: Mapping[str, state_file.Buffer]) -> PrefixRecord:
    """The record of a state with parts that were read. Raises BadStateFileError."""
    ids = np.frombuffer(state.ids, np.dtype("<i4")).astype(np.int32)
    try:
        return PrefixRecord(state.meta.scope, ids, parts, state.meta.seconds)
    except ValueError as error:
        raise state_file.BadStateFileError(str(error)) from None


class AbandonedError(Exception):
    """The store is closed; what is being written is given up."""


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


class DiskStore:
    """The states of one model in a directory that other models and processes share. For any thread.

    budget_bytes: of all states in the directory; 0: nothing is kept or found, and nothing is created. key: of
    the model; "": the same. model: its name for people. say: gets a line where something is wrong.
    write_rate: bytes a second, in the background. queue_bytes: of records that wait; a single one may be
    larger. reserve_bytes: of the disk that stay free. n_written: states since the start.
    """

    def __init__(
        self,
        directory: Path,
        budget_bytes: int,
        key: str,
        *,
        model: str = "",
        say: Say = lambda _: None,
        write_rate: float = WRITE_RATE,
        queue_bytes: int = QUEUE_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        clock: Callable[[], float] = running_time,
    ) -> None:
        self.budget_bytes, self._key, self._model = budget_bytes, key, model
        self._queue_bytes, self._reserve_bytes = queue_bytes, reserve_bytes
        self._write_rate, self._clock = write_rate, clock
        self._say, self._said = say, set[str]()
        self._changed = threading.Condition()
        self._directory = StateDirectory(directory, say)
        self._index = StateIndex(self._directory, key, self._changed)
        self._load_rate = LoadRate()
        self._queue = deque[PrefixRecord]()
        self._used = list[str]()  # since the ledger was written
        self._hurry = False  # somebody waits for what is being written
        self._closing = False
        self._writing = True  # the thread writes, or tidies up
        self._stale = False  # a look-up has seen that the directory has changed
        self._paused_until = float("-inf")
        self._thread: threading.Thread | None = None
        self.n_written = 0
        if budget_bytes > 0 and key:
            self._open()
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
        self._load_rate = LoadRate(self._directory.read_ledger().load_rate)
        with contextlib.suppress(OSError):
            self._refresh()

    @property
    def secret(self) -> bytes:
        """Of the directory, for scopes; b"" where nothing can be kept."""
        return self._directory.secret

    @property
    def load_rate(self) -> float:
        """Bytes a second at which states are read, as measured so far."""
        return self._load_rate.rate

    def find(self, scope: str, ids: NDArray[np.int32]) -> list[tuple[state_file.State, int]]:
        """The states that serve a request of this scope, each with the tokens that it has in common with it,
        most first; of two the one with fewer tokens is only there if it has fewer bytes too. ids: int32,
        shape (n_tokens,).

        Where the directory has changed, waits shortly until what another process has written is known. It
        does not wait while this store writes, which takes seconds and changes the directory too, nor for a
        reading of the directory that an earlier look-up has waited for.
        """
        if self._thread is None:
            return []
        with self._changed:
            if self._directory.changed_at() != self._index.read_at:
                waits, self._stale = not self._writing and not self._stale, True
                self._changed.notify_all()
                if waits:
                    self._changed.wait_for(lambda: not self._stale, _REFRESH_SECONDS)
            return self._index.find(scope, raw(ids))

    def load_seconds(self, n_bytes: int) -> float:
        """That reading so many bytes is predicted to take, by the measured rate."""
        return self._load_rate.seconds(n_bytes)

    def read(self, state: state_file.State, parts: Collection[str] | None = None) -> PrefixRecord | None:
        """A state that a look-up found, with all its parts or those named; None where it is gone, where it is
        not whole, which removes it, and where it has none of the parts.
        """
        with self._changed:
            if state.name not in self._index.states:
                return None
        began = self._clock()
        try:
            with self._directory.opened(state.name) as number:
                state_file.advise(number, "POSIX_FADV_SEQUENTIAL")
                header = state_file.read_state(number, self.secret, state.name)
                if header.meta != state.meta or header.ids != state.ids:
                    raise state_file.BadStateFileError("it is of another text than its name")
                read = state_file.read_parts(number, header, parts)
                state_file.advise(number, "POSIX_FADV_DONTNEED")
                record = as_record(header, read) if read else None
        except (state_file.BadStateFileError, OSError) as error:
            if isinstance(error, state_file.BadStateFileError):
                self._directory.discard(state.name, str(error))
            with self._changed:
                self._index.remove(state.name)
            return None
        with self._changed:
            self._load_rate.add(sum(map(len, read.values())), self._clock() - began)
            self._used.append(state.name)
        return record

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
        """Write what waits, as fast as the disk can, for at most `timeout_s`; False if some is left."""
        if self._thread is None:
            return True
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            idle = partial(self._changed.wait_for, lambda: not self._queue and not self._writing)
            try:
                return wait_until(idle, timeout_s, self._clock)
            finally:
                self._hurry = False

    def close(self) -> None:
        """End the thread: what waits, and what is being written, is given up."""
        with self._changed:
            self._closing = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None:
            wait_until(ended(self._thread), _CLOSE_SECONDS)

    def _report(self, error: Exception) -> None:
        why = getattr(error, "strerror", None) or repr(error)
        self._say_once(f"prompts are not kept on disk for now: {self._directory.path}: {why}")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    # What follows may wait for the disk and for other processes: it is called by the thread alone.

    def _work(self) -> None:
        self._guarded(self._tidy)
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
                self._guarded(self._refresh)
                self._stale = False
            elif self._clock() >= self._paused_until:
                self._guarded(self._write, record)
            del record  # and its memory, while this thread waits
        if self._used:
            self._guarded(self._note_uses)

    def _guarded(self, act: Callable[..., None], *arguments: object) -> None:
        try:
            act(*arguments)
        except AbandonedError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody waits for a thread that is gone
            self._paused_until = self._clock() + PAUSE_SECONDS
            self._report(error)

    def _tidy(self) -> None:
        """Remove what killed processes have left, and what is beyond the budget. Raises OSError."""
        if self.secret:
            with self._directory.locked():
                self._directory.sweep()
                self._refresh()
                ledger = self._ledger()
                self._make_room(ledger, 0, float("inf"))
                self._store(ledger)

    def _try_reading(self) -> None:
        """Read a part of a state where the stored rate says that this is slow: states that are not read for
        that reason would never show that one read had stalled. Raises OSError.
        """
        with self._changed:
            name = self._index.largest if self._load_rate.rate < LOAD_RATE / _MOST_OFF else ""
        if not name:
            return
        began = self._clock()
        with self._directory.opened(name) as number:
            ends = began + _TRIED_SECONDS
            n_bytes = state_file.read_beginning(
                number, _TRIED_BYTES, lambda: not self._closing and self._clock() < ends
            )
        with self._changed:
            self._load_rate.tried(n_bytes, self._clock() - began)
        self._note_uses()

    def _note_uses(self) -> None:
        """Write down the uses of this process, and the rate of reading. Raises OSError."""
        if self.secret:
            with self._directory.locked():
                self._store(self._ledger())

    def _refresh(self) -> None:
        """Read what others have written or removed. Raises OSError."""
        if self.secret:
            self._index.refresh()

    def _write(self, record: PrefixRecord) -> None:
        """Write a state, unless it is there, or worth too little. Raises OSError, AbandonedError."""
        directory = self._directory
        directory.open(create=True)
        self._refresh()
        meta, ids = record.meta(self._key, self._model), raw(record.ids)
        name = state_name(self._key, record.scope, meta.kind, ids, self.secret)
        with self._changed:
            there = self._index.same(name, meta, ids, REDUNDANT)
            if there is not None:
                self._used.append(there.name)
                return
        size, value = state_file.file_size(meta, len(record.ids)), worth(meta, self._load_rate.rate)
        with contextlib.ExitStack() as stack:
            with directory.locked():
                self._refresh()
                ledger = self._ledger()
                priority = ledger.priority(name, value)
                fits = self._make_room(ledger, size, priority)
                if not fits:
                    ledger.gone(name, priority)
                self._store(ledger)
                if not fits:
                    return
                number, path = stack.enter_context(directory.unfinished(name, size))
            parts, pace = record.parts.values(), self._pace(number)
            state_file.write_state(number, meta, ids, parts, self.secret, pace)
            state_file.advise(number, "POSIX_FADV_DONTNEED")
            with directory.locked():
                directory.publish(path, name)
                ledger = self._ledger()
                ledger.use(name, value)
                self._remove_redundant(ledger, name, meta, ids)
                self._store(ledger)
        with self._changed:
            self.n_written += 1
        self._refresh()

    def _pace(self, number: int) -> Callable[[int], None]:
        """A function for a new file, to be called with the bytes of each block that has been written to it:
        it syncs the file, and waits, unless somebody waits for the end of writing. It raises AbandonedError,
        OSError. number: a descriptor.
        """
        last, unsynced, allowed = self._clock(), 0, 0.0  # allowed: bytes, negative before a wait

        def written(n_bytes: int) -> None:
            nonlocal last, unsynced, allowed
            unsynced += n_bytes
            if unsynced >= SYNC_BYTES:
                os.fsync(number)
                unsynced = 0
            now = self._clock()
            allowed = min(0.0, allowed + (now - last) * self._write_rate) - n_bytes
            last = now
            with self._changed:
                self._changed.wait_for(lambda: self._hurry or self._closing, -allowed / self._write_rate)
                if self._closing:
                    raise AbandonedError

        return written

    def _remove_redundant(
        self, ledger: StateLedger, name: str, meta: state_file.StateMeta, ids: bytes
    ) -> None:
        """Remove the states that the new one continues."""
        with self._changed:
            covered = self._index.covered_by(meta.scope, ids)
        for old in covered:
            large = REDUNDANT * old.meta.n_bytes >= meta.n_bytes
            if large and old.name != name and old.meta.part_names <= meta.part_names:
                ledger.replace(old.name, name)
                self._directory.remove(old.name)

    def _make_room(self, ledger: StateLedger, n_bytes: int, priority: float) -> bool:
        """Remove what is worth least until so many bytes fit the budget and the disk, with the lock; False,
        and nothing is removed, where that would take something of a higher priority. Those of newer versions
        go first: nobody here knows their worth. Raises OSError where the disk would be full without states.
        """
        index, victims = self._index, list[tuple[float, str, int]]()
        total = index.n_bytes + sum(self._directory.unfinished_sizes().values())
        missing = total + n_bytes - self.budget_bytes
        if n_bytes:
            free = shutil.disk_usage(self._directory.path).free
            if (more := n_bytes + self._reserve_bytes - free) > index.n_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            missing = max(missing, more)
        states = [(0.0, name, n) for name, n in index.newer.items()]
        for name, state in list(index.states.items()):
            states.append(
                (ledger.priority(name, worth(state.meta, self._load_rate.rate)), name, state.file_bytes)
            )
        for victim in sorted(states):
            if missing <= 0 or victim[0] > priority:
                break
            victims.append(victim)
            missing -= victim[2]
        if missing > 0:
            return False
        for its, name, _ in victims:
            ledger.gone(name, its)
            self._directory.remove(name)
        self._refresh()
        return True

    def _ledger(self) -> StateLedger:
        """The ledger with the uses of this process; with the lock."""
        ledger = self._directory.read_ledger()
        with self._changed:
            used, self._used = self._used, []
        for name in used:
            if (state := self._index.states.get(name)) is not None:
                ledger.use(name, worth(state.meta, self._load_rate.rate))
        if self._load_rate.measured:
            ledger.load_rate = self._load_rate.rate
        return ledger

    def _store(self, ledger: StateLedger) -> None:
        sizes = self._directory.sizes()
        ledger.states = {name: use for name, use in ledger.states.items() if name in sizes}
        self._directory.write_ledger(ledger)


# One state in a file that a client has named: llama-server's saved slots. The format is that of the cache,
# but without the secret of a directory: such a file may be copied. It is for the same model, build and
# settings alone.


def write_slot_file(path: Path, record: PrefixRecord, key: str, model: str = "") -> int:
    """Write a state, whole or not at all, for the user alone; returns its bytes. Whatever has this name is
    replaced, and the directory is made. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = temporary(path)
    number = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        n_bytes = state_file.write_state(
            number, record.meta(key, model), raw(record.ids), record.parts.values(), b"", lambda _: None
        )
        new.replace(path)
    finally:
        os.close(number)
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
    return n_bytes


def read_slot_file(path: Path, key: str, scope: str, max_bytes: int) -> PrefixRecord:
    """The state in a file, for the model with this key and for this scope. max_bytes: of its parts in
    memory. Raises BadStateFileError, which says why it cannot be used, and OSError.
    """
    with open_regular(path) as file:
        state = state_file.read_state(file.fileno(), b"")
        meta = state.meta
        if meta.scope != scope:
            raise state_file.BadStateFileError("it belongs to another key")
        if meta.key != key:
            message = "it was saved with another model, other settings of the context, or another llama.cpp"
            raise state_file.BadStateFileError(message)
        if meta.n_bytes > max_bytes:
            message = f"it needs {meta.n_bytes} bytes of memory, and {max_bytes} are free"
            raise state_file.BadStateFileError(message)
        return as_record(state, state_file.read_parts(file.fileno(), state))
