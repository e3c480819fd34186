"""Entries for a server that `launch` has started, in files that a client keeps.

They are removed when the server ends, those of a launch that was killed by the next one.
A record of each stands in the cache while its launch runs, which holds a lock that the system releases.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path

from specllama.cli.launch import files
from specllama.cli.launch.client import ClientFile
from specllama.config.store import cache_dir
from specllama.errors import ResourceError, SpecllamaError
from specllama.regular_file import read_regular

_MAX_BYTES = 64 * 1024  # of a record


def _folder() -> Path:
    return cache_dir() / "launch" / "entries"


@contextlib.contextmanager
def entry_while_running(file: ClientFile) -> Iterator[None]:
    """Remove the entry of a file at the end of the block, also after a crash. Raises ResourceError if its
    record cannot be written.
    """
    from filelock import FileLock

    assert file.entry is not None
    record = _folder() / f"{secrets.token_hex(8)}.json"
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(record.with_suffix(".lock")):
            with record.open("x", encoding="utf-8") as new:
                json.dump({"path": str(file.path), "entry": dict(file.entry)}, new)
            try:
                yield
            finally:
                with contextlib.suppress(SpecllamaError):  # the next launch tries again
                    files.remove_entry(file.path, file.entry)
                    record.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(f"{record.parent} cannot be written: {error.strerror or error}") from None
    record.with_suffix(".lock").unlink(missing_ok=True)


def remove_left() -> list[Path]:
    """Remove the entries of launches that were killed. Returns the files that were changed; what cannot be
    read or changed is left for the next time.
    """
    from filelock import FileLock, Timeout

    changed = []
    for record in sorted(_folder().glob("*.json")) if _folder().is_dir() else ():
        lock = FileLock(record.with_suffix(".lock"))
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, RecursionError, SpecllamaError, Timeout
        ):
            with lock.acquire(blocking=False):
                if len(text := read_regular(record, _MAX_BYTES + 1)) <= _MAX_BYTES:
                    left = json.loads(text)
                    path = Path(left["path"])
                    changed += [path] if files.remove_entry(path, left["entry"]) else []
                record.unlink()
            record.with_suffix(".lock").unlink(missing_ok=True)
    return changed
