"""Stores measurements between runs, in the cache directory. A malformed file is renamed and never fatal."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specllama import wire
from specllama.config.places import from_variable, user_directory
from specllama.json_types import JsonObject

# Writes files whole or not at all, so that a left-over link never leads into another file.
#
# A temporary file has a random name and must not exist before: in a directory that others may write to, a
# predictable one could be a link that they have put there.


def temporary(path: Path) -> Path:
    """A random name in the directory of `path`, for a temporary file."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")


def write_whole(path: Path, contents: str | bytes, mode: int = 0o666, sync: bool = False) -> None:
    """Write bytes, or a text as UTF-8; whatever has this name, a link too, is replaced and not written to.
    mode: of the file, less the umask. sync: it is on the disk before it gets its name, so that a machine that
    goes down leaves these contents or those before. Raises OSError, after which nothing is changed.
    """
    new = temporary(path)
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # O_EXCL follows no link
    try:
        with os.fdopen(number, "wb") as file:
            file.write(contents.encode() if isinstance(contents, str) else contents)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


# Errors of operations that a file system does not have, such as locks and modes on some networks' ones.
NOT_THERE = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK)
)
_LOCK_SECONDS = 0.25


def sync(number: int) -> None:
    """Write a file through to its disk, where the file system can. Raises OSError if writing fails."""
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def sync_folder(path: Path) -> None:
    """Make new names in a folder durable, where the system lets it be opened for that."""
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def free_bytes(path: Path) -> int | None:
    """Free bytes on the disk of a directory, which need not exist yet; None if unknown."""
    for there in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(there).free
    return None


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None], mode: int = 0o644) -> Iterator[None]:
    """Hold a lock file against all other processes; the system releases it with a process that ends. Without
    one on a file system that has no locks. waiting: called every quarter of a second while another process
    holds it. mode: of the file. Raises OSError.
    """
    from filelock import FileLock

    lock = FileLock(path, mode=mode)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=_LOCK_SECONDS)
        except TimeoutError:
            waiting()
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the lock ends with the process in any case
            lock.release()


SCHEMA = 1
# If decodes of this many rows are bit-equal to single rows, wider ones that are not need not be used.
ENOUGH_ROWS = 17
_MAX_BYTES = 4 << 20  # of a file; specllama writes no larger ones


def cache_dir() -> Path:
    """The cache directory: SPECLLAMA_CACHE, else the user's cache directory for specllama."""
    return from_variable(os.environ, "SPECLLAMA_CACHE") or user_directory("cache")


def writing_problem(path: Path) -> str:
    """Why nothing can be written into a directory that may not exist yet; "" where it can."""
    there = next((p for p in (path, *path.parents) if os.path.lexists(p)), path)
    if not there.is_dir():
        return "is not a directory" if there == path else f"cannot be made: {there} is not a directory"
    try:
        with tempfile.TemporaryFile(dir=there) as file:  # root may write where the system makes no files
            file.write(b"x")
    except OSError as error:
        made = "" if there == path else f"cannot be made: {there} "
        return f"{made}cannot be written: {error.strerror or error}"
    return ""


def stored_object(path: Path) -> JsonObject:
    """The object in a file of a store. Raises OSError; ValueError for a malformed file, one of another
    version, and one that is longer than any that specllama writes.
    """
    data: JsonObject = wire.from_file(dict[str, Any], path, _MAX_BYTES)
    if data.get("schema") != SCHEMA:
        raise ValueError("not a file of this version")
    return data


class Store:
    """JSON objects by key, one file each.

    root: the directory, created at the first write; "calibration" in the cache directory by default.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else cache_dir() / "calibration"

    def path(self, key: Mapping[str, Any]) -> Path:
        """The file for a key, which contains everything that the stored values depend on."""
        text = json.dumps(key, sort_keys=True, default=str)
        return self.root / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def read(self, key: Mapping[str, Any]) -> JsonObject:
        """The values stored under the key; empty if there are none. A malformed file is renamed."""
        path = self.path(key)
        try:
            return stored_object(path) if path.is_file() else {}
        except OSError:
            return {}
        except ValueError:
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".broken"))
            return {}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold off other processes that read and write under this lock; where there can be none, or after a
        second, without it.
        """
        from filelock import FileLock, Timeout

        held = contextlib.ExitStack()
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            self.root.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(self.root.with_suffix(".lock"), timeout=1))
        with held:
            yield

    def write(self, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Store values under the key, atomically; a cache that cannot be written is not an error."""
        path = self.path(key)
        text = json.dumps({"schema": SCHEMA, "key": dict(key), **values}, default=str)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
