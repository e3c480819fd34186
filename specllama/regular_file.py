"""Opens files to read that must be regular ones: a FIFO, a device or a socket in their place, at which an
ordinary `open` waits for ever, is an error at once. Files that a user names, as with -f, may be such:
config/text_file.py. And reads the tables that the package contains.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


class NotRegularError(OSError):
    """Something else than a regular file is there."""


def open_regular(path: str | os.PathLike[str], flags: int = 0, buffering: int = -1) -> BinaryIO:
    """The file, open for reading. flags: more of those of os.open. Raises OSError."""
    _check(path, os.stat(path))  # opening some devices has an effect
    flags |= os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = open(os.open(path, flags), "rb", buffering=buffering)  # noqa: SIM115 - returned
    try:
        _check(path, os.fstat(file.fileno()))  # it may have been replaced meanwhile
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], n_bytes: int = -1) -> bytes:
    """The first bytes of a file, all by default. Raises OSError."""
    with open_regular(path) as file:
        return file.read(n_bytes)


def _check(path: str | os.PathLike[str], info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        what = f"is not a regular file, but {_KINDS.get(stat.S_IFMT(info.st_mode), 'a device')}"
        raise NotRegularError(errno.EINVAL, f"{os.path.basename(path)} {what}", os.fspath(path))


def table_of(module: str, name: str = "") -> dict[str, Any]:
    """The TOML file next to a module. module: its __file__. name: of the file, "" for the module's."""
    path = Path(module)
    return tomllib.loads((path.with_name(name) if name else path.with_suffix(".toml")).read_text("utf-8"))
