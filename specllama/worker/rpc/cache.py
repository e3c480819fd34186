"""Tensors that clients have sent to an RPC worker, kept so that they need not be sent again.

ggml writes and reads the files, named by a hash of their content, and never looks whether one is whole: of a
write that was cut short, by a full disk or kill -9, it would make wrong weights. So only files that are known
to be whole are left for it. A directory serves one worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from pathlib import Path

_LIST = "whole.json"
_SETTLED_SECONDS = 1.0  # since the last byte: the next client may already be sending
_FULL = 64 << 20  # bytes: with less left on the disk, a write may have failed


class TensorCache:
    """A directory of whole files. Raises OSError where it cannot be made or read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        whole = self._known()
        for path, size in self._files():
            if whole.get(path.name) != size:
                path.unlink()

    def settle(self) -> None:
        """After a client has left: what it has sent is whole, unless the disk is full; then it is removed."""
        with contextlib.suppress(OSError):
            now, whole = time.time(), self._known()
            full = shutil.disk_usage(self.root).free < _FULL
            for path, size in self._files():
                if whole.get(path.name) == size or now - path.stat().st_mtime < _SETTLED_SECONDS:
                    continue
                if full:
                    path.unlink()
                else:
                    whole[path.name] = size
            temporary = self.root / f"{_LIST}.tmp"
            temporary.write_text(json.dumps(whole))
            temporary.replace(self.root / _LIST)

    def _files(self) -> list[tuple[Path, int]]:
        with os.scandir(self.root) as entries:
            found = [e for e in entries if re.fullmatch("[0-9a-f]{16}", e.name) and e.is_file()]
            return [(Path(e.path), e.stat().st_size) for e in found]

    def _known(self) -> dict[str, int]:
        """Names and sizes of whole files; nothing where the list is broken."""
        try:
            found = json.loads((self.root / _LIST).read_bytes())
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError, RecursionError):
            return {}
