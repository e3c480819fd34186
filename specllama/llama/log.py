"""llama.cpp's log: keeps the last warnings and errors, which explain a failed load; optionally prints all.

library.py installs the callback before anything else of llama.cpp runs.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque

_WARNING, _ERROR, _CONTINUATION = 3, 4, 5  # ggml_log_level
_KEPT = 200  # lines
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)  # ggml_log_callback


class LlamaLog:
    """Keeps the last lines of level warning and error. verbose: also writes every line to stderr."""

    def __init__(self) -> None:
        self.verbose = False
        self.callback = _CALLBACK(self._receive)
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._level = 0

    def clear(self) -> None:
        """Forget the lines so far, before a load whose `reason` may be needed."""
        self._lines.clear()

    def reason(self) -> str:
        """The last three warnings and errors in one line."""
        return "; ".join(list(self._lines)[-3:]) or "llama.cpp gave no reason"

    def line_with(self, word: str) -> str:
        """The last warning or error with this word, "" for none."""
        last_line = next((line for line in reversed(self._lines) if word in line), "")
        return last_line.partition("\n")[0].removeprefix("warning: ")

    def _receive(self, level: int, text: bytes, _user: object) -> None:
        line = text.decode("utf-8", "replace")
        if self.verbose:
            sys.stderr.write(line)
        self._level = level if level != _CONTINUATION else self._level
        if self._level in (_WARNING, _ERROR) and line.strip(" .\n"):
            self._lines.append(line.strip())


log = LlamaLog()


def show_log(verbose: bool) -> None:
    """Write llama.cpp's log to stderr from now on, or stop writing it."""
    log.verbose = verbose
