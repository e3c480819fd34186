"""Writes files whole or not at all, so that a left-over link never leads into another file.

A temporary file has a random name and must not exist before: in a directory that others may write to, a
predictable one could be a link that they have put there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


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
