"""Files of the cache that are written so that a left-over link never leads into another file.

Knows nothing about the layout of the cache.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from pathlib import Path

from specllama.regular_file import open_regular

_MAX_RECORD = 4096  # characters
# Errors of operations that a file system does not have, such as locks and modes on some networks' ones.
NOT_THERE = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK)
)


def read_small(path: Path) -> str:
    """The beginning of a small file. Raises OSError, UnicodeDecodeError."""
    with io.TextIOWrapper(open_regular(path), "utf-8") as file:
        return file.read(_MAX_RECORD)


def sync(number: int) -> None:
    """Write a file through to its disk, where the file system can. Raises OSError if writing fails."""
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def open_partial(path: Path) -> int:
    """A descriptor of an unfinished download for reading and writing, made if it does not exist.

    A link with this name, and a file that has other names too, are removed first: writing to them would
    change another file. Raises OSError.
    """
    flags = (
        os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with contextlib.suppress(FileNotFoundError):
        info = path.lstat()
        if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
            return os.open(path, flags)
        path.unlink()
    return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
