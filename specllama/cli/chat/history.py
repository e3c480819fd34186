"""The input history of chats: a file of JSON strings, one a line, readable by its owner alone. A file that
cannot be read or written is not an error.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from specllama.config.whole_file import write_whole
from specllama.regular_file import open_regular

MAX_INPUTS, MAX_BYTES = 1000, 1_000_000  # inputs kept; bytes read from the end of the file
MAX_CHARACTERS = 20_000  # of an input; longer ones are not kept


class HistoryFile:
    """Inputs of earlier sessions, the oldest first. path: made when first written to. keeps: False leaves the
    file alone.
    """

    def __init__(self, path: Path, keeps: bool = True) -> None:
        self._path, self._keeps = path, keeps

    def read(self) -> list[str]:
        """The newest inputs; lines without one are skipped. A file that is too long is cut to the newest."""
        inputs: list[str] = []
        with contextlib.suppress(OSError):
            if not self._keeps:
                return []
            with open_regular(self._path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_BYTES))
                lines = file.read(MAX_BYTES).splitlines()
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    text = json.loads(line)
                    if isinstance(text, str):
                        inputs.append(text)
            if size > MAX_BYTES or len(inputs) > 2 * MAX_INPUTS:
                self._replace(inputs[-MAX_INPUTS:])
        return inputs[-MAX_INPUTS:]

    def append(self, text: str) -> None:
        """Keep an input."""
        if not self._keeps or len(text) > MAX_CHARACTERS:
            return
        if self._path.exists() and not self._path.is_file():
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                with contextlib.suppress(OSError):
                    os.fchmod(file, 0o600)
                os.write(file, _lines([text]).encode())
            finally:
                os.close(file)

    def _replace(self, texts: list[str]) -> None:
        with contextlib.suppress(OSError):
            write_whole(self._path, _lines(texts), 0o600)


def _lines(texts: list[str]) -> str:
    return "".join(json.dumps(text) + "\n" for text in texts)
