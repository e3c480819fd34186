"""The cache of tensors that clients have sent to an RPC worker, so that they need not be sent again.

ggml writes and reads the files, named by a hash of their content, and never checks whether one is complete:
a truncated file, left by a full disk or kill -9, would be loaded as wrong weights. So this cache removes all
files that are not known to be complete. A directory serves one worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from specllama.clock import sleep
from specllama.config.whole_file import write_whole
from specllama.regular_file import read_regular

_LIST = "whole.json"
_MAX_LIST = 16 << 20  # bytes of it: some 400,000 tensors
SETTLED_SECONDS = 1.0  # without a write, after which a file is complete
_FULL = 64 << 20  # bytes: with less free disk space, a write may have failed


class TensorCache:
    """A directory of complete files. Raises OSError if it cannot be created or read."""

    def __init__(self, root: Path) -> None:
        self.root, self._lock = root, threading.Lock()
        root.mkdir(parents=True, exist_ok=True)
        complete = self._known()
        for path, size, _ in self._files():
            if complete.get(path.name) != size:
                path.unlink()

    def settle(self, pause: Callable[[float], object] = sleep) -> None:
        """Call after a client has left: record its files as complete, or remove them if the disk is full.

        Takes SETTLED_SECONDS, and leaves out files that change meanwhile: the next client may be sending
        already. pause: waits for some seconds.
        """
        with self._lock, contextlib.suppress(OSError):
            before = self._files()
            pause(SETTLED_SECONDS)
            unchanged, complete = set(before) & set(self._files()), self._known()
            full = shutil.disk_usage(self.root).free < _FULL
            for path, size, _ in unchanged:
                if complete.get(path.name) == size:
                    continue
                if full:
                    path.unlink()
                else:
                    complete[path.name] = size
            write_whole(self.root / _LIST, json.dumps(complete))

    def _files(self) -> list[tuple[Path, int, int]]:
        """Path, bytes, and time of the last change of each tensor."""
        with os.scandir(self.root) as entries:
            files = [e for e in entries if re.fullmatch("[0-9a-f]{16}", e.name) and e.is_file()]
            return [(Path(e.path), e.stat().st_size, e.stat().st_mtime_ns) for e in files]

    def _known(self) -> dict[str, int]:
        """Names and sizes of complete files; empty if the list cannot be read or is longer than _MAX_LIST."""
        try:
            text = read_regular(self.root / _LIST, _MAX_LIST + 1)
            known = json.loads(text) if len(text) <= _MAX_LIST else {}
            return known if isinstance(known, dict) else {}
        except (OSError, ValueError, RecursionError):
            return {}
