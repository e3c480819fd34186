"""The file of a bench's `--report`: a place that is tried before anything is measured, replaced in one go."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specllama.bench.page import TITLE
from specllama.errors import ResourceError, UsageError


def place(name: str) -> Path:
    """A place where a report can be written, tried. Only an earlier report is ever replaced.

    Raises UsageError.
    """
    if not name.strip() or "\0" in name:
        raise UsageError("--report needs the path of a file to write")
    path = Path(name)
    try:
        if path.is_dir():
            raise UsageError(f"--report: {name} is a directory", f"for example {path / 'bench.html'}")
        if os.path.lexists(path):
            if not path.is_file():
                raise UsageError(f"--report: {name} is no regular file")
            with path.open("rb") as file:
                start = file.read(1024)
            if start and TITLE.encode() not in start:
                raise UsageError(f"--report: {name} is there and no report of bench, it is not overwritten")
            if not os.access(path, os.W_OK):
                raise UsageError(f"--report: {name} cannot be written: Permission denied")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--report: {name} cannot be written: {why}", "name a file that can be") from None
    return path


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Any]:
    """A file that takes the place of `path` when it is complete. Raises ResourceError."""
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".bench-", suffix=".html")
        try:
            with open(number, "w", encoding="utf-8", newline="\n") as file:
                yield file
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise ResourceError(f"--report: {path} cannot be written: {error.strerror or error}") from None
