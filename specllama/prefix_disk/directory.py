"""The directory of prefix states: its secret, its lock, and the files in it.

Files of other names are left alone. A state that is not whole is removed with a line, one of a newer
version is left. A state arrives under its name whole or not at all: it is written under a temporary
name, on which its writer holds a lock that the system releases with the process, so that what a killed
one has left is known and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from specllama import wire
from specllama.config.defaults import CACHE_DISK_BYTES, CACHE_DISK_SHARE
from specllama.config.places import close_to_others
from specllama.config.store import cache_dir, free_bytes, sync_folder, temporary, write_whole
from specllama.prefix_disk.state_file import (
    BadStateFileError,
    NewerStateFileError,
    State,
    StateMeta,
    read_state,
)
from specllama.regular_file import open_regular, read_regular

LOCK_SECONDS = 10.0  # that another process may hold the lock
_STATE = re.compile(r"[0-9a-f]{32}\.state")
MEMORY = re.compile(r"[0-9a-f]{32}\.memory")  # texts of earlier requests, see memory_store.py
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.state\.[0-9a-f]{16}\.tmp")
_UNFINISHED_WRITE = re.compile(r"\.(index\.json|[0-9a-f]{32}\.memory)\.[0-9a-f]{16}\.tmp")
_SECRET_BYTES = 32
_MAX_LINES = 8  # about broken files, of one reading of the directory
Say = Callable[[str], None]


def default_directory() -> Path:
    """The folder of states, "prefixes" in the cache directory."""
    return cache_dir() / "prefixes"


# The value of states on disk, by which they are evicted when there is no room.
#
# The rule is GreedyDual-Size with frequency (Cherkasova, "Improving WWW Proxies Performance with
# Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998): the priority of a state is what it saves per
# byte times its uses, plus the inflation at its last use; inflation is the priority of what went last. So
# what is not used sinks without any clock, which may be set back.


_MAX_USES = 1000
_MB = 1e6
_MAX_BYTES = 16 << 20  # of index.json
_MAX_NUMBER = 1e15


def worth(meta: StateMeta, load_rate: float) -> float:
    """Seconds that one use of a state saves per megabyte. load_rate: bytes a second."""
    n_bytes = meta.n_bytes
    return max(0.0, meta.seconds - n_bytes / load_rate) / (n_bytes / _MB) if n_bytes else 0.0


class StateUse(NamedTuple):
    """uses: so far, writing included. priority: see above."""

    uses: int
    priority: float


@dataclass(slots=True)
class StateLedger:
    """Figures of states beyond their headers, shared by the processes of a directory: index.json.

    inflation: see above. load_rate: bytes a second, as measured, 0 before. states: by name.
    """

    inflation: float = 0.0
    load_rate: float = 0.0
    states: dict[str, StateUse] = field(default_factory=dict)

    def use(self, name: str, value: float) -> None:
        """A state of this worth was written or used."""
        before = self.states.get(name)
        n = min(_MAX_USES, before.uses + 1 if before is not None else 1)
        self.states[name] = StateUse(n, self.inflation + n * value)

    def replace(self, old: str, new: str) -> None:
        """A state was written in the place of another one: it was used as often."""
        before, now = self.states.pop(old, None), self.states[new]
        if before is not None:
            self.states[new] = now._replace(uses=max(before.uses, now.uses))

    def priority(self, name: str, value: float) -> float:
        """The priority of a state of this worth; one that the ledger does not know was used once."""
        known = self.states.get(name)
        return known.priority if known is not None else self.inflation + value

    def gone(self, name: str, priority: float) -> None:
        """A state of this priority was removed to make room, or not written."""
        self.inflation = max(self.inflation, priority)
        self.states.pop(name, None)

    @classmethod
    def from_file(cls, path: Path) -> StateLedger:
        """Raises OSError, ValueError."""
        ledger = wire.from_file(cls, path, _MAX_BYTES)
        numbers = [ledger.inflation, ledger.load_rate, *(x for use in ledger.states.values() for x in use)]
        if not all(0 <= x < _MAX_NUMBER for x in numbers):
            raise ValueError("numbers that cannot be")
        return ledger


def automatic_budget(directory: Path, held: int = 0) -> int:
    """Bytes for a directory, which may not exist yet: 8 GB, or a tenth of what would be free without it if
    that is less; 0 where nothing is known of the disk. held: bytes that the directory has already.
    """
    free = free_bytes(directory)
    return 0 if free is None else min(CACHE_DISK_BYTES, int(CACHE_DISK_SHARE * (free + held)))


class StateDirectory:
    """One directory. say: gets lines about files that cannot be used.

    newer: names of states of a newer version, which are not read.
    """

    def __init__(self, path: Path, say: Say = lambda _: None) -> None:
        self.path, self._say = path, say
        self._secret = b""
        self._said = 0
        self.newer = set[str]()

    @property
    def secret(self) -> bytes:
        """The key of its hashes, b"" before `open`; it never leaves this machine."""
        return self._secret

    def open(self, create: bool) -> bool:
        """Make the directory (if `create`) and read its secret. Returns whether there is one; raises OSError.

        One that others may enter is closed to them; one that belongs to somebody else is not used. A secret
        that has been read is written again where the directory has been removed.
        """
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
        try:
            os.stat(self.path)
        except FileNotFoundError:
            if create:
                raise
            return False
        close_to_others(self.path)
        file = self.path / "secret"
        known = _read_secret(file)
        if not known and create:
            with self.locked():
                known = _read_secret(file)
                if not known:
                    known = self._secret or secrets.token_bytes(_SECRET_BYTES)
                    write_whole(file, known.hex(), 0o600)
        if self._secret and known and known != self._secret:
            raise PermissionError(1, "has another secret than before", str(self.path))
        self._secret = self._secret or known
        return bool(known)

    def is_own(self) -> bool:
        """Whether the directory is still the one whose secret was read: in another one that has taken its
        place, nothing can be checked, and nothing is to be removed. Raises OSError.
        """
        return bool(self._secret) and _read_secret(self.path / "secret") == self._secret

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes, and other threads, from changing the directory. Raises OSError."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.path / ".lock", timeout=LOCK_SECONDS, mode=0o600):
                yield
        except Timeout:
            raise OSError(11, "another process holds the lock", str(self.path)) from None

    def changed_at(self) -> int:
        """A number that changes when files come and go; 0 where there is no directory."""
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return 0

    def sizes(self, of: re.Pattern[str] = _STATE) -> dict[str, int]:
        """Bytes of each state by name, or of other files with such names. Raises OSError."""
        return {name: n for name, n in self._files() if of.fullmatch(name)}

    def unfinished_sizes(self) -> dict[str, int]:
        """The states that are being written, as large as they will be, by their names. Raises OSError."""
        return {name: n for name, n in self._files() if _UNFINISHED.fullmatch(name)}

    def _files(self) -> Iterator[tuple[str, int]]:
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        yield entry.name, entry.stat(follow_symlinks=False).st_size

    def new_round(self) -> None:
        """A new reading of the directory begins: its broken files have lines of their own."""
        self._said = 0

    def state(self, name: str) -> State | None:
        """The header of a state; None where it cannot be used, which removes it unless it is a newer one."""
        try:
            with self.opened(name) as number:
                return read_state(number, self._secret, name)
        except NewerStateFileError:
            self.newer.add(name)
        except BadStateFileError as error:
            self.discard(name, str(error))
        except OSError:
            pass  # gone, or not readable now
        return None

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """A descriptor to read a state. Raises OSError."""
        with open_regular(self.path / name, os.O_NOFOLLOW) as file:
            yield file.fileno()

    def discard(self, name: str, why: str) -> None:
        """Remove a state that cannot be used, with a line."""
        with contextlib.suppress(OSError):
            if not self.is_own():
                return
        self._said += 1
        if self._said <= _MAX_LINES:
            self._say(f"prefix state {name} is not used and removed: {why}")
        elif self._said == _MAX_LINES + 1:
            self._say("more prefix states are not used and removed")
        with contextlib.suppress(OSError):
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a state, if it is there. Raises OSError."""
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def unfinished(self, name: str, n_bytes: int) -> Iterator[tuple[int, Path]]:
        """A descriptor and the path of a new file for a state of so many bytes, to be made with the lock and
        published with it; without that it is gone at the end. Raises OSError.
        """
        path = temporary(self.path / name)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(number, n_bytes)
            yield number, path
        finally:
            os.close(number)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def publish(self, path: Path, name: str) -> None:
        """Give an unfinished file, whole and synced, its name; with the lock. Raises OSError."""
        path.replace(self.path / name)
        sync_folder(self.path)

    def sweep(self) -> int:
        """Remove what killed processes have left; returns how many files. With the lock. Raises OSError."""
        n = 0
        for name, _ in list(self._files()):
            path = self.path / name
            if _UNFINISHED_WRITE.fullmatch(name) or (_UNFINISHED.fullmatch(name) and not _is_held(path)):
                path.unlink(missing_ok=True)
                n += 1
        return n

    def read_ledger(self) -> StateLedger:
        """The ledger in index.json, an empty one where it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return StateLedger.from_file(self.path / "index.json")
        return StateLedger()

    def write_ledger(self, ledger: StateLedger) -> None:
        """Write index.json, with the lock. Raises OSError."""
        write_whole(self.path / "index.json", wire.to_json(ledger), 0o600)


def _read_secret(file: Path) -> bytes:
    """The secret, b"" where there is none or it is damaged. Raises OSError for one that cannot be read."""
    try:
        secret = bytes.fromhex(read_regular(file, 2 * _SECRET_BYTES + 1).decode("ascii"))
    except (FileNotFoundError, ValueError):
        return b""
    return secret if len(secret) == _SECRET_BYTES else b""


def _is_held(path: Path) -> bool:
    """Whether a process writes this file."""
    try:
        number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False


# The states on disk as people manage them: which there are, of which model, and how to remove them.
#
# Reads headers, and shows neither texts nor whose they are. Works while servers use the directory.


_ID_LENGTH = 12


class ListedFile(NamedTuple):
    """A file as people manage it. model: its name when it was loaded. kind: of the state, or "memory".

    seconds: of evaluation that a state saves. changed: time of day at which it was written, in seconds.
    uses: so far, writing included.
    """

    name: str
    model: str
    kind: str
    n_tokens: int
    n_bytes: int
    seconds: float
    changed: float
    uses: int

    @property
    def id(self) -> str:
        """The beginning of its name."""
        return self.name[:_ID_LENGTH]


def listed(directory: StateDirectory) -> list[ListedFile]:
    """The states, the newest first; none where there is no directory. Raises OSError."""
    if not directory.open(create=False):
        return []
    ledger, states = directory.read_ledger(), []
    for name in directory.sizes():
        state, use = directory.state(name), ledger.states.get(name)
        with contextlib.suppress(FileNotFoundError):
            if state is not None:
                changed, uses = os.stat(directory.path / name).st_mtime, use.uses if use is not None else 1
                meta, n_tokens, n_bytes = state.meta, state.n_tokens, state.file_bytes
                one = ListedFile(name, meta.model, meta.kind, n_tokens, n_bytes, meta.seconds, changed, uses)
                states.append(one)
    return sorted(states, key=lambda one: -one.changed)


def remove_states(directory: StateDirectory, names: Iterable[str]) -> None:
    """Remove these states. Raises OSError."""
    with directory.locked():
        for name in names:
            directory.remove(name)


def clear(directory: StateDirectory) -> tuple[int, int]:
    """Remove all states and texts, those that cannot be read and unfinished ones too; returns how many, and
    their bytes. What a server is writing does not appear afterwards. Raises OSError.
    """
    if not directory.open(create=False) and not directory.path.is_dir():
        return 0, 0
    with directory.locked():
        sizes = {**directory.sizes(), **directory.unfinished_sizes(), **directory.sizes(MEMORY)}
        for name in sizes:
            directory.remove(name)
    return len(sizes), sum(sizes.values())
