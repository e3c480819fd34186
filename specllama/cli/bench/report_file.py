"""The file of `bench --report`: checked before anything is measured, replaced atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from specllama.bench.page import TITLE
from specllama.cli.files import mapped_errors, refuse_stdout
from specllama.config.text_file import expanded
from specllama.errors import ResourceError, UsageError
from specllama.regular_file import read_regular


def checked_path(name: str) -> Path:
    """The path of a report, after a test that it can be written. Only an earlier report is ever replaced.

    Raises UsageError.
    """
    if not name.strip() or "\0" in name:
        raise UsageError("--report needs the path of a file to write")
    refuse_stdout(name, "--report")
    path = expanded(name)
    with mapped_errors(UsageError, f"--report: {name} cannot be written", "name a file that can be"):
        if path.is_dir():
            raise UsageError(f"--report: {name} is a directory", f"for example {path / 'bench.html'}")
        if os.path.lexists(path):
            if not path.is_file():
                raise UsageError(f"--report: {name} is no regular file")
            start = read_regular(path, 1024)
            if start and TITLE.encode() not in start:
                raise UsageError(f"--report: {name} is there and no report of bench, it is not overwritten")
            if not os.access(path, os.W_OK):
                raise UsageError(f"--report: {name} cannot be written: Permission denied")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    return path


def write_report(path: Path, html: str) -> None:
    """Write a report to a temporary file that then replaces `path`. Raises ResourceError."""
    with mapped_errors(ResourceError, f"--report: {path} cannot be written"):
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".bench-", suffix=".html")
        try:
            with open(number, "w", encoding="utf-8", newline="\n") as file:
                file.write(html)
            umask = os.umask(0)
            os.umask(umask)
            with contextlib.suppress(OSError):
                os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
