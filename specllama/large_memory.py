"""Memory for states of up to gigabytes: mappings of their own, returned to the system when they are freed.

The first write to new memory makes the system find and clear a page, which takes several times as long as the
copy of a state into memory that is there. `MemoryReserve` has that done in a thread. Knows no states.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

SMALL = 16 << 20  # bytes that are there at once
_UNUSED_SECONDS = 5.0  # after which reserved memory is freed


def map_memory(size: int) -> mmap.mmap:
    """New memory of this process alone. Raises OSError, ValueError."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # a tenth of the time, where the system has large pages
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class MemoryReserve:
    """Memory that a background thread prepares, by size. Used by one other thread."""

    def __init__(self, unused_seconds: float = _UNUSED_SECONDS) -> None:
        self._unused_seconds = unused_seconds
        self._changed = threading.Condition()
        self._ready: dict[int, mmap.mmap | None] = {}  # None: there is not so much
        self._asked: set[int] = set()

    def prepare(self, size: int) -> bool:
        """Whether `take` returns at once; else a thread prepares so much, freed again if not taken."""
        if size <= SMALL:
            return True
        with self._changed:
            if size in self._ready:
                return True
            if size not in self._asked:
                self._asked.add(size)
                threading.Thread(
                    target=self._make, args=(size,), name="specllama_memory", daemon=True
                ).start()
            return False

    def take(self, size: int) -> mmap.mmap:
        """Memory of this size, prepared or not. Raises OSError, ValueError."""
        with self._changed:
            memory = self._ready.pop(size, None)
            self._changed.notify_all()
        return memory if memory is not None else map_memory(size)

    def _make(self, size: int) -> None:
        """In the thread: prepare so much, and keep it for a while."""
        try:
            memory = map_memory(size)
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 0, size)  # without the GIL
        except (OSError, ValueError):
            memory = None
        with self._changed:
            self._ready[size] = memory
            del memory
            self._changed.wait_for(lambda: size not in self._ready, self._unused_seconds)
            self._ready.pop(size, None)
            self._asked.discard(size)
