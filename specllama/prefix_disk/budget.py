"""How much of the disk states may use where the user has not said so. Knows no states."""

from __future__ import annotations

import shutil
from pathlib import Path

from specllama.config.defaults import CACHE_DISK_BYTES, CACHE_DISK_SHARE


def automatic_budget(directory: Path, held: int = 0) -> int:
    """Bytes for a directory, which may not exist yet: 8 GB, or a tenth of what would be free without it if
    that is less; 0 where nothing is known of the disk. held: bytes that the directory has already.
    """
    for there in (directory, *directory.parents):
        try:
            free = shutil.disk_usage(there).free
        except OSError:
            continue
        return min(CACHE_DISK_BYTES, int(CACHE_DISK_SHARE * (free + held)))
    return 0
